"""OTLP in protobuf -> raw spans, span by span."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from monitor.semconv import RawEvent, RawSpan, Resource, Value, resource, wanted_of_event
from streams.otlp_span import MAX_EVENTS, BadSpan, place
from streams.otlp_wire import (
    SPAN,
    WHOLE_REQUEST,
    DecodeError,
    attributes,
    value,
)

_TRACE_ID = 16
_SPAN_ID = 8
_ZERO = bytes(_TRACE_ID)
_ZERO_SPAN = bytes(_SPAN_ID)
_CHUNK = 64
"""Spans that are read at a time: reading one and using it in turns takes a fifth longer, because
the two evict each other from the processor's caches."""
_CACHEABLE = 8192
"""Bytes of a resource or scope that is remembered at most."""


def spans(data: bytes) -> Iterator[RawSpan | BadSpan]:
    """Reads `ExportTraceServiceRequest`, and `TracesData`, which is the same on the wire."""
    found = _found(data)
    while chunk := [_read(item) for item in islice(found, _CHUNK)]:
        yield from chunk


_Found = tuple[bytes, Resource, str, int, int, int]
"""An encoded span, its resource and scope, and the places of the three in the message."""


def _found(data: bytes) -> Iterator[_Found | BadSpan]:
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
            for n, item in enumerate(scoped.spans):
                yield item, origin, scope, r, s, n


def _read(found: _Found | BadSpan) -> RawSpan | BadSpan:
    if isinstance(found, BadSpan):
        return found
    data, origin, scope, r, s, n = found
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
        status = Status.FromString(told) if (told := span.status) else None
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
            status.code if status else 0,
            status.message if status else "",
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
    event = SpanMessage.Event.FromString(data)
    kept: dict[str, Value] = {
        pair.key: value(pair.value) for pair in event.attributes if wanted_of_event(pair.key)
    }
    return RawEvent(event.name, kept)


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
