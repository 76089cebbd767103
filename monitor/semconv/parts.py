"""Messages and their parts as JSON has them, before they are put together.

Schema: `gen-ai-input-messages.json` and `gen-ai-output-messages.json` of the OpenTelemetry GenAI
conventions, https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai): a message is
`{role, parts: [{type: text | tool_call | tool_call_response | reasoning | ..}]}`.

`decode` reads a message that keeps to it in one step. Any other is read part by part and turned into
the same parts, so that what they mean is said once, and one bad part never hides the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from monitor.model import Unseen
from monitor.semconv.content import without_lone_surrogates
from monitor.semconv.raw import label

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


class _Role(msgspec.Struct, gc=False):
    role: Any = None


UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding JSON of unknown origin may raise."""

_role: Final = msgspec.json.Decoder(_Role)
_usual: Final = msgspec.json.Decoder(UsualMessage)

_ROLES: Final = {
    "model": "assistant",
    "ai": "assistant",
    "human": "user",
    "developer": "system",
    "function": "tool",
}


def decode(raw: msgspec.Raw) -> tuple[WireMessage, Unseen | None]:
    """The message, and the evidence that some of it cannot be read."""
    try:
        return _usual.decode(raw), None
    except UNREADABLE:
        return _decode_odd(raw)


def role_of(raw: msgspec.Raw) -> str:
    """The role alone."""
    try:
        told = _role.decode(raw).role
    except UNREADABLE:
        told = None
    return _decode_odd(raw)[0].role if told is None else usual_role(label(told))


def usual_role(told: str | None) -> str:
    """The role as the conventions name it; `unknown` when there is none."""
    role = (told or "unknown").lower()
    return _ROLES.get(role, role)


def _decode_odd(raw: msgspec.Raw) -> tuple[WireMessage, Unseen | None]:
    from monitor.semconv import shapes, wrapped

    text = bytes(raw).decode("utf-8", "replace")
    if (mended := without_lone_surrogates(text)) is not text:
        return decode(msgspec.Raw(mended.encode()))
    found = wrapped.fields(text.encode())
    if found is None:
        said = wrapped.string(msgspec.Raw(text.encode()))
        if said is not None:
            return WireMessage("unknown", [TextPart(said)]), None
        return WireMessage("unknown", ()), "content_hidden"
    return shapes.read(found)
