"""OTLP logs -> raw log records, as far as they tell what a model was asked and said.

Others, of the application or of the instrumentation, are passed over: they are somebody else's. A
record of ours that belongs to no span, or breaks the protocol, is a `BadSpan` like a bad span is;
the records beside it go on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from monitor.semconv import RawLog, Resource, Value, resource, wanted
from monitor.semconv.logs import tells
from streams import otlp_json
from streams.otlp_json import (
    SPAN_ID,
    TRACE_ID,
    UNREADABLE,
    AnyValue,
    Json,
    KeyValue,
    Number,
    ResourceJson,
    any_value,
    origin_of,
    unsigned,
)
from streams.otlp_span import BadSpan, MalformedError
from streams.otlp_wire import WHOLE_LOGS, DecodeError, value

_NAME: Final = "event.name"
_MARK: Final = b"gen_ai."
"""In the bytes of every record that tells messages, since the event's name begins with it."""
_NO_SPAN: Final = "a message that belongs to no span: trace id or span id is absent"
_IDS: Final = re.compile(r"0+")


def place(resource: int, scope: int, record: int) -> str:
    return f"resourceLogs[{resource}].scopeLogs[{scope}].logRecords[{record}]"


def of_proto(data: bytes) -> Iterator[RawLog | BadSpan]:
    """Reads `ExportLogsServiceRequest` and `LogsData`, the same on the wire."""
    try:
        groups = WHOLE_LOGS(data).resource_logs
    except DecodeError as error:
        yield BadSpan(None, "not_otlp", f"not a protobuf logs request: {error}", "", data)
        return
    if data and not groups:
        yield BadSpan(None, "not_otlp", "not a logs request: holds no resource logs", "", data)
    for r, group in enumerate(groups):
        try:
            message = ResourceMessage.FromString(group.resource)
        except DecodeError as error:
            detail = f"unreadable resource: {error}"
            yield BadSpan(None, "not_otlp", detail, place(r, 0, 0), group.SerializeToString())
            continue
        origin = resource({pair.key: value(pair.value) for pair in message.attributes})
        for s, scoped in enumerate(group.scope_logs):
            for n, item in enumerate(scoped.log_records):
                if _MARK not in item:
                    continue
                try:
                    found = _proto_record(LogRecord.FromString(item), origin)
                except (DecodeError, UnicodeDecodeError) as error:
                    yield BadSpan(None, "malformed", str(error), place(r, s, n), item)
                    continue
                if found is None:
                    continue
                yield (
                    found
                    if _whole(found)
                    else BadSpan(None, "bad_id", _NO_SPAN, place(r, s, n), item)
                )


def _proto_record(record: LogRecord, origin: Resource) -> RawLog | None:
    name = record.event_name
    if not name:
        named = (a.value.string_value for a in record.attributes if a.key == _NAME)
        name = next(named, "")
    if not tells(name):
        return None
    return RawLog(
        record.trace_id.hex(),
        record.span_id.hex(),
        name,
        record.time_unix_nano or record.observed_time_unix_nano,
        value(record.body) if record.HasField("body") else None,
        {pair.key: value(pair.value) for pair in record.attributes if wanted(pair.key)},
        origin,
    )


def _whole(record: RawLog) -> bool:
    """Whether it has the ids of a span."""
    return (
        TRACE_ID.fullmatch(record.trace_id) is not None
        and SPAN_ID.fullmatch(record.span_id) is not None
        and _IDS.fullmatch(record.trace_id) is None
        and _IDS.fullmatch(record.span_id) is None
    )


class _Record(Json):
    trace_id: str | None = None
    span_id: str | None = None
    time_unix_nano: Number | None = None
    observed_time_unix_nano: Number | None = None
    event_name: str | None = None
    body: AnyValue | None = None
    attributes: list[KeyValue] | None = None


class _ScopeLogs(Json):
    log_records: list[msgspec.Raw] | None = None


class _ResourceLogs(Json):
    resource: ResourceJson | None = None
    scope_logs: list[_ScopeLogs] | None = None


class _Request(Json):
    resource_logs: list[msgspec.Raw] | None


_request: Final = msgspec.json.Decoder(_Request)
_group: Final = msgspec.json.Decoder(_ResourceLogs)
_record: Final = msgspec.json.Decoder(_Record)


def of_json(data: bytes) -> Iterator[RawLog | BadSpan]:
    """Reads the same in the JSON mapping."""
    groups: list[msgspec.Raw] | None = None
    error: Exception | None = None
    for attempt in (bytes, otlp_json.mended, otlp_json.shallow):
        try:
            groups = _request.decode(attempt(data)).resource_logs or []
            break
        except UNREADABLE as wrong:
            error = error or wrong
    if groups is None:
        yield BadSpan(None, "not_otlp", f"not a JSON logs request: {error}", "", data)
        return
    for r, raw in enumerate(groups):
        try:
            group = _group.decode(raw)
            origin = origin_of(group.resource)
        except (*UNREADABLE, MalformedError) as wrong:
            detail = f"unreadable resource: {wrong}"
            yield BadSpan(None, "not_otlp", detail, place(r, 0, 0), bytes(raw))
            continue
        for s, scoped in enumerate(group.scope_logs or ()):
            for n, item in enumerate(scoped.log_records or ()):
                if _MARK not in bytes(item):
                    continue
                try:
                    found = _json_record(_record.decode(item), origin)
                except (*UNREADABLE, MalformedError) as wrong:
                    yield BadSpan(None, "malformed", str(wrong), place(r, s, n), bytes(item))
                    continue
                if found is None:
                    continue
                yield (
                    found
                    if _whole(found)
                    else BadSpan(None, "bad_id", _NO_SPAN, place(r, s, n), bytes(item))
                )


def _json_record(record: _Record, origin: Resource) -> RawLog | None:
    attributes: dict[str, Value] = {}
    name = record.event_name or ""
    for pair in record.attributes or ():
        if pair.key == _NAME and not name:
            told = any_value(pair.value)
            name = told if isinstance(told, str) else ""
        elif wanted(pair.key):
            attributes[pair.key] = any_value(pair.value)
    if not tells(name):
        return None
    return RawLog(
        (record.trace_id or "").lower(),
        (record.span_id or "").lower(),
        name,
        unsigned(record.time_unix_nano, "timeUnixNano")
        or unsigned(record.observed_time_unix_nano, "observedTimeUnixNano"),
        any_value(record.body),
        attributes,
        origin,
    )
