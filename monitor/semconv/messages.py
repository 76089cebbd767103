"""Messages of a model's input and output as JSON text.

Schema: `gen-ai-input-messages.json` and `gen-ai-output-messages.json` of the OpenTelemetry GenAI
conventions, https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai): an array of
`{role, parts: [{type: text | tool_call | tool_call_response | ..}]}`. Read with what frameworks
make of it: a result under `response` or `result`, with the role `user` or `tool`; arguments as an
object or as JSON text; one bad part or message never hides the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from monitor.model import Message, RequestedCall, ReturnedResult, Unseen
from monitor.semconv.content import (
    HIDDEN,
    NOT_SHOWN,
    Shown,
    lenient,
    redacted,
    shallow,
    shown_json,
    shown_text,
    without_lone_surrogates,
)
from monitor.semconv.limits import ATTRIBUTE_LIMIT, MAX_MESSAGES, cut, name
from monitor.semconv.raw import Value, text_of

Read = tuple[Message, Unseen | None]
"""A message and the evidence that some of it is missing."""

_ABSENT: Final = msgspec.Raw()
_NULL: Final = msgspec.Raw(b"null")
_ROLES: Final = {
    "model": "assistant",
    "ai": "assistant",
    "human": "user",
    "developer": "system",
    "function": "tool",
}


class _Part(msgspec.Struct, gc=False):
    """A part before its types are known. Values that are kept as JSON text stay unread."""

    type: Any = None
    content: msgspec.Raw = _ABSENT
    id: Any = None
    name: Any = None
    arguments: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT


class _Wire(msgspec.Struct, gc=False):
    role: Any = None
    parts: list[_Part] | None = None
    content: msgspec.Raw = _ABSENT


class _Loose(msgspec.Struct, gc=False):
    """A message of which some part is no object."""

    role: Any = None
    parts: msgspec.Raw = _ABSENT
    content: msgspec.Raw = _ABSENT


_list: Final = msgspec.json.Decoder(list[msgspec.Raw])
_wire: Final = msgspec.json.Decoder(_Wire)
_loose: Final = msgspec.json.Decoder(_Loose)
_part: Final = msgspec.json.Decoder(_Part)
_text: Final = msgspec.json.Decoder(str)


def split(value: Value, note: str | None = None) -> tuple[Sequence[msgspec.Raw], Unseen | None]:
    """The messages of an attribute, still unread, and the evidence that some are missing.

    Takes an array, one message, either encoded once more, or an array whose end was cut off.
    `note`: the value is the head of a longer one.
    """
    if value is None:
        return (), None
    if not isinstance(value, str):
        value = msgspec.json.encode(value).decode()
    elif value[:1] != "[":
        value = value.strip()
        if value[:1] == '"':
            value = _unquoted(value)
    try:
        return _list.decode(value), "content_truncated" if note else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _split_odd(value, note)


def _split_odd(text: str, note: str | None) -> tuple[Sequence[msgspec.Raw], Unseen | None]:
    if not shallow(text):
        return (), "content_truncated"
    if (mended := without_lone_surrogates(text)) is not text:
        return split(mended, note)
    unseen: Unseen | None = "content_truncated" if note else None
    value = lenient(text, partial=False)
    if value is None:
        value = lenient(text, partial=True)
        unseen = "content_truncated"
    if isinstance(value, dict):
        value = value["messages"] if isinstance(value.get("messages"), list) else [value]
    if not isinstance(value, list):
        return (), "content_hidden" if text else None
    return [msgspec.Raw(msgspec.json.encode(item)) for item in value], unseen


def read(raw: msgspec.Raw) -> Read:
    """One message. What cannot be read of it is `content_hidden`."""
    try:
        wire = _wire.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return _read_odd(raw)
    return _message(wire.role, wire.parts or (), wire.content, None)


def parts_text(value: Value, note: str | None = None) -> Shown:
    """The text of an array of parts, as system instructions are written."""
    items, unseen = split(value, note)
    if not items and isinstance(value, str) and unseen == "content_hidden":
        return shown_text(value)
    parts = b"[" + b",".join(bytes(item) for item in items) + b"]"
    message, why = read(msgspec.Raw(b'{"role":"system","parts":' + parts + b"}"))
    return message.text, unseen or why


def _read_odd(raw: msgspec.Raw) -> Read:
    """A message with something in it that does not belong there."""
    text = bytes(raw).decode("utf-8", "replace")
    if (mended := without_lone_surrogates(text)) is not text:
        return read(msgspec.Raw(mended.encode()))
    try:
        loose = _loose.decode(raw)
        items = _list.decode(loose.parts) if loose.parts else []
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return Message(role="unknown"), "content_hidden"
    unseen: Unseen | None = None
    parts: list[_Part] = []
    for item in items:
        try:
            parts.append(_part.decode(item))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            unseen = "content_hidden"
    return _message(loose.role, parts, loose.content, unseen)


def _message(
    role: Any, parts: Sequence[_Part], content: msgspec.Raw, unseen: Unseen | None
) -> Read:
    texts: list[str] = []
    calls: list[RequestedCall] = []
    results: list[ReturnedResult] = []
    if content and content != _NULL:
        parts = [_Part(type="text", content=content), *parts]
    if len(parts) > MAX_MESSAGES:
        parts, unseen = parts[:MAX_MESSAGES], "content_truncated"
    for part in parts:
        missing: Unseen | None = None
        match _kind(part):
            case "text":
                text, missing = _content(part.content)
                if text is not None:
                    texts.append(text)
            case "call":
                tool = text_of(part.name)
                if tool is None:
                    missing = "content_hidden"
                else:
                    arguments, _ = _json(part.arguments)
                    calls.append(RequestedCall(name(tool), _id(part.id), arguments))
            case "result":
                shown = _json(part.response or part.result, null="null")
                tool = text_of(part.name)
                results.append(
                    ReturnedResult(call_id=_id(part.id), tool=tool and name(tool), result=shown[0])
                )
                missing = shown[1]
            case "other":
                pass
        unseen = unseen or missing
    role = name(role).lower() if isinstance(role, str) else "unknown"
    role = _ROLES.get(role, role)
    if results and not texts and role == "user":
        role = "tool"
    message = Message(
        role=role,
        text="\n".join(texts) if texts else None,
        calls=tuple(calls),
        results=tuple(results),
    )
    return message, unseen


def _kind(part: _Part) -> Literal["text", "call", "result", "other"]:
    match part.type:
        case "text":
            return "text"
        case "tool_call":
            return "call"
        case "tool_call_response":
            return "result"
        case None:
            if part.response or part.result:
                return "result"
            return "call" if part.name is not None else "text"
    return "other"


def _content(raw: msgspec.Raw) -> Shown:
    """A text part's content as it stands, for blanks in an answer are part of it."""
    if not raw or raw == _NULL:
        return HIDDEN
    text = bytes(raw).decode("utf-8", "replace")
    if text[0] != '"':
        return shown_json(text) if text[0] in "{[" else (text, None)
    content = _unquoted(text)
    if redacted(content):
        return HIDDEN
    short = cut(content, ATTRIBUTE_LIMIT)
    return short, None if short is content else "content_truncated"


def _json(raw: msgspec.Raw, null: str | None = None) -> Shown:
    """A value inside a message as the text of a part; `null` stands for JSON's null."""
    if not raw:
        return NOT_SHOWN
    text = bytes(raw).decode("utf-8", "replace")
    if text[0] == '"':
        return shown_text(_unquoted(text))
    if text == "null":
        return null, None
    return shown_json(text) if text[0] in "{[" else (text, None)


def _unquoted(text: str) -> str:
    """The content of a JSON string literal; the literal itself when it is a broken one."""
    try:
        return _text.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        mended = without_lone_surrogates(text)
        return text if mended is text else _unquoted(mended)


def _id(value: Any) -> str | None:
    text = text_of(value)
    return text and name(text)
