from __future__ import annotations

import json
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from monitor.model import Message, RequestedCall, Span
from monitor.prefix import derive
from monitor.semconv import RawLog, Value
from monitor.semconv.events import NAMES
from monitor.semconv.logs import normalise_logs
from streams.otlp import BadSpan, decode_logs
from tests.traces import ROOT, SECOND, TRACE, llm, root, span_id, tool

CAPTURES = Path(__file__).parent / "captures"
FILES = sorted(CAPTURES.glob("*/*/*.logs.pb"))
ID = span_id(1)


def request(*bodies: tuple[str, object], trace: str = TRACE, span: str = ID) -> bytes:
    message = ExportLogsServiceRequest()
    group = message.resource_logs.add()
    group.resource.attributes.add(key="service.name").value.string_value = "svc"
    scope = group.scope_logs.add()
    for number, (name, text) in enumerate(bodies):
        record = scope.log_records.add(
            trace_id=bytes.fromhex(trace),
            span_id=bytes.fromhex(span),
            event_name=name,
            observed_time_unix_nano=SECOND + number,
        )
        record.body.kvlist_value.values.add(key="content").value.string_value = str(text)
    return message.SerializeToString()


def as_json(data: bytes) -> bytes:
    """The JSON mapping of OTLP: ids in hex."""
    found = MessageToDict(ExportLogsServiceRequest.FromString(data))
    for group in found["resourceLogs"]:
        for scope in group["scopeLogs"]:
            for record, told in zip(
                scope["logRecords"],
                ExportLogsServiceRequest.FromString(data)
                .resource_logs[0]
                .scope_logs[0]
                .log_records,
                strict=True,
            ):
                record["traceId"], record["spanId"] = told.trace_id.hex(), told.span_id.hex()
    return json.dumps(found).encode()


def log(name: str, body: Value, time: int, *, span: str = ID, **attributes: Value) -> RawLog:
    return RawLog(TRACE, span, name, time, body, attributes)


USER = log("gen_ai.user.message", {"content": "q"}, 1)
CALLS = [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": '{"a": 1}'}}]
ASKS = log("gen_ai.choice", {"index": 0, "message": {"tool_calls": CALLS}}, 2)


@pytest.mark.parametrize("path", FILES[::7], ids=lambda path: "/".join(path.parts[-3:]))
def test_recorded_records_tell_messages(path):
    found = list(decode_logs(path.read_bytes()))
    assert all(isinstance(record, RawLog) for record in found)
    assert {record.name for record in found} <= NAMES


def test_protobuf_and_json_give_equal_records():
    data = request(("gen_ai.user.message", "q"), ("gen_ai.choice", "a"))
    assert list(decode_logs(data)) == list(decode_logs(as_json(data)))
    assert [record.body for record in decode_logs(data)] == [{"content": "q"}, {"content": "a"}]


def test_a_record_that_belongs_to_no_span_costs_only_itself():
    bad = request(("gen_ai.choice", "a"), span="00" * 8)
    good = request(("gen_ai.choice", "b"))
    for found in (list(decode_logs(bad + good)), list(decode_logs(as_json(bad)))):
        assert isinstance(found[0], BadSpan)
        assert (found[0].reason, found[0].place[:15]) == ("bad_id", "resourceLogs[0]")
    assert isinstance(list(decode_logs(bad + good))[1], RawLog)


def test_a_malformed_record_costs_only_itself():
    data = request(("gen_ai.choice", "abcdef"), ("gen_ai.choice", "kept"))
    found = list(decode_logs(data.replace(b"abcdef", b"\xff\xfe\xfd\xfc\xfb\xfa")))
    assert [type(record) for record in found] == [BadSpan, RawLog]
    assert found[0].reason == "malformed"


@pytest.mark.parametrize(
    "data", [b"junk", b"{", b'{"resourceLogs": 7}', b"[]", b'{"resourceSpans": []}']
)
def test_what_is_no_logs_request_is_one_dead_letter(data):
    (found,) = decode_logs(data)
    assert (found.reason, found.place, found.data) == ("not_otlp", "", data)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_raise(junk, at):
    whole = request(("gen_ai.user.message", "q"), ("gen_ai.choice", "a"))
    list(decode_logs(junk))
    list(decode_logs(whole[:at] + junk + whole[at + len(junk) :]))
    list(decode_logs(as_json(whole)[:at]))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            RawLog,
            st.just(TRACE),
            st.sampled_from([ID, ROOT]),
            st.sampled_from(sorted(NAMES)),
            st.integers(0, 5),
            values | st.fixed_dictionaries({"message": values, "content": values}),
            st.dictionaries(
                st.sampled_from(["gen_ai.input.messages", "gen_ai.output.messages"]), values
            ),
        ),
        max_size=6,
    )
)
def test_no_record_makes_normalising_fail(records):
    for span in normalise_logs(records):
        assert span.kind == "log"
        assert span.parent in (ID, ROOT)
        assert span.inputs or span.outputs


def told(*records: RawLog) -> list[Span]:
    return list(normalise_logs(records))


def test_records_of_a_span_become_its_messages_in_order_of_time():
    hidden = llm(1, unseen={"output": "content_hidden"})
    spans = {s.span_id: s for s in (root(), hidden, tool(2, "c1", "get"), *told(ASKS), *told(USER))}
    prefix = derive(spans)
    (turn,) = prefix.turns
    assert turn.span.inputs == (Message("user", "q"),)
    assert turn.span.outputs == (
        Message("assistant", None, (RequestedCall("get", "c1", '{"a":1}'),)),
    )
    assert turn.hidden is None
    assert [(call.tool, call.requested, call.executed) for call in prefix.calls] == [
        ("get", True, True)
    ]


def test_records_of_an_unknown_span_stand_for_it_and_the_run_is_not_over():
    spans = {s.span_id: s for s in (root(), *told(USER, ASKS))}
    prefix = derive(spans)
    assert [call.tool for call in prefix.calls] == ["get"]
    assert prefix.missing


def test_what_a_span_shows_itself_goes_before_its_records():
    own = llm(1, ans="own words", user="q")
    prefix = derive({s.span_id: s for s in (root(), own, *told(USER, ASKS))})
    assert [turn.text for turn in prefix.turns] == ["own words"]


def test_a_second_copy_of_records_is_the_same():
    (one,) = told(USER, ASKS)
    (other,) = told(ASKS, USER)
    assert one == other


def test_the_event_with_all_details_is_read_like_a_span():
    details = log(
        "gen_ai.client.inference.operation.details",
        None,
        3,
        **{
            "gen_ai.output.messages": [
                {"role": "assistant", "parts": [{"type": "text", "content": "a"}]}
            ]
        },
    )
    (found,) = told(details)
    assert found.outputs == (Message("assistant", "a"),)


def test_details_without_content_tell_nothing():
    name = "gen_ai.client.inference.operation.details"
    assert told(log(name, None, 1, **{"gen_ai.agent.name": "desk"})) == []


def test_a_long_history_in_records_is_trimmed():
    history = [USER]
    for n in range(40):
        call = [{"id": f"c{n}", "function": {"name": "get", "arguments": "{}"}}]
        history.append(log("gen_ai.assistant.message", {"tool_calls": call}, 10 + 2 * n))
        history.append(
            log("gen_ai.tool.message", {"id": f"c{n}", "content": "x" * 1000}, 11 + 2 * n)
        )
    (found,) = told(*history)
    assert [message.role for message in found.inputs] == ["user", "assistant", "tool"]
    assert (found.omitted.count, found.omitted.at) == (78, 1)
