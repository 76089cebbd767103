from __future__ import annotations

import json

import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streams.split import LOGS, TRACES, cut_json, cut_protobuf

LIMIT = 4096


def request(shape: list[list[list[int]]]) -> ExportTraceServiceRequest:
    """Resources of scopes of spans; a number is the bytes of the span's one attribute."""
    result = ExportTraceServiceRequest()
    count = 0
    for number, scopes in enumerate(shape):
        resource = result.resource_spans.add(schema_url="s")
        resource.resource.attributes.add(key="service.name").value.string_value = f"r{number}"
        for spans in scopes:
            scope = resource.scope_spans.add()
            scope.scope.name = "scope"
            for size in spans:
                count += 1
                span = scope.spans.add(name=str(count), span_id=count.to_bytes(8, "big"))
                span.attributes.add(key="k").value.string_value = "x" * size
    return result


def seen(message: ExportTraceServiceRequest) -> list[tuple[str, str, str]]:
    return [
        (r.resource.attributes[0].value.string_value, s.scope.name, span.name)
        for r in message.resource_spans
        for s in r.scope_spans
        for span in s.spans
    ]


def camel(message) -> dict:
    return json.loads(json.dumps(MessageToDict(message)))


shapes = st.lists(
    st.lists(st.lists(st.integers(0, 3000), max_size=6), max_size=3), min_size=1, max_size=4
)


@given(shapes)
def test_protobuf_keeps_every_span_once_in_order_within_the_limit(shape):
    whole = request(shape)
    expected = seen(whole)
    cut = cut_protobuf(whole, TRACES, LIMIT)
    assert cut.refused == 0
    assert all(len(m) <= LIMIT for m in cut.messages)
    assert [
        x for m in cut.messages for x in seen(ExportTraceServiceRequest.FromString(m))
    ] == expected


@given(shapes)
def test_json_keeps_every_span_once_in_order_within_the_limit(shape):
    whole = request(shape)
    cut = cut_json(camel(whole), TRACES, LIMIT)
    assert cut.refused == 0
    assert all(len(m) <= LIMIT for m in cut.messages)
    names = [
        span["name"]
        for m in cut.messages
        for r in orjson.loads(m)["resourceSpans"]
        for s in r["scopeSpans"]
        for span in s["spans"]
    ]
    assert names == [name for _, _, name in seen(whole)]


def test_a_span_that_is_too_large_loses_its_largest_attributes_and_says_so():
    whole = request([[[10, 50_000, 10]]])
    whole.resource_spans[0].scope_spans[0].spans[1].attributes.add(key="small")
    as_json = camel(whole)
    cut = cut_protobuf(whole, TRACES, LIMIT)
    assert cut.refused == 0
    spans = [
        span
        for m in cut.messages
        for r in ExportTraceServiceRequest.FromString(m).resource_spans
        for span in r.scope_spans[0].spans
    ]
    assert [(s.name, s.dropped_attributes_count) for s in spans] == [("1", 0), ("2", 1), ("3", 0)]
    assert [a.key for a in spans[1].attributes] == ["small"]

    (message,) = cut_json(as_json, TRACES, LIMIT).messages
    big = orjson.loads(message)["resourceSpans"][0]["scopeSpans"][0]["spans"][1]
    assert big["droppedAttributesCount"] == 1
    assert [a["key"] for a in big["attributes"]] == ["small"]


def test_many_attributes_too_large_together():
    whole = request([[[0]]])
    span = whole.resource_spans[0].scope_spans[0].spans[0]
    for number in range(20):
        span.attributes.add(key=str(number)).value.string_value = "x" * 500
    (message,) = cut_protobuf(whole, TRACES, LIMIT).messages
    left = ExportTraceServiceRequest.FromString(message).resource_spans[0].scope_spans[0].spans[0]
    assert left.dropped_attributes_count + len(left.attributes) == 21
    assert 4 <= len(left.attributes) < 20


def test_an_oversized_json_span_with_misshapen_lists_is_refused():
    span = {"name": "x" * 9000, "attributes": 3, "events": {"a": 1}, "droppedAttributesCount": "x"}
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span, {"name": "ok"}]}]}]}
    cut = cut_json(document, TRACES, LIMIT)
    assert cut.refused == 1
    assert [b"ok" in m for m in cut.messages] == [True]


def test_events_go_too():
    whole = request([[[0]]])
    span = whole.resource_spans[0].scope_spans[0].spans[0]
    span.events.add(name="x" * 9000)
    (message,) = cut_protobuf(whole, TRACES, LIMIT).messages
    left = ExportTraceServiceRequest.FromString(message).resource_spans[0].scope_spans[0].spans[0]
    assert (left.dropped_events_count, len(left.attributes)) == (1, 1)


def test_what_cannot_fit_is_refused_and_the_others_stay():
    whole = request([[[1, 1, 1]]])
    whole.resource_spans[0].scope_spans[0].spans[1].name = "n" * 9000
    as_json = camel(whole)
    cut = cut_protobuf(whole, TRACES, LIMIT)
    assert cut.refused == 1
    (message,) = cut.messages
    assert [n for _, _, n in seen(ExportTraceServiceRequest.FromString(message))] == ["1", "3"]
    assert cut_json(as_json, TRACES, LIMIT).refused == 1


def test_a_resource_that_fills_the_limit_refuses_its_spans():
    whole = request([[[1, 1]], [[1]]])
    whole.resource_spans[0].resource.attributes[0].value.string_value = "r" * 9000
    cut = cut_protobuf(whole, TRACES, LIMIT)
    assert (cut.refused, len(cut.messages)) == (2, 1)


@pytest.mark.parametrize(
    ("document", "refused"),
    [
        ({}, 0),
        ({"resourceSpans": 3}, 1),
        ({"resourceSpans": [3, None]}, 2),
        ({"resourceSpans": [{"scopeSpans": [{"spans": "x"}]}]}, 1),
        ({"resourceSpans": [{"scopeSpans": {"spans": []}}]}, 1),
    ],
)
def test_misshapen_json_is_counted(document, refused):
    cut = cut_json(document, TRACES, LIMIT)
    assert (cut.refused, cut.messages) == (refused, [])


def test_logs():
    whole = ExportLogsServiceRequest()
    records = whole.resource_logs.add().scope_logs.add().log_records
    for _ in range(10):
        records.add().body.string_value = "x" * 1000
    as_json = camel(whole)
    cut = cut_protobuf(whole, LOGS, LIMIT)
    sizes = [
        sum(len(r.scope_logs[0].log_records) for r in part.resource_logs)
        for part in map(ExportLogsServiceRequest.FromString, cut.messages)
    ]
    assert sum(sizes) == 10
    assert max(sizes) <= 4
    assert sum(m.count(b'"body"') for m in cut_json(as_json, LOGS, LIMIT).messages) == 10
