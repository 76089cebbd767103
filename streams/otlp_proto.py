"""OTLP in protobuf -> raw spans, span by span."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from monitor.semconv import RawEvent, RawSpan, Resource, resource
from streams.otlp_span import MAX_EVENTS, BadSpan, place
from streams.otlp_wire import (
    EVENT,
    SPAN,
    WHOLE_REQUEST,
    DecodeError,
    attributes,
    event_attributes,
    value,
)

_TRACE_ID = 16
_SPAN_ID = 8
_ZERO = bytes(_TRACE_ID)
_ZERO_SPAN = bytes(_SPAN_ID)
_CHUNK = 64
"""Spans that are read at a time: reading one and using it in turns takes a fifth longer, because
the two evict each other from the processor's caches."""
_CODE = 0x18  # Status.code = 3, varint
_CACHEABLE = 8192
"""Bytes of a resource or scope that is remembered at most."""


def spans(data: bytes) -> Iterator[RawSpan | BadSpan]:
    """Reads `ExportTraceServiceRequest`, and `TracesData`, which is the same on the wire."""
    try:
        groups = WHOLE_REQUEST(data).resource_spans
    except DecodeError as error:
        yield BadSpan(None, "not_otlp", f"not a protobuf trace request: {error}", "", data)
        return
    if data and not groups:
        yield BadSpan(None, "not_otlp", "holds no resource spans", "", data)
    for r, group in enumerate(groups):
        told = group.resource
        try:
            origin = (_known_resource if len(told) < _CACHEABLE else _resource)(told)
        except DecodeError as error:
            detail = f"unreadable resource: {error}"
            yield BadSpan(None, "not_otlp", detail, place(r), group.SerializeToString())
            continue
        for s, scoped in enumerate(group.scope_spans):
            told = scoped.scope
            try:
                scope = (_known_scope if len(told) < _CACHEABLE else _scope)(told)
            except DecodeError as error:
                detail = f"unreadable scope: {error}"
                yield BadSpan(None, "not_otlp", detail, place(r, s), scoped.SerializeToString())
                continue
            items = scoped.spans
            for start in range(0, len(items), _CHUNK):
                chunk = items[start : start + _CHUNK]
                yield from [
                    _read(item, origin, scope, r, s, n) for n, item in enumerate(chunk, start)
                ]


def _read(data: bytes, origin: Resource, scope: str, r: int, s: int, n: int) -> RawSpan | BadSpan:
    """The span that `data` is; `r`, `s` and `n` are the places of its resource, scope and itself."""
    try:
        span = SPAN(data)
        trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
        if (
            len(trace_id) != _TRACE_ID
            or len(span_id) != _SPAN_ID
            or (parent and len(parent) != _SPAN_ID)
            or trace_id == _ZERO
            or span_id == _ZERO_SPAN
        ):
            detail = _wrong_id(trace_id, span_id, parent)
            return BadSpan(_trace_id(data), "bad_id", detail, place(r, s, n), data)
        told = span.status
        status, message = _UNSET if not told else _status(told)
        events = span.events
        cut: dict[str, str] = {}
        return RawSpan(
            # By position: by name it would take longer than all the rest of this function.
            trace_id.hex(),
            span_id.hex(),
            parent.hex() if parent and parent != _ZERO_SPAN else None,
            span.name,
            span.kind,
            span.flags,
            span.start,
            span.end,
            status,
            message,
            attributes(span.attributes, cut),
            tuple(map(_event, events[:MAX_EVENTS])) if events else (),
            span.dropped + max(0, len(events) - MAX_EVENTS) if events else span.dropped,
            origin,
            scope,
            cut,
            len(data),
        )
    except (DecodeError, UnicodeDecodeError) as error:
        return BadSpan(_trace_id(data), "malformed", str(error), place(r, s, n), data)


_UNSET: Final = (0, "")


def _status(told: bytes) -> tuple[int, str]:
    """Code and message."""
    if len(told) == 2 and told[0] == _CODE and told[1] < 0x80:  # a code alone
        return told[1], ""
    status = Status.FromString(told)
    return status.code, status.message


def _wrong_id(trace_id: bytes, span_id: bytes, parent: bytes) -> str:
    """What is wrong with the ids, worst first."""
    if len(trace_id) != _TRACE_ID or trace_id == _ZERO:
        what, found, allowed = "trace id", trace_id, f"{_TRACE_ID} bytes, not all zero"
    elif len(span_id) != _SPAN_ID or span_id == _ZERO_SPAN:
        what, found, allowed = "span id", span_id, f"{_SPAN_ID} bytes, not all zero"
    else:
        what, found, allowed = "parent span id", parent, f"{_SPAN_ID} bytes or none"
    shown = f"{found[:_TRACE_ID].hex()} ({len(found)} bytes)" if found else "absent"
    return f"{what} is {shown}, expected {allowed}"


def _event(data: bytes) -> RawEvent:
    event = EVENT(data)
    return RawEvent(event.name, event_attributes(event.attributes))


def _scope(data: bytes) -> str:
    return InstrumentationScope.FromString(data).name


def _resource(data: bytes) -> Resource:
    message = ResourceMessage.FromString(data)
    return resource({pair.key: value(pair.value) for pair in message.attributes})


# A process sends the same resource and scopes with every batch, so that most are known already.
_known_scope: Final = lru_cache(maxsize=256)(_scope)
_known_resource: Final = lru_cache(maxsize=256)(_resource)


def _trace_id(data: bytes) -> str | None:
    """The trace id of a span that is otherwise unreadable: the first field, as encoders write it."""
    try:
        found = SPAN(data).trace_id
    except DecodeError:
        found = data[2:18] if data[:2] == b"\x0a\x10" else b""
    return found.hex() if len(found) == _TRACE_ID and found != _ZERO else None
