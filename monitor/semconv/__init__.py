"""Span attributes of each dialect -> observed span.

A transport (`streams.otlp`) hands over a `RawSpan` with the attributes that `wanted` names;
`normalise` makes of it the one type that the rest of the system knows. To teach the monitor a new
way of writing spans, add a module with what `dialect.Dialect` asks for to
`DIALECTS`: the first that reads a span has it, so those that ask for more come first.

raw.py       what a transport hands over
dialect.py   what a dialect gives
genai.py     OpenTelemetry GenAI conventions, and what frameworks add to them
openinference.py, openllmetry.py, langsmith.py, langfuse.py, litellm.py, logfire.py, vercel.py,
claude_code.py, haystack.py, mcp.py
events.py    messages told by events; logs.py  by log records
payload.py   a run's whole input or output; flat.py  messages flattened into attributes
messages.py  messages as JSON text; decode.py  one of them; chat.py  as most have them;
shapes.py    in any shape
wrapped.py   arguments and results taken out of wrappings; literal.py  Python's repr;
printed.py   results of MCP as Python prints them; dspy.py  what DSPy writes into prompts
content.py   texts: what was shown and why not more
trim.py      which messages of a repeated history are kept
response.py  the id of a model's response
limits.py    bounds on everything
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from monitor.model import Span
from monitor.semconv import (
    claude_code,
    genai,
    haystack,
    langfuse,
    langsmith,
    litellm,
    logfire,
    mcp,
    openinference,
    openllmetry,
    response,
    vercel,
)
from monitor.semconv.content import shown_text
from monitor.semconv.dialect import Content, Dialect
from monitor.semconv.events import EVENT_KEYS
from monitor.semconv.limits import ERROR_LIMIT, MAX_MESSAGES, Memo, cut, fit, name
from monitor.semconv.raw import (
    REMOTE_PARENT,
    STATUS_ERROR,
    RawEvent,
    RawLog,
    RawSpan,
    Resource,
    Value,
    resource,
    text_of,
)

__all__ = [
    "DIALECTS",
    "EXACT",
    "MARKS",
    "PREFIXES",
    "Content",
    "Dialect",
    "RawEvent",
    "RawLog",
    "RawSpan",
    "Resource",
    "Value",
    "normalise",
    "resource",
    "wanted",
    "wanted_among",
    "wanted_of_event",
]

DIALECTS: Final[tuple[Dialect, ...]] = (
    openinference,
    langsmith,
    claude_code,
    logfire,
    litellm,
    genai,
    vercel,
    langfuse,
    haystack,
    mcp,
    openllmetry,
)

_EXCEPTION: Final = "exception"
_TYPE: Final = "error.type"
_ERROR_KEYS: Final = frozenset({_TYPE, "exception.message", "exception.type"})

_SPAN_TYPE: Final = "logfire.span_type"
_PENDING: Final = "pending_span"
"""Logfire sends one when a span begins, with an id of its own and the span as its parent. It tells
nothing that the span will not tell."""

EXACT: Final = (_ERROR_KEYS | response.KEYS | {_SPAN_TYPE}).union(
    *(dialect.KEYS for dialect in DIALECTS)
)
"""Attributes that a transport must hand over."""
PREFIXES: Final = tuple(prefix for dialect in DIALECTS for prefix in dialect.PREFIXES)
"""Beginnings of further ones, which matter in a span that has one of `MARKS`."""
MARKS: Final = frozenset().union(*(dialect.MARKS for dialect in DIALECTS))

_NOTHING: Final = Content(kind="other")
_SURELY_SMALL: Final = 30_000
_LATEST: Final = 2**63 - 1


def wanted(key: str) -> bool:
    """Whether some dialect reads this attribute of a span."""
    return key in EXACT or key.startswith(PREFIXES)


def wanted_among(keys: Sequence[str]) -> tuple[str, ...]:
    """Those of a span's keys that matter, sorted: what is made of a span is to be the same bytes
    whoever reads it, in whatever order its attributes came."""
    if MARKS.isdisjoint(keys):
        return tuple(sorted([key for key in keys if key in EXACT]))
    return tuple(sorted(filter(wanted, keys)))


def wanted_of_event(key: str) -> bool:
    """Whether some dialect reads this attribute of a span's event."""
    return key in EVENT_KEYS or wanted(key)


def normalise(raw: RawSpan) -> Span:
    """The span as the monitor sees it. Never fails: what cannot be read is `unseen`.

    A span without agent meaning keeps ids, parent, kind, name, times and resource: its place in
    the tree. Times are kept as sent, within 63 bits; an end before the start becomes the start.
    """
    attributes = raw.attributes
    content = _NOTHING
    if _SPAN_TYPE not in attributes or attributes[_SPAN_TYPE] != _PENDING:
        keys = tuple(attributes)
        readers = _readers.get(keys)
        if readers is None:
            readers = _readers.remember(keys, _readers_of(keys), sum(map(len, keys)))
        for read in readers:
            if (found := read(raw)) is not None:
                content = found
                break
    error = content.error
    if content.kind != "other" and (
        raw.status == STATUS_ERROR or raw.events or _TYPE in attributes
    ):
        found_error = _error(raw)
        error = error if found_error is None or (error and not found_error) else found_error
    if (
        error is not None
        and content.kind == "llm"
        and not content.outputs
        and content.unseen.get("output") == "content_hidden"
    ):
        del content.unseen["output"]  # it said nothing, and hid nothing
    if content.outputs and not content.inputs and content.kind == "llm":
        content.miss("input", "content_hidden")
    answered = response.of(raw) if content.kind == "llm" else None
    start, end = raw.start, raw.end
    if not 0 <= start <= end <= _LATEST:
        start = min(max(start, 0), _LATEST)
        end = min(max(start, end), _LATEST)
    span = Span(
        # By position: by name it would take as long as reading the messages.
        raw.trace_id,
        raw.span_id,
        content.kind,
        name(raw.name),
        raw.parent,
        raw.flags & REMOTE_PARENT != 0,
        start,
        end,
        content.agent,
        raw.resource.service,
        content.conversation_id,
        raw.resource.attributes,
        error,
        content.tool,
        content.call_id,
        content.arguments,
        content.result,
        content.inputs,
        content.omitted,
        content.outputs,
        content.unseen,
        answered,
        name(raw.scope) if answered is not None and raw.scope else None,
    )
    if 0 < raw.size < _SURELY_SMALL and len(span.inputs) + len(span.outputs) <= MAX_MESSAGES:
        return span
    return span if _surely_small(raw, span) else fit(span)


_Reader = Callable[[RawSpan], Content | None]
_readers: Final = Memo[tuple[str, ...], tuple[_Reader, ...]](entries=4096, size=4 * 1024 * 1024)
"""For the keys of a span the dialects that it may be written in."""


def _readers_of(keys: Sequence[str]) -> tuple[_Reader, ...]:
    return tuple(
        [
            dialect.read
            for dialect in DIALECTS
            if not dialect.TELLS or not dialect.TELLS.isdisjoint(keys)
        ]
    )


def _error(raw: RawSpan) -> str | None:
    """Text of the failure, None for success: exception's message, status message, error's type.

    An exception event counts whatever the status says: some instrumentations leave it at OK.
    """
    kind = raw.attributes.get(_TYPE)
    exceptions = [event for event in raw.events if event.name == _EXCEPTION]
    if raw.status != STATUS_ERROR and kind is None and not exceptions:
        return None
    told = [event.attributes.get("exception.message") for event in reversed(exceptions)]
    told += [raw.status_message, kind]
    told += [event.attributes.get("exception.type") for event in reversed(exceptions)]
    for value in told:
        if (text := text_of(value)) is not None and (shown := shown_text(text)[0]) is not None:
            return cut(shown, ERROR_LIMIT)
    return ""


def _surely_small(raw: RawSpan, span: Span) -> bool:
    """Whether the span fits its limits for a cheap reason, as nearly all do."""
    if len(span.inputs) > MAX_MESSAGES or len(span.outputs) > MAX_MESSAGES:
        return False
    if raw.size:
        return raw.size < _SURELY_SMALL
    size = 0
    for value in raw.attributes.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict | list):
            return False
    return size < _SURELY_SMALL
