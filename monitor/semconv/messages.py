"""Messages of a model's input and output from their JSON text.

An attribute is split into messages first, and each is read when it is kept: most input is history
that the monitor has seen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from monitor.model import Message, RequestedCall, ReturnedResult, Unseen
from monitor.semconv.content import (
    Shown,
    lenient,
    plain,
    shallow,
    shown_text,
    unquoted,
    without_lone_surrogates,
)
from monitor.semconv.decode import UNREADABLE, decode
from monitor.semconv.limits import MAX_MESSAGES, Memo, name
from monitor.semconv.parts import (
    CallPart,
    Part,
    ResultPart,
    TextPart,
    UsualMessage,
    WireMessage,
)
from monitor.semconv.raw import Value
from monitor.semconv.wrapped import arguments_raw, result_raw

Read = tuple[Message, Unseen | None]
"""A message and the evidence that some of it is missing."""

_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_usual: Final = msgspec.json.Decoder(list[UsualMessage])
_parts: Final = msgspec.json.Decoder(list[Part])


def split(value: Value, note: str | None = None) -> tuple[Sequence[msgspec.Raw], Unseen | None]:
    """The messages of an attribute, still unread, and the evidence that some are missing.

    Takes an array, one message, `{"messages": [..]}`, any of them encoded once more, and an array
    whose end was cut off. `note`: the value is the head of a longer one.
    """
    if value is None:
        return (), None if note is None else "content_truncated"
    if not isinstance(value, str):
        value = msgspec.json.encode(value).decode()
    elif value[:1] != "[":
        value = value.strip()
        if value[:1] == '"':
            value = unquoted(value.encode())
    try:
        return _items.decode(value), None if note is None else "content_truncated"
    except UNREADABLE:
        return _split_odd(value, note)


def _split_odd(text: str, note: str | None) -> tuple[Sequence[msgspec.Raw], Unseen | None]:
    if not shallow(text):
        return (), "content_truncated"
    if (mended := without_lone_surrogates(text)) is not text:
        return split(mended, note)
    unseen: Unseen | None = None if note is None else "content_truncated"
    value = lenient(text, partial=False)
    if value is None:
        value = lenient(text, partial=True)
        unseen = "content_truncated"
    if isinstance(value, dict):
        value = value["messages"] if isinstance(value.get("messages"), list) else [value]
    if not isinstance(value, list):
        return (), "content_hidden" if text else None
    return [msgspec.Raw(msgspec.json.encode(item)) for item in value], unseen


_read: Final = Memo[bytes, Read](entries=4096, size=8 * 1024 * 1024)
"""Messages that were read: every model call of a run repeats its beginning."""


def forget() -> None:
    """Forgets the messages that were read."""
    _read.forget()


def read(raw: msgspec.Raw) -> Read:
    """One message. What cannot be read of it is `content_hidden`.

    A call without arguments, or a result without content, is no such evidence: it is told by None.
    """
    data = bytes(raw)
    found = _read.get(data)
    if found is None:
        found = _read.remember(data, together(*decode(raw)), 2 * len(data))
    return found


def read_all(value: Value, note: str | None = None) -> tuple[tuple[Message, ...], Unseen | None]:
    """Every message of an attribute, in one step when all keep to the schema."""
    unseen: Unseen | None = None
    try:
        usual = _usual.decode(value) if isinstance(value, str) and note is None else None
    except UNREADABLE:
        usual = None
    if usual is not None:
        reads = [together(message, None) for message in usual]
    else:
        found, unseen = split(value, note)
        reads = [read(raw) for raw in found]
    return tuple([message for message, _ in reads]), unseen or first_missing(reads)


def first_missing(reads: Sequence[Read]) -> Unseen | None:
    """The evidence of the first message of which something is missing."""
    for _, why in reads:
        if why is not None:
            return why
    return None


def together(message: WireMessage, unseen: Unseen | None) -> Read:
    """The message that the parts make up; `unseen` is what was found missing before."""
    role, parts = message.role, message.parts
    if len(parts) == 1 and (only := parts[0]).__class__ is TextPart:
        text, hidden = plain(only.content)
        return Message(role, text), unseen or hidden
    if len(parts) > MAX_MESSAGES:
        parts, unseen = parts[:MAX_MESSAGES], "content_truncated"
    text = None
    calls: tuple[RequestedCall, ...] = ()
    results: tuple[ReturnedResult, ...] = ()
    for part in parts:
        why: Unseen | None = None
        if part.__class__ is TextPart:
            more, why = plain(part.content)
            if more is not None:
                text = more if text is None else f"{text}\n{more}"
        elif part.__class__ is CallPart:
            if part.name:
                call_id = part.id
                asked = RequestedCall(
                    name(part.name),
                    name(call_id) if call_id else None,
                    arguments_raw(bytes(part.arguments)),
                )
                calls = (*calls, asked) if calls else (asked,)
            else:
                why = "content_hidden"
        elif part.__class__ is ResultPart:
            found = result_raw(bytes(part.response) or bytes(part.result))
            why = found.unseen
            told_id, tool = part.id or found.call_id, part.name or found.tool
            returned = ReturnedResult(
                name(told_id) if told_id else None,
                name(tool) if tool else None,
                found.text,
                part.failed or found.failed,
            )
            results = (*results, returned) if results else (returned,)
        if unseen is None:
            unseen = why
    if role == "user" and results and text is None:
        role = "tool"
    return Message(role, text, calls, results), unseen


def parts_text(value: Value, note: str | None = None) -> Shown:
    """The text of an array of parts, as system instructions are written."""
    if isinstance(value, str) and note is None:
        try:
            message, unseen = together(WireMessage("system", _parts.decode(value)), None)
        except UNREADABLE:
            pass
        else:
            return message.text, unseen
    items, unseen = split(value, note)
    if not items and isinstance(value, str) and unseen == "content_hidden":
        return shown_text(value)
    parts = b"[" + b",".join(bytes(item) for item in items) + b"]"
    message, why = read(msgspec.Raw(b'{"role":"system","parts":' + parts + b"}"))
    return message.text, unseen or why
