"""How much of a span is kept. Everything in a span is hostile, so each size has a bound here.

A text over its bound is cut between characters and ends in a note with the size and the digest
of the whole, so that two texts that differ only behind the cut stay different.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from monitor.model import Message, Part, Span, Unseen, digest

PARSE_LIMIT: Final = 4 * 1024 * 1024
"""Bytes of an attribute that are read as JSON; of a longer one only its head is kept."""
ATTRIBUTE_LIMIT: Final = 128 * 1024
"""Bytes of one text that a span keeps."""
SPAN_LIMIT: Final = 200_000
"""Bytes of an encoded span."""
NAME_LIMIT: Final = 256
"""Characters of a name or an id."""
ERROR_LIMIT: Final = 8 * 1024
"""Bytes of a failure's text."""
MAX_MESSAGES: Final = 512
"""Messages that a span keeps of its input and of its output, and parts that a message keeps."""
MAX_DEPTH: Final = 100
"""Nesting of JSON values and of OTLP attribute values (protobuf's own default limit)."""
RESOURCE_KEYS: Final = 32
"""Resource attributes that a span keeps."""
RESOURCE_CHARS: Final = 256
"""Characters of a resource attribute's key and of its value."""

_SMALL: Final = ATTRIBUTE_LIMIT // 8
_ROOM_FOR_REST: Final = 24_000
"""Bytes that a span's names, ids and resource attributes take at most in practice."""
_MINIMUM: Final = 128

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """What was worked out before, to be looked up with `get`. Begins anew when it is full, so that
    it never holds more than `entries` answers, whose keys and values have `size` bytes together."""

    def __init__(self, *, entries: int, size: int) -> None:
        super().__init__()
        self._entries = entries
        self._size = size
        self._held = 0

    def remember(self, key: K, value: V, size: int) -> V:
        """The value, kept under this key. `size`: of both, in bytes, more or less. What alone would
        take an eighth of all room is not kept."""
        if size * 8 <= self._size:
            self._held += size
            if len(self) >= self._entries or self._held > self._size:
                self.clear()
                self._held = size
            self[key] = value
        return value

    def forget(self) -> None:
        self.clear()
        self._held = 0


def note(data: bytes) -> str:
    """What stands at the end of a cut text."""
    return f"… [cut: {len(data)} bytes, blake2b {digest(data)}]"


def head(data: bytes, limit: int) -> str:
    """The first `limit` bytes at most, cut between two characters."""
    return data[:limit].decode("utf-8", "ignore")


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8, with the note when something is missing."""
    if len(text) * 4 <= limit:
        return text
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return text
    end = note(data)
    return head(data, max(0, limit - len(end.encode()))) + end


def name(text: str) -> str:
    """A name or id. Two long ones stay different, and none is cut to look like a shorter one."""
    if len(text) <= NAME_LIMIT:
        return text
    return f"{text[: NAME_LIMIT - 40]}… {digest(text)}"


def fit(span: Span) -> Span:
    """The span within `SPAN_LIMIT`: the longest texts are cut first, each to the same length.

    A part that loses something is `content_truncated`, whatever else is known of it. Spans with
    more than `MAX_MESSAGES` messages lose those in the middle.
    """
    inputs, outputs = _fewer(span.inputs), _fewer(span.outputs)
    lost: set[Part] = set()
    if inputs is not span.inputs:
        lost.add("input")
    if outputs is not span.outputs:
        lost.add("output")
    if lost:
        span = msgspec.structs.replace(span, inputs=inputs, outputs=outputs)
    room = SPAN_LIMIT - _ROOM_FOR_REST
    while len(msgspec.msgpack.encode(span)) > SPAN_LIMIT:
        level = _level(sorted(len(t.encode("utf-8", "replace")) for t in _texts(span)), room)
        if level > _MINIMUM:
            span, more = _cut_to(span, level)
        else:
            span, more = _halve(span)
        lost |= more
        room -= SPAN_LIMIT // 8
    if not lost:
        return span
    unseen: dict[Part, Unseen] = {**span.unseen, **dict.fromkeys(lost, "content_truncated")}
    return msgspec.structs.replace(span, unseen=unseen)


def _fewer(messages: tuple[Message, ...], most: int = MAX_MESSAGES) -> tuple[Message, ...]:
    if len(messages) <= most:
        return messages
    return messages[:2] + messages[2 - most :]


def _texts(span: Span) -> list[str]:
    found = [span.arguments, span.result, span.error]
    for message in (*span.inputs, *span.outputs):
        found.append(message.text)
        found.extend(call.arguments for call in message.calls)
        found.extend(result.result for result in message.results)
    return [text for text in found if text]


def _level(sizes: list[int], room: int) -> int:
    """The length to which the longest texts are cut so that all together take `room` bytes."""
    for index, size in enumerate(sizes):
        share = room // (len(sizes) - index)
        if size > share:
            return max(share, 0)
        room -= size
    return _MINIMUM


def _cut_to(span: Span, level: int) -> tuple[Span, set[Part]]:
    changed: dict[str, object] = {}
    lost: set[Part] = set()
    parts: tuple[Part, ...] = ("arguments", "result")
    for part in parts:
        text = getattr(span, part)
        if text is not None and (shorter := cut(text, level)) is not text:
            changed[part] = shorter
            lost.add(part)
    if span.error is not None:
        changed["error"] = cut(span.error, level)
    inputs = tuple(_cut_message(m, level) for m in span.inputs)
    outputs = tuple(_cut_message(m, level) for m in span.outputs)
    if inputs != span.inputs:
        lost.add("input")
    if outputs != span.outputs:
        lost.add("output")
    return msgspec.structs.replace(span, inputs=inputs, outputs=outputs, **changed), lost


def _cut_message(message: Message, level: int) -> Message:
    return Message(
        role=message.role,
        text=message.text if message.text is None else cut(message.text, level),
        calls=tuple(
            call
            if call.arguments is None
            else msgspec.structs.replace(call, arguments=cut(call.arguments, level))
            for call in message.calls
        ),
        results=tuple(
            result
            if result.result is None
            else msgspec.structs.replace(result, result=cut(result.result, level))
            for result in message.results
        ),
    )


def _halve(span: Span) -> tuple[Span, set[Part]]:
    """For spans that are large by the number of their messages, calls or results."""
    longest = max((span.inputs, span.outputs), key=lambda m: len(msgspec.msgpack.encode(m)))
    part: Part = "input" if longest is span.inputs else "output"
    if len(longest) > 4:
        fewer = _fewer(longest, max(4, len(longest) // 2))
    else:
        fewer = tuple(
            Message(m.role, m.text, m.calls[: len(m.calls) // 2], m.results[: len(m.results) // 2])
            for m in longest
        )
    return msgspec.structs.replace(span, **{part + "s": fewer}), {part}
