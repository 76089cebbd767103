"""What both encodings of OTLP have in common: the outcome for a span that cannot be read."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from monitor.semconv.limits import ATTRIBUTE_LIMIT, PARSE_LIMIT, head, note

Reason = Literal["not_otlp", "logs", "bad_id", "malformed"]
"""`not_otlp`: the bytes are no trace request (or a part of it that holds spans is unreadable);
`logs`: a logs request on the traces topic; `bad_id`: trace or span id absent, all zero or of the
wrong length, so that the span belongs nowhere; `malformed`: this span breaks the protocol, by
invalid UTF-8, a value of the wrong type, or nesting beyond protobuf's limit."""

MAX_EVENTS: Final = 1024
"""Events of a span that are read (an SDK sends 128 at most); others count as dropped attributes,
so that what they may have held is told to be missing."""


class BadSpan(msgspec.Struct, frozen=True):
    """Bytes that cannot become a span. `data` are the original ones: the span's, or the message's.

    `place` names them within the message, as `resourceSpans[0].scopeSpans[1].spans[2]`; it is
    empty for the message as a whole. `trace_id` is known when the rest of the span is at fault.
    """

    trace_id: str | None
    reason: Reason
    detail: str
    place: str
    data: bytes


class MalformedError(ValueError):
    """A span breaks the protocol; the text says where and how."""


class BadIdError(ValueError):
    """A span's id is unusable; the text says which and what is allowed."""


def place(resource: int, scope: int | None = None, span: int | None = None) -> str:
    found = f"resourceSpans[{resource}]"
    if scope is not None:
        found += f".scopeSpans[{scope}]"
    if span is not None:
        found += f".spans[{span}]"
    return found


def shorten(key: str, data: bytes, cut: dict[str, str]) -> str:
    """An attribute's text; of one beyond `PARSE_LIMIT` its head, with the note put into `cut`."""
    if len(data) <= PARSE_LIMIT:
        return data.decode()
    cut[key] = note(data)
    return head(data, ATTRIBUTE_LIMIT)
