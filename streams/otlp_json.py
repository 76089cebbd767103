"""OTLP in JSON -> raw spans, span by span.

Mapping: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding : lowerCamelCase names, ids
in hex of either case, 64-bit integers as text or number, enums as numbers (their names are taken
too), unknown fields ignored. A null stands for an absent field, as in protobuf's own mapping.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from monitor.semconv import (
    RawEvent,
    RawSpan,
    Resource,
    Value,
    resource,
    wanted,
    wanted_of_event,
)
from monitor.semconv.content import without_lone_surrogates
from monitor.semconv.limits import MAX_DEPTH, PARSE_LIMIT, note
from streams.otlp_span import MAX_EVENTS, BadIdError, BadSpan, MalformedError, place, shorten

Number = int | float | str


class Json(msgspec.Struct, rename="camel", gc=False):
    """A message of the JSON mapping."""


class AnyValue(Json):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number | None = None
    double_value: Number | None = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: str | None = None


class ArrayValue(Json):
    values: list[AnyValue] | None = None


class KeyValue(Json):
    key: str = ""
    value: AnyValue | None = None


class KeyValueList(Json):
    values: list[KeyValue] | None = None


class _Event(Json):
    name: str | None = None
    attributes: list[KeyValue] | None = None


class _Status(Json):
    message: str | None = None
    code: Number | None = None


class _Span(Json):
    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    kind: Number | None = None
    flags: Number | None = None
    start_time_unix_nano: Number | None = None
    end_time_unix_nano: Number | None = None
    attributes: list[KeyValue] | None = None
    dropped_attributes_count: Number | None = None
    events: list[_Event] | None = None
    status: _Status | None = None


class _Trace(Json):
    trace_id: str | None = None


class Scope(Json):
    name: str | None = None


class ResourceJson(Json):
    attributes: list[KeyValue] | None = None


class _ScopeSpans(Json):
    scope: Scope | None = None
    spans: list[msgspec.Raw] | None = None


class _ResourceSpans(Json):
    resource: ResourceJson | None = None
    scope_spans: list[msgspec.Raw] | None = None


class _Request(Json):
    resource_spans: list[msgspec.Raw] | msgspec.UnsetType | None = msgspec.UNSET
    resource_logs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_request: Final = msgspec.json.Decoder(_Request)
_resource_spans: Final = msgspec.json.Decoder(_ResourceSpans)
_scope_spans: Final = msgspec.json.Decoder(_ScopeSpans)
_span: Final = msgspec.json.Decoder(_Span)
_trace: Final = msgspec.json.Decoder(_Trace)

UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
TRACE_ID: Final = re.compile("[0-9a-f]{32}")
SPAN_ID: Final = re.compile("[0-9a-f]{16}")
_INTEGER: Final = re.compile("-?[0-9]{1,20}")
_STATUS: Final = {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_JSON_DEPTH: Final = 400
"""Brackets within brackets that are read: `MAX_DEPTH` values take three each, and some around."""


def spans(data: bytes) -> Iterator[RawSpan | BadSpan]:
    """Reads `ExportTraceServiceRequest` and `TracesData`, which have the same shape."""
    request = _parsed(data)
    if isinstance(request, str):
        yield BadSpan(None, "not_otlp", request, "", data)
        return
    if request.resource_logs is not msgspec.UNSET:
        yield BadSpan(None, "logs", "OTLP logs among the traces", "", data)
    elif request.resource_spans is msgspec.UNSET and data.split() not in ([b"{}"], [b"{", b"}"]):
        yield BadSpan(None, "not_otlp", "a JSON object without resourceSpans", "", data)
    for r, group in enumerate(request.resource_spans or ()):
        try:
            read = _resource_spans.decode(group)
            origin = origin_of(read.resource)
        except (*UNREADABLE, MalformedError) as error:
            detail = f"unreadable resource spans: {error}"
            yield BadSpan(None, "not_otlp", detail, place(r), bytes(group))
            continue
        for s, scoped in enumerate(read.scope_spans or ()):
            try:
                inner = _scope_spans.decode(scoped)
            except UNREADABLE as error:
                detail = f"unreadable scope spans: {error}"
                yield BadSpan(None, "not_otlp", detail, place(r, s), bytes(scoped))
                continue
            scope = (inner.scope and inner.scope.name) or ""
            for n, item in enumerate(inner.spans or ()):
                try:
                    yield _raw(_span.decode(item), origin, scope, len(bytes(item)))
                except BadIdError as error:
                    found = _trace_id(item)
                    yield BadSpan(found, "bad_id", str(error), place(r, s, n), bytes(item))
                except (*UNREADABLE, MalformedError) as error:
                    found = _trace_id(item)
                    yield BadSpan(found, "malformed", str(error), place(r, s, n), bytes(item))


def _parsed(data: bytes) -> _Request | str:
    """The request, or why it is none."""
    error: Exception | None = None
    for attempt in (bytes, mended, shallow):
        try:
            return _request.decode(attempt(data))
        except RecursionError:
            error = error or ValueError("nested too deep")
        except (msgspec.DecodeError, UnicodeError) as wrong:
            error = error or wrong
    return f"not a JSON trace request: {error}"


def mended(data: bytes) -> bytes:
    """With U+FFFD for halves of surrogate pairs, which JavaScript writes where it cuts a text."""
    text = data.decode("utf-8", "surrogateescape")
    return without_lone_surrogates(text).encode("utf-8", "surrogateescape")


def shallow(data: bytes) -> bytes:
    """With a 0 for whatever lies too deep, so that only the span that holds it fails to decode."""
    data = mended(data)
    kept: list[bytes] = []
    depth = start = 0
    for token in _TOKEN.finditer(data):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                if depth == _JSON_DEPTH + 1:
                    kept += (data[start : token.start()], b"0")
            case b"]" | b"}":
                depth -= 1
                if depth == _JSON_DEPTH:
                    start = token.end()
    if depth <= _JSON_DEPTH:
        kept.append(data[start:])
    return b"".join(kept)


def _raw(span: _Span, origin: Resource, scope: str, size: int) -> RawSpan:
    trace_id, span_id = (span.trace_id or "").lower(), (span.span_id or "").lower()
    parent = (span.parent_span_id or "").lower()
    if not TRACE_ID.fullmatch(trace_id) or not trace_id.strip("0"):
        raise BadIdError(f"trace id is {quoted(trace_id)}, expected 32 hex digits, not all zero")
    if not SPAN_ID.fullmatch(span_id) or not span_id.strip("0"):
        raise BadIdError(f"span id is {quoted(span_id)}, expected 16 hex digits, not all zero")
    if parent and not SPAN_ID.fullmatch(parent):
        raise BadIdError(f"parent span id is {quoted(parent)}, expected 16 hex digits or none")
    cut: dict[str, str] = {}
    events = span.events or ()
    status = span.status or _Status()
    return RawSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent=parent if parent.strip("0") else None,
        name=span.name or "",
        kind=_enum(span.kind, {}),
        flags=unsigned(span.flags, "flags"),
        start=unsigned(span.start_time_unix_nano, "startTimeUnixNano"),
        end=unsigned(span.end_time_unix_nano, "endTimeUnixNano"),
        status=_enum(status.code, _STATUS),
        status_message=status.message or "",
        attributes=_attributes(span.attributes or (), cut),
        events=tuple(_event(event) for event in events[:MAX_EVENTS]),
        dropped=unsigned(span.dropped_attributes_count, "droppedAttributesCount")
        + max(0, len(events) - MAX_EVENTS),
        resource=origin,
        scope=scope,
        cut=cut,
        size=size,
    )


def _attributes(pairs: Sequence[KeyValue], cut: dict[str, str]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for pair in pairs:
        key = pair.key
        if not wanted(key):
            continue
        value = any_value(pair.value)
        if isinstance(value, str) and len(value) * 4 > PARSE_LIMIT:
            value = shorten(key, value.encode(), cut)
        elif isinstance(value, dict | list):
            encoded = msgspec.json.encode(value)
            if len(encoded) > PARSE_LIMIT:
                cut[key] = note(encoded)
                value = None
        found[key] = value
    return found


def _event(event: _Event) -> RawEvent:
    kept = {p.key: any_value(p.value) for p in event.attributes or () if wanted_of_event(p.key)}
    return RawEvent(event.name or "", kept)


def origin_of(found: ResourceJson | None) -> Resource:
    pairs = (found and found.attributes) or ()
    return resource({pair.key: any_value(pair.value) for pair in pairs})


def any_value(value: AnyValue | None, depth: int = 0) -> Value:
    if value is None:
        return None
    if value.string_value is not None:
        return value.string_value
    if depth * 2 > MAX_DEPTH:  # protobuf counts a value and the list within it
        raise MalformedError(f"attribute value nested deeper than {MAX_DEPTH // 2} lists")
    if value.array_value is not None:
        return [any_value(item, depth + 1) for item in value.array_value.values or ()]
    if value.kvlist_value is not None:
        pairs = value.kvlist_value.values or ()
        return {pair.key: any_value(pair.value, depth + 1) for pair in pairs}
    if value.int_value is not None:
        return _integer(value.int_value, "intValue", -(2**63), 2**63 - 1)
    if value.double_value is not None:
        return _double(value.double_value)
    if value.bytes_value is not None:
        try:
            return base64.b64decode(value.bytes_value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedError(f"bytesValue is no base64: {error}") from None
    return value.bool_value


def _integer(value: Number | None, field: str, least: int, most: int) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        number = int(value) if _INTEGER.fullmatch(value) else None
    else:
        number = int(value) if value == value // 1 else None
    if number is None or not least <= number <= most:
        raise MalformedError(
            f"{field} is {quoted(str(value))}, expected an integer {least}..{most}"
        )
    return number


def unsigned(value: Number | None, field: str) -> int:
    return _integer(value, field, 0, 2**64 - 1)


def _enum(value: Number | None, names: dict[str, int]) -> int:
    """Enums never make a span unreadable: an unknown one is 0, unspecified."""
    if isinstance(value, str):
        return names.get(value, 0)
    return int(value) if value is not None and 0 <= value < 2**31 else 0


def _double(value: Number) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise MalformedError(f"doubleValue is {quoted(str(value))}, expected a number") from None


def _trace_id(item: msgspec.Raw) -> str | None:
    """The trace id of a span that is otherwise unreadable."""
    try:
        found = (_trace.decode(item).trace_id or "").lower()
    except UNREADABLE:
        return None
    return found if TRACE_ID.fullmatch(found) and found.strip("0") else None


def quoted(text: str) -> str:
    return repr(text[:64]) if text else "absent"
