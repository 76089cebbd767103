"""OTLP in protobuf -> raw spans, span by span."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from monitor.semconv import RawEvent, RawSpan, Resource, Value, resource, wanted
from streams.otlp_span import MAX_EVENTS, BadIdError, BadSpan, place
from streams.otlp_wire import (
    REQUEST,
    RESOURCE_SPANS,
    SCOPE_SPANS,
    SPAN,
    DecodeError,
    attributes,
    value,
)

_TRACE_ID = 16
_SPAN_ID = 8
_ZERO = bytes(_TRACE_ID)


def spans(data: bytes) -> Iterator[RawSpan | BadSpan]:
    """Reads `ExportTraceServiceRequest`, and `TracesData`, which is the same on the wire."""
    try:
        groups = REQUEST(data).resource_spans
    except DecodeError as error:
        yield BadSpan(None, "not_otlp", f"not a protobuf trace request: {error}", "", data)
        return
    if data and not groups:
        yield BadSpan(None, "not_otlp", "holds no resource spans", "", data)
    for r, group in enumerate(groups):
        try:
            read = RESOURCE_SPANS(group)
            origin = _resource(read.resource)
        except DecodeError as error:
            yield BadSpan(None, "not_otlp", f"unreadable resource spans: {error}", place(r), group)
            continue
        for s, scoped in enumerate(read.scope_spans):
            try:
                inner = SCOPE_SPANS(scoped)
                scope = InstrumentationScope.FromString(inner.scope).name
            except DecodeError as error:
                detail = f"unreadable scope spans: {error}"
                yield BadSpan(None, "not_otlp", detail, place(r, s), scoped)
                continue
            for n, item in enumerate(inner.spans):
                try:
                    yield _span(item, origin, scope)
                except BadIdError as error:
                    trace = _trace_id(item)
                    yield BadSpan(trace, "bad_id", str(error), place(r, s, n), item)
                except (DecodeError, UnicodeDecodeError) as error:
                    yield BadSpan(_trace_id(item), "malformed", str(error), place(r, s, n), item)


def _span(data: bytes, origin: Resource, scope: str) -> RawSpan:
    span = SPAN(data)
    trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
    if len(trace_id) != _TRACE_ID or trace_id == _ZERO:
        raise BadIdError(
            f"trace id is {trace_id[:32].hex() or 'absent'}, expected 16 bytes, not zero"
        )
    if len(span_id) != _SPAN_ID or not any(span_id):
        raise BadIdError(f"span id is {span_id[:32].hex() or 'absent'}, expected 8 bytes, not zero")
    if parent and len(parent) != _SPAN_ID:
        raise BadIdError(f"parent span id is {parent[:32].hex()}, expected 8 bytes or none")
    status = Status.FromString(code) if (code := span.status) else None
    events = span.events
    cut: dict[str, str] = {}
    return RawSpan(
        trace_id=trace_id.hex(),
        span_id=span_id.hex(),
        parent=parent.hex() if parent and any(parent) else None,
        name=span.name.decode(),
        kind=span.kind,
        flags=span.flags,
        start=span.start,
        end=span.end,
        status=0 if status is None else status.code,
        status_message="" if status is None else status.message,
        attributes=attributes(span.attributes, cut),
        events=tuple(map(_event, events[:MAX_EVENTS])) if events else (),
        dropped=span.dropped + max(0, len(events) - MAX_EVENTS),
        resource=origin,
        scope=scope,
        cut=cut,
    )


def _event(data: bytes) -> RawEvent:
    event = SpanMessage.Event.FromString(data)
    kept: dict[str, Value] = {
        pair.key: value(pair.value) for pair in event.attributes if wanted(pair.key)
    }
    return RawEvent(event.name, kept)


def _resource(data: bytes) -> Resource:
    message = ResourceMessage.FromString(data)
    return resource({pair.key: value(pair.value) for pair in message.attributes})


def _trace_id(data: bytes) -> str | None:
    """The trace id of a span that is otherwise unreadable: the first field, as encoders write it."""
    try:
        found = SPAN(data).trace_id
    except DecodeError:
        found = data[2:18] if data[:2] == b"\x0a\x10" else b""
    return found.hex() if len(found) == _TRACE_ID and found != _ZERO else None
