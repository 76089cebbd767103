"""How systems like ours failed in production, each as a regression test of what must happen instead.

Named after what was seen there; the references are to public issues.
"""

from __future__ import annotations

import json

import msgspec
import pytest

from monitor.model import Message, RequestedCall
from monitor.prefix import derive
from monitor.semconv import RawSpan, normalise
from monitor.semconv.limits import ATTRIBUTE_LIMIT, SPAN_LIMIT
from monitor.story import final_answer, steps
from tests.captures_scoreboard import inspected
from tests.test_captures import arrivals
from tests.traces import SECOND, Run, contract, llm, root, says, span_id, tool

OPERATION = "gen_ai.operation.name"


def raw(number: int, operation: str, **more: object) -> RawSpan:
    attributes = {OPERATION: operation, **more.pop("attributes", {})}
    return RawSpan("ab" * 16, span_id(number), attributes=attributes, **more)


def test_huge_spans_drop_whole_batches():
    """otel-collector-contrib #36982: a 20 MB attribute is cut with a digest, and told."""
    messages = [{"role": "user", "parts": [{"type": "text", "content": "x" * 20_000_000}]}]
    found = normalise(raw(1, "chat", attributes={"gen_ai.input.messages": json.dumps(messages)}))
    assert len(msgspec.msgpack.encode(found)) < SPAN_LIMIT
    assert found.unseen["input"] == "content_truncated"


@pytest.mark.parametrize("skew", [-3600, 3600])
def test_clock_skew_reorders_nothing(skew):
    """jaeger #1459: the tools' host is an hour off."""

    def run(moved: int) -> list[tuple[str | None, str]]:
        away = {"service": "tools", "remote": True}
        ids = {"c1": 2, "c2": 4}
        spans = [
            root(),
            llm(1, req=[("c1", "search")], user="q"),
            llm(3, req=[("c2", "get")], history=[("c1", "search", "ok")]),
            llm(5, ans="done", history=[("c2", "get", "ok")]),
        ]
        spans += [
            msgspec.structs.replace(
                tool(at, call_id, name, **away),
                start=(at + moved) * SECOND,
                end=(at + moved + 1) * SECOND,
            )
            for (call_id, at), name in zip(ids.items(), ["search", "get"], strict=True)
        ]
        return [(s.tool, s.type) for s in steps(derive({s.span_id: s for s in spans}))]

    assert run(skew) == run(0)


def test_late_spans_are_never_re_evaluated():
    """phoenix #15554: a forbidden call that arrives after the close gives a revision."""
    run = Run(contract(forbidden_tools=["purge"], grounding="off"))
    run.feed(root(), llm(1, ans="done", user="q"))
    run.close()
    assert (run.label.verdict, run.label.phase) == ("trusted", "final")
    before = run.label.revision
    told = says(run.feed(tool(0, "c9", "purge")))
    assert told == ["+TOOL_FORBIDDEN", "violated final"]
    assert run.label.revision == before + 1


def test_duplicate_spans_of_stacked_instrumentors():
    """openinference #2101: three layers over two services report one call."""
    found = inspected("pydantic-ai-2.68.0-mcp-2.3.0", "ok_parallel").trajectories
    (run,) = [judged for judged in found if judged.prefix.calls]
    assert [call.tool for call in run.prefix.calls] == ["get_ticket", "get_item", "get_order"]
    assert {len(call.spans) for call in run.prefix.calls} == {3}


def test_two_instrumentations_of_one_model_call_are_one_turn():
    outer = llm(1, req=[("c1", "search")], user="q", end=9 * SECOND)
    inner = llm(2, req=[("c1", "search")], user="q", parent=outer.span_id, end=8 * SECOND)
    prefix = derive({s.span_id: s for s in (root(), outer, inner, tool(3, "c1", "search"))})
    assert [call.tool for call in prefix.calls] == ["search"]


def test_two_identical_calls_made_on_purpose_stay_two():
    spans = [
        root(),
        llm(1, req=[("c1", "roll"), ("c2", "roll")], user="q"),
        tool(2, "c1", "roll", 3),
        tool(3, "c2", "roll", 3),
    ]
    assert len(derive({s.span_id: s for s in spans}).calls) == 2


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (json.dumps(json.dumps({"sku": "KB-77"})), '{"sku":"KB-77"}'),
        ("{'sku': 'KB-77', 'n': 499.00}", '{"sku":"KB-77","n":499.00}'),
        ('{"args": [], "kwargs": {"sku": "KB-77"}}', '{"sku":"KB-77"}'),
        ('{"input_str": "{\'sku\': \'KB-77\'}", "tags": []}', '{"sku":"KB-77"}'),
        ("sku=KB-77", "sku=KB-77"),
        ("[1, 2]", "[1,2]"),
        ('{"args": [1], "kwargs": {}, "mode": 2}', '{"args":[1],"kwargs":{},"mode":2}'),
    ],
)
def test_arguments_encoded_twice_or_not_as_json(told, read):
    """openinference #3143, trpc-agent-go #1055."""
    attributes = {"gen_ai.tool.name": "get", "gen_ai.tool.call.arguments": told}
    assert normalise(raw(1, "execute_tool", attributes=attributes)).arguments == read


def test_a_bare_value_takes_the_parameters_name_from_the_request():
    spans = [
        root(),
        llm(1, req=[("c1", "get", {"id": "A"}), ("c2", "get", {"id": "B"})], user="q"),
        tool(2, None, "get", "b", arguments="B"),
        tool(3, None, "get", "a", arguments="A"),
    ]
    calls = derive({s.span_id: s for s in spans}).calls
    assert [(c.call_id, c.arguments, c.result) for c in calls] == [
        ("c1", '{"id": "A"}', "a"),
        ("c2", '{"id": "B"}', "b"),
    ]


def test_orphans_of_a_root_that_was_never_exported():
    """langwatch tasks #457: still one trajectory, and never trusted."""
    run = Run(contract(allowed_tools=["search"], grounding="off"))
    run.feed(llm(1, req=[("c1", "search")], user="q"), tool(2, "c1", "search"))
    run.feed(llm(3, ans="done", history=[("c1", "search", "ok")]))
    run.close("idle")
    assert (run.label.verdict, run.label.steps) == ("unassessed", 3)
    assert run.label.coverage.reasons == ("missing_span",)


def test_an_orphans_output_or_a_tools_result_is_taken_as_the_answer():
    """phoenix #15940, nemo-platform #1717: the answer is the run's last assistant text."""
    inner = "f000000000000009"
    spans = [
        tool(9, "c9", "search", "a result that came last"),
        llm(1, req=[("c1", "ask")], user="q"),
        tool(2, "c1", "ask", "inner words", end=7 * SECOND),
        root("helper", span=inner, start=3, parent=span_id(2), end=6 * SECOND),
        llm(4, ans="inner words", parent=inner),
        llm(8, ans="the answer", history=[("c1", "ask", "inner words")]),
        root(),
    ]
    assert final_answer(derive({s.span_id: s for s in spans})) == "the answer"


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"status": 2}, {}),
        ({"status": 2, "status_message": "boom"}, {}),
        ({}, {"error.type": "tool_error"}),
        ({}, {"gen_ai.tool.call.result": '{"error": "no such item"}'}),
        ({}, {"gen_ai.tool.call.result": "Error executing tool get: boom"}),
        (
            {},
            {
                "gen_ai.tool.call.result": '{"content": [{"type": "text", "text": "x"}], "isError": true}'
            },
        ),
        ({}, {"gen_ai.tool.status": "error"}),
    ],
)
def test_an_errored_tool_counted_as_success(fields, attributes):
    """agentevals #169."""
    told = {"gen_ai.tool.name": "get", **attributes}
    assert normalise(raw(1, "execute_tool", attributes=told, **fields)).error is not None


@pytest.mark.parametrize(
    "result",
    [
        '{"status": "not_found"}',
        '{"error": null, "id": 7}',
        '{"errors": 0}',
        "No items found.",
        "[]",
    ],
)
def test_a_payload_that_says_not_found_is_an_ordinary_result(result):
    told = {"gen_ai.tool.name": "get", "gen_ai.tool.call.result": result}
    assert normalise(raw(1, "execute_tool", attributes=told)).error is None


def test_a_cap_in_bytes_over_64_k_emoji():
    """macro #6272."""
    told = {"gen_ai.tool.name": "get", "gen_ai.tool.call.result": "\N{GRINNING FACE}" * 65_536}
    found = normalise(raw(1, "execute_tool", attributes=told))
    assert len(found.result.encode()) <= ATTRIBUTE_LIMIT
    assert found.result.startswith("\N{GRINNING FACE}" * 1000)
    assert found.unseen == {"result": "content_truncated"}


def test_a_rule_for_one_namespace_matches_another():
    """qwen-code #10199: mcp__foo.bar is not mcp__foo_bar__evil."""
    run = Run(contract(allowed_tools=["mcp__foo.bar"], grounding="off"))
    run.feed(root(), tool(1, "c1", "mcp__foo.bar"))
    assert run.violations == []
    told = says(run.feed(tool(2, "c2", "mcp__foo_bar__evil")))
    assert told[0] == "+TOOL_NOT_ALLOWED"


@pytest.mark.parametrize("word", ["true", "null", "5"])
def test_a_tool_or_an_id_named_like_a_value_stays_text(word):
    called = [{"type": "tool_call", "id": word, "name": word, "arguments": {}}]
    told = {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": called}])}
    found = normalise(raw(1, "chat", attributes=told))
    assert found.outputs[0].calls == (RequestedCall(word, word, "{}"),)


def test_one_bad_call_inside_a_list_costs_only_itself():
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}},
        {"id": "c2", "type": "function", "function": 7},
        None,
        {"id": "c3", "type": "function", "function": {"name": "put", "arguments": "{}"}},
    ]
    told = {"gen_ai.output.messages": json.dumps([{"role": "assistant", "tool_calls": calls}])}
    found = normalise(raw(1, "chat", attributes=told))
    assert [call.tool for call in found.outputs[0].calls] == ["get", "put"]
    assert found.unseen["output"] == "content_hidden"


def test_a_cycle_of_parents_is_cut():
    one = llm(1, user="q", ans="a", parent=span_id(2))
    two = tool(2, "c1", "search", parent=span_id(1))
    prefix = derive({s.span_id: s for s in (one, two)})
    assert [call.tool for call in prefix.calls] == ["search"]
    assert prefix.roots == []


def test_a_model_call_that_failed_said_nothing_and_hid_nothing():
    found = normalise(raw(1, "chat", status=2, status_message="rate limit"))
    assert (found.error, found.outputs, found.unseen) == ("rate limit", (), {})


def test_messages_of_the_wrong_type_are_told_to_be_hidden():
    for value in (7, True, 2.5, b"\xff", {"a": 1}):
        found = normalise(raw(1, "chat", attributes={"gen_ai.output.messages": value}))
        assert found.unseen["output"] == "content_hidden", value


def test_hand_offs_keep_their_agent():
    for variant in ("strands-agents-1.62.0-default", "langchain-1.5.2-traceloop-0.62.4"):
        spans = [span for batch in arrivals(variant, "handoff") for span in batch]
        told = steps(derive({s.span_id: s for s in spans}))
        assert [(s.tool, s.agent) for s in told if s.type == "tool_call"] == [
            ("ask_ticket_agent", "support_desk"),
            ("get_ticket", "ticket_agent"),
        ]


def test_history_before_the_first_model_call_is_context():
    span = msgspec.structs.replace(
        llm(1, ans="4", parent=None),
        inputs=(
            Message("user", "first"),
            *llm(0, history=[("c0", "count", {"n": 4})]).inputs,
            Message("assistant", "It is 4."),
            Message("user", "and now?"),
        ),
    )
    prefix = derive({span.span_id: span})
    assert prefix.calls == []
    assert prefix.context.results == ['{"n": 4}']


def test_a_result_within_a_history_that_was_cut_is_not_taken_as_whole():
    spans = [
        root(),
        llm(1, req=[("c1", "count")], user="q"),
        msgspec.structs.replace(
            llm(2, ans="It is 404.", history=[("c1", "count", '{"n": 40')]),
            unseen={"input": "content_truncated"},
        ),
    ]
    (call,) = derive({s.span_id: s for s in spans}).calls
    assert (call.result, call.result_unseen) == ('{"n": 40', "content_truncated")
    run = Run(contract())
    for span in reversed(spans):
        run.feed(span)
    run.close()
    assert (run.label.verdict, run.label.violations) == ("unassessed", ())
