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
from monitor.semconv.content import shown_raw, unquoted, without_lone_surrogates
from monitor.semconv.raw import label

ABSENT: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")


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


class _AnyMessage(msgspec.Struct, gc=False):
    role: Any = None
    parts: msgspec.Raw = ABSENT
    content: msgspec.Raw = ABSENT


class _AnyPart(msgspec.Struct, gc=False):
    type: Any = None
    content: msgspec.Raw = ABSENT
    id: Any = None
    name: Any = None
    arguments: msgspec.Raw = ABSENT
    response: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT


UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding JSON of unknown origin may raise."""

_role: Final = msgspec.json.Decoder(_Role)
_usual: Final = msgspec.json.Decoder(UsualMessage)
_message: Final = msgspec.json.Decoder(_AnyMessage)
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_part: Final = msgspec.json.Decoder(_AnyPart)

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
        return _usual_role(_role.decode(raw).role)
    except UNREADABLE:
        return _decode_odd(raw)[0].role


def _usual_role(value: Any) -> str:
    role = (label(value) or "unknown").lower()
    return _ROLES.get(role, role)


def _decode_odd(raw: msgspec.Raw) -> tuple[WireMessage, Unseen | None]:
    text = bytes(raw).decode("utf-8", "replace")
    if (mended := without_lone_surrogates(text)) is not text:
        return decode(msgspec.Raw(mended.encode()))
    try:
        message = _message.decode(text)
        items = _items.decode(message.parts) if _holds(message.parts) else []
    except UNREADABLE:
        return WireMessage("unknown", ()), "content_hidden"
    unseen: Unseen | None = None
    parts: list[Part] = []
    if _holds(message.content):
        parts.append(TextPart(_text(message.content)))
    for item in items:
        try:
            part = _usual_part(_part.decode(item))
        except UNREADABLE:
            part = None
        if part is None:
            unseen = "content_hidden"
        else:
            parts.append(part)
    return WireMessage(_usual_role(message.role), parts), unseen


def _usual_part(part: _AnyPart) -> Part | None:
    """The part as the schema would have it; None when its content is missing."""
    kind = part.type
    if kind is None and (part.response or part.result):
        kind = "tool_call_response"
    elif kind is None:
        kind = "text" if part.name is None else "tool_call"
    if kind == "text":
        return TextPart(_text(part.content)) if _holds(part.content) else None
    if kind == "tool_call":
        tool = label(part.name)
        return None if tool is None else CallPart(tool, label(part.id), part.arguments)
    if kind == "tool_call_response":
        return ResultPart(label(part.id), label(part.name), part.response, part.result)
    return ThoughtPart()


def _holds(raw: msgspec.Raw) -> bool:
    return bool(raw) and raw != _NULL


def _text(raw: msgspec.Raw) -> str:
    """A text that should have been a string: the string, or the JSON of whatever it is."""
    data = bytes(raw)
    return unquoted(data) if data[:1] == b'"' else shown_raw(data)[0] or ""
