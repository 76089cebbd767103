"""OTLP bytes, as the Collector's Kafka exporter and OTLP/HTTP clients write them -> raw spans.

    bytes --decode--> RawSpan --monitor.semconv.normalise--> Span
                 `--> BadSpan: the dead letters, and a `lost` arrival when its trace id is known

Outcomes, none of which is an exception:

| bytes | what comes out |
|---|---|
| an empty message, a request without spans | nothing |
| no trace request, or one cut in the middle | one BadSpan `not_otlp` with the whole message |
| a logs request | one BadSpan `logs` with the whole message |
| a resource or scope that cannot be read | one BadSpan `not_otlp` with its bytes; the others go on |
| a span without ids, with zero ids or ids of the wrong length | BadSpan `bad_id` |
| a span with invalid UTF-8, values of the wrong type, too deep nesting | BadSpan `malformed` |
| an attribute longer than `PARSE_LIMIT` | its head, and a note in `RawSpan.cut` |
| times of zero, in the future, the end before the start | a RawSpan: times are never judged |

The spans of a message come one by one, so that a message of 100 000 needs no second copy of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Final, Literal

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from monitor.semconv import RawLog, RawSpan
from streams import otlp_json, otlp_logs, otlp_proto
from streams.otlp_span import BadSpan, Reason

__all__ = ["BadSpan", "Encoding", "Reason", "decode", "decode_logs"]

Encoding = Literal["auto", "proto", "json"]
"""`auto`: JSON when the first byte that is no blank is `{`, unless the blank is a protobuf tag."""

_JSON: Final = re.compile(rb'\{|[ \t\r\n]+\{[ \t\r\n]*(?:\}|"[^"\x00-\x1f]{1,64}"[ \t\r\n]*:)')
"""How JSON begins. No protobuf request begins with `{`, which would open a group, but one whose first
group takes 123 bytes begins with a line feed and `{`: so blanks must be followed by a key, too."""


def decode(data: bytes, encoding: Encoding = "auto") -> Iterator[RawSpan | BadSpan]:
    """Every span of a message, read or not. Never raises on any bytes."""
    if _is_json(data, encoding):
        return otlp_json.spans(data)
    spans = otlp_proto.spans(data)
    first = next(spans, None)
    if first is None:
        return spans
    if isinstance(first, BadSpan) and first.trace_id is None and _is_logs(data):
        return iter((BadSpan(None, "logs", "OTLP logs among the traces", "", data),))
    return chain((first,), spans)


def decode_logs(data: bytes, encoding: Encoding = "auto") -> Iterator[RawLog | BadSpan]:
    """Every log record of a message that tells a span's messages. Never raises on any bytes."""
    if _is_json(data, encoding):
        yield from otlp_logs.of_json(data)
    else:
        yield from otlp_logs.of_proto(data)


def _is_json(data: bytes, encoding: Encoding) -> bool:
    return encoding == "json" or (encoding == "auto" and _JSON.match(data) is not None)


def _is_logs(data: bytes) -> bool:
    """Whether bytes that hold a span without ids are really a logs request.

    A span and a log record differ in the wire types of nearly every field; a span read as a record
    has neither of the record's times.
    """
    try:
        request = ExportLogsServiceRequest.FromString(data)
    except DecodeError:
        return False
    return any(
        record.time_unix_nano or record.observed_time_unix_nano
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    )
