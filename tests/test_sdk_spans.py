from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from streams.sdk_spans import requests

LIMIT = 1_000_000


def recorded(*spans, **limits):
    """Finished spans, each given as (name, attributes)."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("t", "1")
    for name, attributes in spans:
        with tracer.start_as_current_span(name, attributes=attributes) as span:
            span.add_event(name, attributes)
    return memory.get_finished_spans()


def read(value):
    message = ExportTraceServiceRequest.FromString(value)
    return [s for r in message.resource_spans for c in r.scope_spans for s in c.spans]


def test_spans_that_fit_are_one_request():
    [(value, count)] = requests(recorded(("a", {"k": 1}), ("b", {})), LIMIT)
    assert count == 2
    assert [s.name for s in read(value)] == ["a", "b"]


def test_what_is_too_large_for_one_request_becomes_several():
    spans = recorded(*[(f"s{n}", {"k": "x" * 20_000}) for n in range(9)])
    found = list(requests(spans, 100_000))
    assert sum(count for _, count in found) == 9
    assert all(len(value) <= 100_000 for value, _ in found)
    assert [s.name for value, _ in found for s in read(value)] == [f"s{n}" for n in range(9)]


def test_a_span_that_is_too_large_alone_loses_its_largest_parts_and_says_so():
    spans = recorded(("a", {"long": "x" * 200_000, "short": "y"}))
    [(value, _)] = requests(spans, 100_000)
    [span] = read(value)
    assert span.dropped_attributes_count + span.dropped_events_count == 2
    assert [a.key for a in span.attributes] == ["short"]


def test_a_span_that_fits_nowhere_is_told():
    assert list(requests(recorded(("n" * 200_000, {})), 100_000)) == [(None, 1)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("a\ud83d\ude00b", "a\U0001f600b"),
        (2**63, "0x8000000000000000"),
        (-(2**70), "-0x400000000000000000"),
    ],
)
def test_a_value_that_protobuf_cannot_hold_is_mended(value, shown):
    [(raw, _)] = requests(recorded(("a", {"bad": value, "good": "g"})), LIMIT)
    [span] = read(raw)
    assert {a.key: a.value.string_value for a in span.attributes} == {"bad": shown, "good": "g"}
    [event] = span.events
    assert event.attributes[0].value.string_value == shown


def test_bad_text_in_a_list_and_in_a_name_is_mended():
    [(raw, _)] = requests(recorded(("a", {"l": ["x", "\udfff"]}), ("n\ud800", {})), LIMIT)
    first, second = read(raw)
    values = first.attributes[0].value.array_value.values
    assert ([v.string_value for v in values], second.name) == (["x", "\ufffd"], "n\ufffd")


def test_a_mended_span_keeps_its_dropped_counts():
    spans = recorded(("a", {"x": 1, "y": 2, "bad": "\ud800"}), max_span_attributes=2)
    [(raw, _)] = requests(spans, LIMIT)
    assert read(raw)[0].dropped_attributes_count == 1


def test_a_span_that_cannot_be_encoded_does_not_take_the_others_along(monkeypatch):
    import streams.sdk_spans as m

    whole = m.encode_spans

    def encode(spans):
        if any(span.name == "bad" for span in spans):
            raise RecursionError
        return whole(spans)

    monkeypatch.setattr(m, "encode_spans", encode)
    found = list(requests(recorded(("a", {}), ("bad", {}), ("c", {})), LIMIT))
    assert [s.name for value, _ in found if value for s in read(value)] == ["a", "c"]
    assert sum(count for value, count in found if value is None) == 1
