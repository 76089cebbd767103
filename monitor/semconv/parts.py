"""Messages and their parts as JSON has them, before they are put together.

Schema: `gen-ai-input-messages.json` and `gen-ai-output-messages.json` of the OpenTelemetry GenAI
conventions, https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai): a message is
`{role, parts: [{type: text | tool_call | tool_call_response | reasoning | ..}]}`.

A message of any other shape is turned into the same parts (`shapes`), so that what they mean is said
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

ABSENT: Final = msgspec.Raw()


class TextPart(msgspec.Struct, tag_field="type", tag="text", gc=False):
    content: str


class CallPart(msgspec.Struct, tag_field="type", tag="tool_call", gc=False):
    name: str
    id: str | None = None
    arguments: msgspec.Raw = ABSENT


class ResultPart(msgspec.Struct, tag_field="type", tag="tool_call_response", gc=False):
    """The schema says `response`; its own example, and pydantic-ai, say `result`."""

    id: str | None = None
    name: str | None = None
    response: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    failed: bool = False
    """Not of the schema: what other shapes say of it."""


class ThoughtPart(msgspec.Struct, tag_field="type", tag="reasoning", gc=False):
    """Read past: a model's thoughts are neither answer nor evidence."""


Part = TextPart | CallPart | ResultPart | ThoughtPart


class WireMessage(msgspec.Struct, gc=False):
    role: str
    parts: Sequence[Part]


class UsualMessage(WireMessage, gc=False):
    """A message that keeps to the schema, as nearly all do."""

    role: Literal["user", "assistant", "system", "tool"]
    parts: list[Part]
    # Beside the parts, where chat APIs have them, they make a message that is read by its shape.
    tool_calls: None = None
    tool_call_id: None = None


_ROLES: Final = {
    "model": "assistant",
    "ai": "assistant",
    "human": "user",
    "developer": "system",
    "function": "tool",
}


def usual_role(told: str | None) -> str:
    """The role as the conventions name it; `unknown` when there is none."""
    role = (told or "unknown").lower()
    return _ROLES.get(role, role)
