"""What went into a step and what came out of it, where a framework dumps both as it has them.

OpenInference (`input.value`), LangSmith (`gen_ai.prompt`), Langfuse (`langfuse.observation.input`)
and OpenLLMetry (`traceloop.entity.input`) keep a run's input and output in one JSON value each:
a list of messages, an object that holds one, a provider's whole request or response, or a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from monitor.model import Message, Unseen
from monitor.semconv.content import lenient, shallow, shown
from monitor.semconv.dialect import Content
from monitor.semconv.messages import Read, read
from monitor.semconv.raw import RawSpan, Value
from monitor.semconv.trim import JsonHistory, trim
from monitor.semconv.wrapped import Fields, Raw, fields, items, string

_LISTS: Final = ("messages", "contents", "inputs", "input", "prompt", "query", "question", "task")
_OUTPUTS: Final = (
    "messages",
    "output",
    "outputs",
    "content",
    "result",
    "answer",
    "response",
    "text",
)
_DEPTH: Final = 4

Found = tuple[list[Raw], Unseen | None]


def requested(value: Value, note: str | None = None) -> Found:
    """The messages of an input, still JSON; a text is a user's."""
    raw, unseen = _json(value, note)
    return (list(_requests(raw, _DEPTH)), unseen) if raw is not None else ([], unseen)


def responded(value: Value, note: str | None = None) -> Found:
    """The messages of an output, still JSON; a text is an assistant's."""
    raw, unseen = _json(value, note)
    return (list(_responses(raw, _DEPTH)), unseen) if raw is not None else ([], unseen)


def take_history(content: Content, raw: RawSpan, asked: Sequence[Raw], why: Unseen | None) -> None:
    """What a model was given, as far as it is kept. `why`: not all of it is shown."""
    content.inputs, content.omitted, more = trim(JsonHistory(asked), everything=raw.parent is None)
    content.miss("input", why or more)


def take_turn(content: Content, raw: RawSpan, asked_key: str, said_key: str) -> None:
    """What a model was given and what it said, of two attributes."""
    asked, why = requested(raw.attributes.get(asked_key), raw.cut.get(asked_key))
    take_history(content, raw, asked, why)
    said, why = responded(raw.attributes.get(said_key), raw.cut.get(said_key))
    content.take_outputs([read(item) for item in said], why)
    if raw.dropped:
        content.miss("input", None if asked else "attributes_dropped")
        content.miss("output", None if said else "attributes_dropped")
    if not content.outputs:
        content.miss("output", "content_hidden")


def take_request(content: Content, raw: RawSpan, *keys: str) -> None:
    """What the user of a run asked last, of the first of these attributes that tells it."""
    for key in keys:
        asked, _ = requested(raw.attributes.get(key), raw.cut.get(key))
        if (request := _last_request(asked)) is not None:
            content.inputs = (request[0],)
            return


def take_answer(content: Content, raw: RawSpan, *keys: str) -> None:
    """What a run answered, of the first of these attributes that tells it."""
    for key in keys:
        said, _ = responded(raw.attributes.get(key), raw.cut.get(key))
        if (answer := _last_answer(said)) is not None:
            content.take_outputs([answer])
            return


def _last_request(messages: Sequence[Raw]) -> Read | None:
    """The last message in which a user speaks."""
    for raw in reversed(messages):
        found = read(raw)
        if found[0].role == "user" and found[0].text is not None:
            return found
    return None


def _last_answer(messages: Sequence[Raw]) -> Read | None:
    """The last message when an assistant speaks in it."""
    if not messages:
        return None
    message, why = read(messages[-1])
    if message.role == "assistant" and message.text is not None and not message.calls:
        return Message("assistant", message.text), why
    return None


def parsed(text: str) -> Raw | None:
    """The JSON value that a text is; None when it is none."""
    data = text.encode("utf-8", "replace")
    try:
        return msgspec.json.decode(data, type=Raw) if shallow(text) else None
    except (msgspec.DecodeError, UnicodeError):
        return None


def _json(value: Value, note: str | None) -> tuple[Raw | None, Unseen | None]:
    """The value as JSON, a text as a JSON string; None when it is not shown."""
    unseen: Unseen | None = None if note is None else "content_truncated"
    if value is None:
        return None, unseen
    if not isinstance(value, str):
        return Raw(msgspec.json.encode(value)), unseen
    data = value.strip()
    if data[:1] in ("{", "["):
        if (whole := parsed(data)) is not None:
            return whole, unseen
        if note is not None and (found := lenient(data, partial=True)) is not None:
            return Raw(msgspec.json.encode(found)), unseen
    text, why = shown(value)
    if text is None:
        return None, unseen or why
    if text[:1] in ("{", "["):
        return Raw(text.encode("utf-8", "replace")), unseen or why
    return Raw(msgspec.json.encode(text)), unseen or why


def _requests(raw: Raw, depth: int) -> Iterator[Raw]:
    first = bytes(raw)[:1]
    if first == b'"':
        yield Raw(b'{"role":"user","content":' + bytes(raw) + b"}")
    elif first == b"[":
        yield from _messages(raw)
    elif (found := fields(raw)) is not None:
        if _is_message(found):
            yield raw
            return
        for key in ("system", "system_instruction", "instructions"):
            if key in found and bytes(found[key])[:1] in (b'"', b"["):
                yield Raw(b'{"role":"system","content":' + bytes(found[key]) + b"}")
        for key in _LISTS:
            if key in found and bytes(found[key])[:1] in (b'"', b"[", b"{") and depth:
                yield from _requests(found[key], depth - 1)
                return
        if "kwargs" in found and depth:
            yield from _requests(found["kwargs"], depth - 1)


def _responses(raw: Raw, depth: int) -> Iterator[Raw]:
    first = bytes(raw)[:1]
    if first == b'"':
        yield Raw(b'{"role":"assistant","content":' + bytes(raw) + b"}")
    elif first == b"[":
        yield from _messages(raw, nested=True)
    elif (found := fields(raw)) is not None:
        yield from _response(raw, found, depth)


def _response(raw: Raw, found: Fields, depth: int) -> Iterator[Raw]:
    for key in ("choices", "candidates"):
        for choice in items(found.get(key, Raw())) or ():
            inner = fields(choice) or {}
            yield inner["content"] if key == "candidates" and "content" in inner else choice
            return
    if "generations" in found:
        for item in items(found["generations"]) or ():
            for generation in items(item) or [item]:
                inner = fields(generation) or {}
                yield inner["message"] if "message" in inner else _said(inner.get("text"))
                return
    if _is_message(found):
        yield raw
        return
    for key in ("update", "message", *_OUTPUTS):
        if key in found and bytes(found[key])[:1] in (b'"', b"[", b"{") and depth:
            yield from _responses(found[key], depth - 1)
            return


def _said(text: Raw | None) -> Raw:
    return Raw(b'{"role":"assistant","content":' + (bytes(text) if text else b"null") + b"}")


def _messages(raw: Raw, *, nested: bool = False) -> Iterator[Raw]:
    """The messages of a list, or of a list of lists, as LangChain has one for each prompt."""
    for item in items(raw) or ():
        data = bytes(item)
        if data[:1] == b"[":
            yield from items(item) or ()
        elif data[:1] == b'"':
            yield Raw(b'{"role":"user","content":' + data + b"}")
        elif nested and (found := fields(item)) is not None and "update" in found:
            yield from _responses(found["update"], 2)
        else:
            yield item


def _is_message(found: Fields) -> bool:
    kind = string(found.get("type"))
    return (
        ("role" in found and ("content" in found or "parts" in found or "tool_calls" in found))
        or ("lc" in found and "kwargs" in found)
        or (kind in ("human", "ai", "system", "tool") and ("data" in found or "content" in found))
        or ("message" in found and "index" in found)
    )
