from __future__ import annotations

import base64
import json
import math
import re
import tracemalloc

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from monitor.semconv import EXACT, RawSpan, normalise
from monitor.semconv.limits import ATTRIBUTE_LIMIT, PARSE_LIMIT
from streams.otlp import BadSpan, decode

TRACE, SPAN = bytes(range(1, 17)), bytes(range(1, 9))
HEX = TRACE.hex()
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "get_ticket"}


def any_value(value: object) -> AnyValue:
    match value:
        case None:
            return AnyValue()
        case bool():
            return AnyValue(bool_value=value)
        case str():
            return AnyValue(string_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case list():
            found = AnyValue()
            found.array_value.values.extend(map(any_value, value))
            found.array_value.SetInParent()
            return found
    found = AnyValue()
    found.kvlist_value.values.extend(KeyValue(key=k, value=any_value(v)) for k, v in value.items())
    found.kvlist_value.SetInParent()
    return found


def a_span(attributes: dict | None = None, **fields) -> SpanMessage:
    span = SpanMessage(**{"trace_id": TRACE, "span_id": SPAN, "name": "execute_tool t"} | fields)
    for key, value in (TOOL if attributes is None else attributes).items():
        span.attributes.append(KeyValue(key=key, value=any_value(value)))
    return span


def request(*spans: SpanMessage, resource: dict | None = None) -> ExportTraceServiceRequest:
    found = ExportTraceServiceRequest()
    group = found.resource_spans.add()
    for key, value in (resource or {}).items():
        group.resource.attributes.append(KeyValue(key=key, value=any_value(value)))
    scope = group.scope_spans.add()
    scope.scope.name = "lib"
    scope.spans.extend(spans)
    return found


def as_json(message: ExportTraceServiceRequest) -> dict:
    """OTLP's JSON mapping: protobuf's, but ids in hex and enums as numbers."""
    found = MessageToDict(message, use_integers_for_enums=True)
    for group in found.get("resourceSpans", ()):
        for scope in group.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = base64.b64decode(span[key]).hex()
    return found


def json_span(**fields) -> bytes:
    span = {"traceId": HEX, "spanId": SPAN.hex(), "name": "x"} | fields
    return wrapped(json.dumps(span).encode())


def wrapped(*spans: bytes) -> bytes:
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b",".join(spans) + b"]}]}]}"


def one(data: bytes) -> RawSpan | BadSpan:
    (found,) = decode(data)
    return found


def raw(data: bytes) -> RawSpan:
    found = one(data)
    assert isinstance(found, RawSpan), found
    return found


def bad(data: bytes) -> BadSpan:
    found = one(data)
    assert isinstance(found, BadSpan), found
    return found


def outcomes(data: bytes) -> list[str]:
    return [f.reason if isinstance(f, BadSpan) else f.span_id for f in decode(data)]


# -- what a good span gives -----------------------------------------------------------------


def test_every_field_of_a_protobuf_span():
    span = a_span(
        {**TOOL, "unread": "x", "gen_ai.tool.call.arguments": {"id": 7, "tags": ["a", None]}},
        parent_span_id=b"\x09" * 8,
        kind=SpanMessage.SPAN_KIND_SERVER,
        flags=0x301,
        start_time_unix_nano=5,
        end_time_unix_nano=9,
        dropped_attributes_count=3,
    )
    span.status.code, span.status.message = 2, "no"
    event = span.events.add(name="exception")
    event.attributes.append(KeyValue(key="exception.message", value=any_value("boom")))
    event.attributes.append(KeyValue(key="exception.stacktrace", value=any_value("long")))
    data = request(span, resource={"service.name": "desk", "n": 1}).SerializeToString()
    found = raw(data)
    assert (found.trace_id, found.span_id, found.parent) == (HEX, SPAN.hex(), "09" * 8)
    assert (found.name, found.kind, found.flags) == ("execute_tool t", 2, 0x301)
    assert (found.start, found.end, found.dropped, found.scope) == (5, 9, 3, "lib")
    assert (found.status, found.status_message) == (2, "no")
    assert found.attributes == {
        **TOOL,
        "gen_ai.tool.call.arguments": {"id": 7, "tags": ["a", None]},
    }
    assert found.events[0].attributes == {"exception.message": "boom"}
    assert found.resource.service == "desk"
    assert found.resource.attributes == {"service.name": "desk", "n": "1"}
    assert normalise(found).remote


def test_traces_data_is_the_same_on_the_wire():
    data = TracesData(resource_spans=request(a_span()).resource_spans).SerializeToString()
    assert raw(data).span_id == SPAN.hex()


def test_mixed_traces_come_in_the_order_of_the_message():
    spans = [a_span(trace_id=bytes([n]) * 16) for n in range(1, 200)]
    data = request(*spans[:100]).SerializeToString() + request(*spans[100:]).SerializeToString()
    assert [s.trace_id for s in decode(data)] == [s.trace_id.hex() for s in spans]


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16381, 16384, 16390, 70_000])
def test_strings_of_every_length_prefix(size):
    text = "é" * (size // 2) + "x" * (size % 2)
    data = request(a_span({**TOOL, "gen_ai.tool.call.result": text})).SerializeToString()
    assert raw(data).attributes["gen_ai.tool.call.result"] == text


def test_of_two_attributes_with_one_key_the_last_counts():
    span = a_span()
    span.attributes.append(KeyValue(key="gen_ai.tool.name", value=any_value("second")))
    message = request(span)
    for data in (message.SerializeToString(), json.dumps(as_json(message)).encode()):
        assert raw(data).attributes["gen_ai.tool.name"] == "second"


def test_json_of_every_kind_is_read_leniently():
    data = wrapped(
        json.dumps(
            {
                "traceId": HEX.upper(),
                "spanId": SPAN.hex(),
                "parentSpanId": "",
                "kind": "SPAN_KIND_CLIENT",
                "startTimeUnixNano": "12",
                "endTimeUnixNano": 13,
                "status": {"code": "STATUS_CODE_ERROR"},
                "events": None,
                "unknown": {"deep": [1]},
                "attributes": [
                    {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                    {"key": "gen_ai.tool.name", "value": {"intValue": "-7", "new": 1}},
                    {"key": "gen_ai.agent.name", "value": {"doubleValue": "NaN"}},
                    {"key": "gen_ai.tool.call.id", "value": None},
                    {"key": "error.type", "value": {"bytesValue": "AAE="}},
                ],
            }
        ).encode()
    )
    found = raw(data)
    assert (found.trace_id, found.parent, found.start, found.end) == (HEX, None, 12, 13)
    assert found.status == 2
    nan = found.attributes.pop("gen_ai.agent.name")
    assert isinstance(nan, float)
    assert math.isnan(nan)
    assert found.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.tool.name": -7,
        "gen_ai.tool.call.id": None,
        "error.type": b"\x00\x01",
    }


def test_json_may_begin_with_blanks_and_the_encoding_may_be_told():
    data = b" \n\t" + json_span()
    assert raw(data).span_id == SPAN.hex()
    assert next(iter(decode(data, "json"))).span_id == SPAN.hex()
    assert next(iter(decode(data, "proto"))).reason == "not_otlp"


@pytest.mark.parametrize("resource_size", [None, 0x22])
def test_a_protobuf_request_that_begins_like_json_is_none(resource_size):
    resource = None
    if resource_size is not None:
        resource = {"k": "x" * (resource_size - 9)}
    for size in range(200):
        span = a_span({}, name="n" * size)
        data = request(span, resource=resource).SerializeToString()
        if data.startswith(b"\n{"):
            assert resource is None or data.startswith(b'\n{\n"')
            assert raw(data).name == span.name
            return
    pytest.fail("no request of that size")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
attributes = st.dictionaries(st.sampled_from(sorted(EXACT)) | st.text(), values, max_size=8)
nanos = st.integers(0, 2**64 - 1)


@settings(max_examples=150, deadline=None)
@given(
    attributes, attributes, nanos, nanos, st.text(), st.integers(0, 2**32 - 1), st.integers(0, 2)
)
def test_protobuf_and_json_of_one_request_give_equal_spans(
    found, resource, start, end, name, flags, code
):
    span = a_span(found, name=name, flags=flags, start_time_unix_nano=start, end_time_unix_nano=end)
    span.status.code, span.status.message = code, name
    message = request(span, resource=resource)
    proto = raw(message.SerializeToString())
    text = raw(json.dumps(as_json(message)).encode())
    assert proto.attributes == text.attributes
    assert normalise(proto) == normalise(text)


# -- what a bad one gives -------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"{}", b" { } ", b'{"resourceSpans":[]}', b'{"resourceSpans":null}']
)
def test_a_message_without_spans_gives_nothing(data):
    assert list(decode(data)) == []


@pytest.mark.parametrize(
    "data",
    [
        b"hello world",
        b"\x00",
        b"\xff" * 50,
        b"[]",
        b"{",
        b'{"a":1}',
        b'{"resourceSpans":7}',
        b"\x1a\x03abc",
        request(a_span()).SerializeToString()[:-1],
        json_span()[:-1],
    ],
)
def test_bytes_that_are_no_trace_request_are_one_dead_letter(data):
    found = bad(data)
    assert (found.reason, found.place, found.data) == ("not_otlp", "", data)
    assert found.detail


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"trace_id": b""}, "trace id is absent, expected 16 bytes"),
        ({"trace_id": bytes(16)}, "trace id is 0000"),
        ({"trace_id": b"\x01" * 8}, "trace id is .* \\(8 bytes\\)"),
        ({"span_id": b""}, "span id is absent, expected 8 bytes"),
        ({"span_id": bytes(8)}, "span id is 0000"),
        ({"span_id": b"\x01" * 16}, "span id is .* \\(16 bytes\\)"),
        ({"parent_span_id": b"\x01" * 7}, "parent span id is .* \\(7 bytes\\)"),
    ],
)
def test_a_span_with_wrong_ids_costs_only_itself(fields, says):
    wrong = a_span(**fields)
    message = request(a_span(), wrong, a_span(span_id=b"\x07" * 8))
    for data in (message.SerializeToString(), json.dumps(as_json(message)).encode()):
        good, found, other = decode(data)
        assert (good.span_id, other.span_id) == (SPAN.hex(), "07" * 8)
        assert (found.reason, found.place) == ("bad_id", "resourceSpans[0].scopeSpans[0].spans[1]")
        assert found.trace_id == (None if "trace_id" in fields else HEX)
    found = list(decode(message.SerializeToString()))[1]
    assert found.data == wrong.SerializeToString()
    assert re.search(says, found.detail)


def test_a_parent_of_zeros_is_no_parent():
    message = request(a_span(parent_span_id=bytes(8)))
    assert raw(message.SerializeToString()).parent is None
    assert raw(json_span(parentSpanId="0" * 16)).parent is None


def broken(old: bytes, new: bytes) -> bytes:
    """A request of three spans of which the middle one has some bytes replaced."""
    middle = a_span({**TOOL, "gen_ai.tool.call.result": "MARK"}, span_id=b"\x02" * 8)
    data = request(
        a_span(span_id=b"\x01" * 8), middle, a_span(span_id=b"\x03" * 8)
    ).SerializeToString()
    assert old in data
    assert len(old) == len(new)
    return data.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"MARK", b"MA\xff\xfe"),  # invalid UTF-8 in a value
        (b"\x0a\x04MARK", b"\x3a\x04MARK"[:1] + b"\x7fMARK"),  # a length beyond the end
        (b"\x0a\x04MARK", b"\x0b\x04MARK"),  # a group that never ends
    ],
)
def test_a_malformed_span_costs_only_itself(old, new):
    first, found, last = decode(broken(old, new))
    assert (first.span_id, last.span_id) == ("01" * 8, "03" * 8)
    assert (found.reason, found.trace_id) == ("malformed", HEX)


def test_invalid_utf8_in_json_costs_only_its_span():
    good = json.dumps({"traceId": HEX, "spanId": "01" * 8}).encode()
    wrong = good.replace(b'"01', b'"02').replace(b"}", b',"name":"\xff"}')
    assert outcomes(wrapped(good, wrong, good)) == ["01" * 8, "malformed", "01" * 8]


def test_half_a_surrogate_pair_in_json_becomes_a_replacement_character():
    data = json_span().replace(b'"x"', rb'"a\ud83d \ud83d\ude00 \\ud83d"')
    assert raw(data).name == "a\ufffd \U0001f600 \\ud83d"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": 5},
        {"startTimeUnixNano": "soon"},
        {"startTimeUnixNano": -1},
        {"endTimeUnixNano": 2**64},
        {"endTimeUnixNano": 1.5},
        {"endTimeUnixNano": "1_0"},
        {"attributes": {"a": 1}},
        {"attributes": [{"key": 7, "value": {}}]},
        {"attributes": [{"key": "gen_ai.tool.name", "value": "get"}]},
        {"attributes": [{"key": "gen_ai.tool.name", "value": {"stringValue": 5}}]},
        {"attributes": [{"key": "gen_ai.tool.name", "value": {"intValue": "9" * 20}}]},
        {"attributes": [{"key": "gen_ai.tool.name", "value": {"bytesValue": "~"}}]},
        {"attributes": [{"key": "gen_ai.tool.name", "value": {"doubleValue": "much"}}]},
        {"events": [7]},
    ],
)
def test_values_of_the_wrong_type_cost_only_their_span(fields):
    good = json.dumps({"traceId": HEX, "spanId": "01" * 8}).encode()
    wrong = json.dumps({"traceId": HEX, "spanId": "02" * 8} | fields).encode()
    first, found, last = decode(wrapped(good, wrong, good))
    assert (first.span_id, last.span_id) == ("01" * 8, "01" * 8)
    assert (found.reason, found.trace_id, found.data) == ("malformed", HEX, wrong)
    assert found.detail


def test_a_span_that_is_no_object_costs_only_itself():
    good = json.dumps({"traceId": HEX, "spanId": "01" * 8}).encode()
    assert outcomes(wrapped(b"7", good, b"null", b"[]")) == [
        "malformed",
        "01" * 8,
        "malformed",
        "malformed",
    ]


def test_an_unreadable_resource_or_scope_costs_only_its_spans():
    bad_resource = request(a_span(), resource={"service.name": "desk-A"}).SerializeToString()
    bad_resource = bad_resource.replace(b"desk-A", b"desk-\xff")
    bad_scope = request(a_span()).SerializeToString().replace(b"lib", b"li\xff")
    good = request(a_span()).SerializeToString()
    assert outcomes(bad_resource + bad_scope + good) == ["not_otlp", "not_otlp", SPAN.hex()]
    data = (
        b'{"resourceSpans":[{"resource":7},{"scopeSpans":[{"scope":[]}]},{"scopeSpans":8},'
        + json_span()[len(b'{"resourceSpans":[') :]
    )
    assert outcomes(data) == ["not_otlp", "not_otlp", "not_otlp", SPAN.hex()]


def test_too_deep_attribute_values_cost_only_their_span():
    deep = a_span(span_id=b"\x02" * 8)
    inner = b""
    for _ in range(5000):  # AnyValue{array_value{values}} by hand: protobuf itself refuses
        inner = b"\x0a" + varint(len(inner)) + inner
        inner = b"\x2a" + varint(len(inner)) + inner
    pair = b"\x0a\x10gen_ai.tool.name\x12" + varint(len(inner)) + inner
    encoded = deep.SerializeToString() + b"\x4a" + varint(len(pair)) + pair
    scope = b"".join(b"\x12" + varint(len(s)) + s for s in (encoded, a_span().SerializeToString()))
    group = b"\x12" + varint(len(scope)) + scope
    data = b"\x0a" + varint(len(group)) + group
    assert outcomes(data) == ["malformed", SPAN.hex()]


def varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found += bytes([number & 0x7F | 0x80])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize("depth", [60, 500, 100_000])
def test_deep_json_costs_only_its_span_and_never_overflows(depth):
    good = json.dumps({"traceId": HEX, "spanId": "01" * 8}).encode()
    value = b'{"arrayValue":{"values":[' * depth + b"{}" + b"]}}" * depth
    deep = good.replace(b"}", b',"attributes":[{"key":"gen_ai.tool.name","value":' + value + b"}]}")
    assert outcomes(wrapped(good, deep, good)) == ["01" * 8, "malformed", "01" * 8]


def test_deep_json_in_a_field_that_nobody_reads_does_no_harm():
    data = json_span().replace(b'"x"', b'"x","y":' + b"[" * 50_000 + b"]" * 50_000)
    assert raw(data).name == "x"


def test_deep_json_that_never_closes_is_no_request():
    assert bad(b'{"resourceSpans":' + b"[" * 100_000).reason == "not_otlp"


@pytest.mark.parametrize(
    ("start", "end", "gives"),
    [
        (0, 0, (0, 0)),
        (10, 5, (10, 10)),
        (2**64 - 1, 2**64 - 1, (2**63 - 1, 2**63 - 1)),
        (0, 4_000_000_000_000_000_000, (0, 4_000_000_000_000_000_000)),
    ],
)
def test_times_are_never_judged(start, end, gives):
    message = request(a_span(start_time_unix_nano=start, end_time_unix_nano=end))
    for data in (message.SerializeToString(), json.dumps(as_json(message)).encode()):
        span = normalise(raw(data))
        assert (span.start, span.end) == gives


def test_a_20_mb_attribute_is_cut_between_characters_with_a_note():
    text = "€" * (20 * 1024 * 1024 // 3)
    message = request(a_span({**TOOL, "gen_ai.tool.call.result": text}))
    found = raw(message.SerializeToString())
    kept = found.attributes["gen_ai.tool.call.result"]
    assert len(kept.encode()) == ATTRIBUTE_LIMIT // 3 * 3
    assert set(kept) == {"€"}
    span = normalise(found)
    assert span.unseen == {"result": "content_truncated"}
    assert f"[cut: {len(text.encode())} bytes, blake2b " in span.result
    other = request(a_span({**TOOL, "gen_ai.tool.call.result": text + "!"})).SerializeToString()
    assert normalise(raw(other)).result != span.result
    assert normalise(raw(json.dumps(as_json(message)).encode())) == span


def test_a_structured_attribute_beyond_the_limit_is_told_to_be_missing():
    value = ["x" * 1000] * (PARSE_LIMIT // 1000)
    message = request(a_span({**TOOL, "gen_ai.tool.call.arguments": value}))
    for data in (message.SerializeToString(), json.dumps(as_json(message)).encode()):
        span = normalise(raw(data))
        assert span.arguments is None
        assert span.unseen == {"arguments": "content_truncated"}


def test_100_000_spans_in_one_message():
    data = request(*[a_span(span_id=n.to_bytes(8, "big")) for n in range(1, 1001)])
    data = data.SerializeToString() * 100
    assert sum(isinstance(span, RawSpan) for span in decode(data)) == 100_000


def test_spans_come_one_by_one_and_are_not_collected():
    data = request(*[a_span(span_id=n.to_bytes(8, "big")) for n in range(1, 1001)])
    data = data.SerializeToString() * 10
    tracemalloc.start()
    try:
        assert sum(1 for _ in decode(data)) == 10_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_more_events_than_any_sdk_sends_count_as_dropped():
    span = a_span()
    for _ in range(1100):
        span.events.add(name="e")
    message = request(span)
    for data in (message.SerializeToString(), json.dumps(as_json(message)).encode()):
        found = raw(data)
        assert (len(found.events), found.dropped) == (1024, 76)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_raise(data):
    list(decode(data))
    list(decode(b'{"resourceSpans":[' + data))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_requests_never_raise(data):
    whole = data.draw(
        st.sampled_from(
            [
                request(a_span(), a_span(), resource={"service.name": "a"}).SerializeToString(),
                json.dumps(as_json(request(a_span(), a_span()))).encode(),
            ]
        )
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + 1 :]
    for found in decode(damaged):
        if isinstance(found, RawSpan):
            normalise(found)


# -- other signals --------------------------------------------------------------------------


def logs(*names: str) -> ExportLogsServiceRequest:
    found = ExportLogsServiceRequest()
    records = found.resource_logs.add().scope_logs.add().log_records
    for name in names:
        record = records.add(time_unix_nano=1_796_000_000_000_000_000, trace_id=TRACE, span_id=SPAN)
        record.body.CopyFrom(any_value({"content": "hi"}))
        if name.startswith("@"):
            record.attributes.append(KeyValue(key="event.name", value=any_value(name[1:])))
        else:
            record.event_name = name
    return found


def test_logs_on_the_traces_topic_are_one_dead_letter():
    message = logs("gen_ai.choice", "gen_ai.user.message")
    for data in (message.SerializeToString(), json.dumps(MessageToDict(message)).encode()):
        found = bad(data)
        assert (found.reason, found.trace_id, found.data) == ("logs", None, data)


def test_metrics_on_the_traces_topic_never_become_spans():
    found = ExportMetricsServiceRequest()
    metric = found.resource_metrics.add().scope_metrics.add().metrics.add(name="m", unit="s")
    metric.gauge.data_points.add(as_int=1, time_unix_nano=5)
    assert outcomes(found.SerializeToString()) == ["bad_id"]
