from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.model import Message, Span
from monitor.semconv import EXACT, RawEvent, RawSpan, Resource, normalise, resource
from monitor.semconv.limits import NAME_LIMIT, SPAN_LIMIT

TRACE, SPAN, PARENT = "ab" * 16, "cd" * 8, "ef" * 8
OPERATION = "gen_ai.operation.name"


def span(attributes: dict, **fields) -> Span:
    return normalise(
        RawSpan(
            **{"trace_id": TRACE, "span_id": SPAN, "parent": PARENT, "attributes": attributes}
            | fields
        )
    )


def tool(attributes: dict | None = None, **fields) -> Span:
    return span(
        {OPERATION: "execute_tool", "gen_ai.tool.name": "get_ticket"} | (attributes or {}), **fields
    )


def text(role: str, content: str) -> dict:
    return {"role": role, "parts": [{"type": "text", "content": content}]}


def chat(outputs: object = None, inputs: object = None, **fields) -> Span:
    attributes: dict = {OPERATION: "chat"}
    if outputs is not None:
        attributes["gen_ai.output.messages"] = json.dumps(outputs)
    if inputs is not None:
        attributes["gen_ai.input.messages"] = json.dumps(inputs)
    return span(attributes, **fields)


# -- which span is what ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("chat", "llm"),
        ("generate_content", "llm"),
        ("text_completion", "llm"),
        ("execute_tool", "tool"),
        ("invoke_agent", "agent"),
        ("invoke_workflow", "agent"),
        ("create_agent", "other"),
        ("embeddings", "other"),
        ("CHAT", "other"),
        ("", "other"),
        (7, "other"),
        (["chat"], "other"),
        (None, "other"),
    ],
)
def test_the_operation_says_what_a_span_is(operation, kind):
    assert span({OPERATION: operation}).kind == kind


def test_a_span_without_agent_meaning_keeps_its_place_and_no_content():
    found = span(
        {OPERATION: "create_agent", "gen_ai.agent.name": "x", "gen_ai.input.messages": "[]"},
        name="create_agent x",
        flags=0x300,
        start=3,
        end=4,
        status=2,
        resource=Resource("desk", {"service.name": "desk"}),
    )
    assert found == Span(
        TRACE,
        SPAN,
        "other",
        name="create_agent x",
        parent=PARENT,
        remote=True,
        start=3,
        end=4,
        service="desk",
        attributes={"service.name": "desk"},
    )


@pytest.mark.parametrize(
    "attributes",
    [
        {OPERATION: "execute_tool", "gen_ai.tool.name": "(merged tools)"},
        {OPERATION: "chat", "logfire.span_type": "pending_span"},
    ],
)
def test_spans_that_only_look_like_work_are_skeletons(attributes):
    assert span(attributes).kind == "other"


@pytest.mark.parametrize(
    ("attributes", "agent"),
    [
        ({OPERATION: "invoke_agent", "gen_ai.agent.name": "a"}, "a"),
        ({OPERATION: "invoke_workflow", "gen_ai.workflow.name": "w"}, "w"),
        ({OPERATION: "invoke_workflow", "gen_ai.agent.name": "a"}, "a"),
        ({OPERATION: "chat", "gen_ai.agent.name": "a"}, "a"),
        ({OPERATION: "invoke_agent", "gen_ai.agent.name": " "}, None),
        ({OPERATION: "invoke_agent"}, None),
    ],
)
def test_the_agent_that_a_span_names(attributes, agent):
    assert span(attributes).agent == agent


# -- tools ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("true", "true"),
        ("null", "null"),
        (True, "true"),
        (5, "5"),
        ("mcp__foo.bar", "mcp__foo.bar"),
    ],
)
def test_names_and_ids_stay_text(value, name):
    found = tool({"gen_ai.tool.name": value, "gen_ai.tool.call.id": value})
    assert (found.tool, found.call_id) == (name, name)


@pytest.mark.parametrize("value", [None, "", "  ", ["a"], {"a": "b"}, b"a"])
def test_a_tool_without_a_name_is_named_by_its_span(value):
    found = tool(
        {"gen_ai.tool.name": value, "gen_ai.tool.call.id": value}, name="execute_tool get_order"
    )
    assert (found.tool, found.call_id) == ("get_order", None)


def test_long_names_stay_different_and_never_equal_a_short_one():
    short = "x" * NAME_LIMIT
    found = {tool({"gen_ai.tool.name": short + end}).tool for end in ("", "a", "b")}
    assert len(found) == 3
    assert max(map(len, found)) <= NAME_LIMIT


@pytest.mark.parametrize("value", ['{"id": 7}', {"id": 7}, json.dumps('{"id": 7}'), ' {"id":7}\n'])
def test_arguments_come_as_an_object_as_json_or_encoded_twice(value):
    found = tool({"gen_ai.tool.call.arguments": value, "gen_ai.tool.call.result": value})
    assert (found.arguments, found.result, found.unseen) == ('{"id":7}', '{"id":7}', {})


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("[1, 2]", "[1,2]"),
        ("5", "5"),
        ("{'id': 7}", '{"id":7}'),
        ("{'id': Ticket(7)}", "{'id': Ticket(7)}"),
        (["a"], '["a"]'),
        (True, "true"),
    ],
)
def test_arguments_and_results_that_are_no_object_are_kept(value, kept):
    found = tool({"gen_ai.tool.call.arguments": value, "gen_ai.tool.call.result": value})
    assert (found.arguments, found.result) == (kept, kept)


def test_what_a_tool_span_does_not_show_is_none():
    assert (tool().arguments, tool().result, tool().unseen) == (None, None, {})


def test_redacted_content_is_hidden():
    found = tool(
        {"gen_ai.tool.call.arguments": "__REDACTED__", "gen_ai.tool.call.result": "<elided>"}
    )
    assert (found.arguments, found.result) == (None, None)
    assert found.unseen == {"arguments": "content_hidden", "result": "content_hidden"}


def test_dropped_attributes_are_the_reason_only_of_what_is_missing():
    found = tool({"gen_ai.tool.call.arguments": "{}"}, dropped=2)
    assert found.unseen == {"result": "attributes_dropped"}
    assert chat(dropped=1).unseen == {
        "input": "attributes_dropped",
        "output": "attributes_dropped",
    }
    assert chat([text("assistant", "a")], [text("user", "u")], dropped=1).unseen == {}


# -- failures -------------------------------------------------------------------------------


def exception(message: object = "boom", kind: str = "ValueError") -> RawEvent:
    return RawEvent("exception", {"exception.message": message, "exception.type": kind})


@pytest.mark.parametrize(
    ("fields", "attributes", "error"),
    [
        ({}, {}, None),
        ({"status": 1, "status_message": "fine"}, {}, None),
        ({"status": 2}, {}, ""),
        ({"status": 2, "status_message": "no"}, {}, "no"),
        ({"status": 2, "status_message": "no"}, {"error.type": "T"}, "no"),
        ({}, {"error.type": "T"}, "T"),
        ({"status": 2, "status_message": "no", "events": (exception(),)}, {}, "boom"),
        ({"status": 1, "events": (exception(),)}, {}, "boom"),
        ({"events": (exception("first"), exception("last"))}, {}, "last"),
        ({"events": (exception(None),)}, {}, "ValueError"),
        ({"events": (exception(" "),), "status_message": "told"}, {}, "told"),
        ({"events": (RawEvent("exception"),)}, {}, ""),
        ({"events": (RawEvent("note", {"exception.message": "x"}),)}, {}, None),
        ({"events": (exception("[REDACTED]"),)}, {"error.type": "T"}, "T"),
    ],
)
def test_a_failure_is_told_in_many_ways(fields, attributes, error):
    assert tool(attributes, **fields).error == error


def test_a_failed_tool_keeps_its_result():
    found = tool({"gen_ai.tool.call.result": "no such ticket"}, status=2, status_message="failed")
    assert (found.error, found.result) == ("failed", "no such ticket")


# -- messages -------------------------------------------------------------------------------


@pytest.mark.parametrize("outputs", [None, [], [{"role": "assistant", "parts": []}]])
def test_a_model_call_that_shows_no_output_hides_it(outputs):
    assert chat(outputs).unseen["output"] == "content_hidden"


def test_a_model_call_that_shows_its_output_alone_hides_what_it_was_asked():
    assert chat([text("assistant", "4")]).unseen == {"input": "content_hidden"}


def test_a_blank_answer_is_seen_and_blank():
    found = chat([text("assistant", " ")])
    assert found.outputs == (Message("assistant", " "),)
    assert "output" not in found.unseen


def test_the_role_of_a_tool_result_may_be_user():
    part = {"type": "tool_call_response", "id": "c1", "result": {"a": 1}}
    found = chat([text("assistant", "a")], [{"role": "user", "parts": [part]}])
    assert found.inputs[0].role == "tool"
    assert found.inputs[0].results[0].result == '{"a":1}'


@pytest.mark.parametrize(
    ("asked", "named", "expected"),
    [
        (["fc_1", "fc_2"], ["call_a", "call_b"], ["fc_1", "fc_2"]),
        (["fc_1", "fc_2"], ["call_a"], ["call_a"]),
        (["fc_1", "fc_2"], ["fc_2", "fc_1"], ["fc_2", "fc_1"]),
        (["call_a", "call_b"], ["call_b", "call_a"], ["call_b", "call_a"]),
        (["c1"], ["c2"], ["c2"]),
        (["fc_1", "fc_2"], ["call_a", "call_a"], ["call_a", "call_a"]),
    ],
)
def test_a_result_that_names_its_call_and_not_the_item_is_told_by_its_order(asked, named, expected):
    inputs = [text("user", "please")]
    for item in asked:
        part = {"type": "tool_call", "id": item, "name": "a", "arguments": {}}
        inputs.append({"role": "assistant", "parts": [part]})
    for call in named:
        part = {"type": "tool_call_response", "id": call, "response": "ok"}
        inputs.append({"role": "tool", "parts": [part]})
    found = chat(
        [text("assistant", "done")], inputs, scope="opentelemetry.instrumentation.openai.v1"
    )
    assert [r.call_id for m in found.inputs for r in m.results] == expected
    assert [c.call_id for m in found.inputs for c in m.calls] == asked


def test_instructions_beside_the_history_are_its_first_message():
    attributes = {
        OPERATION: "chat",
        "gen_ai.system_instructions": '[{"type":"text","content":"be kind"}]',
        "gen_ai.input.messages": json.dumps([text("user", "u")]),
    }
    assert [m.text for m in span(attributes).inputs] == ["be kind", "u"]
    attributes["gen_ai.system_instructions"] = "be brief"
    assert span(attributes).inputs[0] == Message("system", "be brief")
    attributes["gen_ai.system_instructions"] = "[REDACTED]"
    assert [m.role for m in span(attributes).inputs] == ["user"]
    assert span(attributes).unseen["input"] == "content_hidden"


def test_an_agent_span_tells_the_last_request_and_what_came_of_it():
    run = [text("user", "old"), text("assistant", "x"), text("user", "new")]
    attributes = {
        OPERATION: "invoke_agent",
        "gen_ai.input.messages": json.dumps(run),
        "gen_ai.output.messages": json.dumps([text("assistant", "done")]),
    }
    found = span(attributes)
    assert found.inputs == (Message("user", "new"),)
    assert found.outputs == (Message("assistant", "done"),)
    attributes = {
        OPERATION: "invoke_agent",
        "pydantic_ai.all_messages": json.dumps([*run, text("assistant", "done")]),
        "pydantic_ai.new_message_index": 2,
    }
    assert span(attributes) == found
    attributes["final_result"] = '{"answer": 5}'
    assert span(attributes).outputs == (Message("assistant", '{"answer":5}'),)
    assert span({OPERATION: "invoke_agent"}).unseen == {}


# -- the world is hostile -------------------------------------------------------------------


def test_resource_attributes_are_scalar_bounded_and_keep_the_service():
    found = resource(
        {f"k{n:02}": n for n in range(60)}
        | {"service.name": "desk", "telemetry.sdk.name": "o", "on": True, "list": [1], "none": None}
        | {"long": "x" * 300, "y" * 300: "v", "blank": " "}
    )
    assert found.service == "desk"
    assert len(found.attributes) == 32
    assert found.attributes["k00"] == "0"
    assert not {"list", "none", "long", "blank", "telemetry.sdk.name"} & set(found.attributes)
    assert resource({"on": True}).attributes == {"on": "true"}
    assert resource({"service.name": "x" * 300}).service is None


part = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "tool_call", "tool_call_response", "reasoning", "x"])
        | st.none()
        | st.integers(),
        "content": st.text() | st.none() | st.integers() | st.lists(st.text()),
        "id": st.text() | st.none() | st.booleans(),
        "name": st.text() | st.none() | st.booleans(),
        "arguments": st.text() | st.none() | st.dictionaries(st.text(), st.integers()),
        "result": st.text() | st.none() | st.lists(st.integers()),
    },
)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "tool", "system", "model"]) | st.integers(),
        "parts": st.lists(part | st.integers(), max_size=4) | st.none() | st.text(),
        "content": st.text() | st.none(),
    },
)
conversation = st.lists(message | st.none(), max_size=6).map(json.dumps)
cut_off = st.tuples(conversation, st.integers(0, 400)).map(lambda pair: pair[0][: pair[1]])
scalar = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
value = (
    conversation
    | cut_off
    | st.recursive(
        scalar, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3)
    )
)


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from(["chat", "execute_tool", "invoke_agent", "invoke_workflow"]),
    st.dictionaries(st.sampled_from(sorted(EXACT)), value, max_size=8),
    st.booleans(),
    st.integers(),
    st.integers(),
)
def test_normalise_never_fails_and_says_what_is_missing(operation, attributes, child, start, end):
    found = span(
        {**attributes, OPERATION: operation},
        parent=PARENT if child else None,
        start=start,
        end=end,
        events=(RawEvent("exception", attributes),),
    )
    assert 0 <= found.start <= found.end < 2**63
    assert len(msgspec.msgpack.encode(found)) <= SPAN_LIMIT
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Span) == found
    told = [m for m in found.outputs if m.text is not None or m.calls or m.results]
    assert found.kind != "llm" or told or "output" in found.unseen or found.error is not None
