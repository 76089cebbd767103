"""One response of a model, told by the spans of several instrumentations: one turn, nothing hidden."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from monitor.model import Span
from monitor.prefix import derive
from monitor.semconv import RawSpan, normalise
from monitor.twins import MOST
from tests.traces import SECOND, Run, contract, llm, other, root, says, span_id, tool

OUTER = span_id(99)
"""A span of the application's own around the agent's."""
HIDDEN: Any = {"input": "content_hidden", "output": "content_hidden"}


def framework(at: int, name: str, **more: Any) -> Span:
    return llm(at, response=name, writer="framework", end=(at + 2) * SECOND, **more)


def client(span: Span, number: int, **more: Any) -> Span:
    """The span of a model's client within that of a framework: by its times, not by its parents."""
    given: dict[str, Any] = {"writer": "client", "parent": OUTER, **more}
    return replace(
        span, span_id=span_id(number), start=span.start + 1, end=span.end - 1, inputs=(), outputs=(),
        unseen=HIDDEN, **given,
    )  # fmt: skip


ASKS = framework(10, "m1", req=[("c1", "a", {})], user="please")
SAYS = framework(20, "m2", ans="see T-1", history=[("c1", "a", "T-1")])
RAN = tool(15, "c1", "a", "T-1")
TOP = [other(0, span=OUTER, end=100 * SECOND), root(parent=OUTER, start=1, end=90 * SECOND)]


def verdict(*spans: Span, **rules: Any) -> str:
    run = Run(contract(**rules))
    for span in spans:
        run.feed(span)
    run.close()
    return run.label.verdict


def test_a_client_that_hides_what_a_framework_shows_hides_nothing() -> None:
    spans = [client(ASKS, 11), ASKS, RAN, client(SAYS, 21), SAYS, *TOP]
    run = Run(contract(allowed_tools=["a"], expected_trajectory=["a"]))
    for span in spans:
        run.feed(span)
    assert says(run.close())[-1] == "trusted final"
    prefix = derive({span.span_id: span for span in spans})
    assert [(call.tool, call.agent) for call in prefix.calls] == [("a", "desk")]
    assert [(answer.text, answer.agent) for answer in prefix.answers] == [("see T-1", "desk")]
    assert [request.text for request in prefix.requests] == ["please"]


def test_the_label_is_revised_when_the_span_that_shows_all_comes_late() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    for span in [ASKS, RAN, client(SAYS, 21), *TOP]:
        run.feed(span)
    assert says(run.close()) == ["unassessed final"]
    assert says(run.feed(SAYS)) == ["trusted final"]
    assert run.label.coverage.reasons == ("late",)


def test_in_any_order_the_same() -> None:
    for spans in permutations([client(ASKS, 11), ASKS, RAN, client(SAYS, 21), SAYS]):
        assert verdict(*spans, *TOP, expected_trajectory=["a"]) == "trusted"
        assert verdict(*TOP, *spans, expected_trajectory=["a"]) == "trusted"


def test_a_client_that_shows_what_a_framework_hides_tells_whose_it_is() -> None:
    """The framework's span lies below the agent, the client's shows the messages."""
    spans = []
    for number, span in enumerate((ASKS, SAYS)):
        inner = client(span, 50 + number)
        spans.append(replace(inner, inputs=span.inputs, outputs=span.outputs, unseen={}))
        spans.append(replace(span, inputs=(), outputs=(), unseen=HIDDEN))
    prefix = derive({span.span_id: span for span in [*spans, RAN, *TOP]})
    assert [(call.tool, call.agent) for call in prefix.calls] == [("a", "desk")]
    assert [(answer.text, answer.agent) for answer in prefix.answers] == [("see T-1", "desk")]
    assert verdict(*spans, RAN, *TOP, expected_trajectory=["a"]) == "trusted"


@pytest.mark.parametrize(
    "more",
    [
        {"start": 30 * SECOND, "end": 31 * SECOND},
        {"writer": "framework"},
        {"response": "m3"},
        {"response": None},
    ],
    ids=["at another time", "of the same instrumentation", "another response", "no response"],
)
def test_a_span_that_hides_a_call_of_its_own_stays(more: dict[str, Any]) -> None:
    apart = replace(client(SAYS, 21), **more)
    assert verdict(ASKS, RAN, SAYS, apart, *TOP) == "unassessed"
    assert verdict(apart, ASKS, RAN, SAYS, *TOP) == "unassessed"


def test_one_span_stands_for_one_of_each_instrumentation() -> None:
    """A server that gives all responses one id, and a client that hides all of them."""
    assert verdict(ASKS, RAN, SAYS, client(SAYS, 21), *TOP) == "trusted"
    assert verdict(ASKS, RAN, SAYS, client(SAYS, 21), client(SAYS, 22), *TOP) == "unassessed"


def test_what_only_one_of_two_shows_is_not_lost() -> None:
    asks = llm(1, req=[("c9", "z", {})]).outputs
    spans = [ASKS, RAN, SAYS, replace(client(SAYS, 21), outputs=asks, unseen={}), *TOP]
    calls = derive({span.span_id: span for span in spans}).calls
    assert [call.tool for call in calls] == ["a", "z"]
    assert verdict(*spans, forbidden_tools=["z"]) == "violated"


def test_arguments_that_only_the_other_shows_are_not_lost() -> None:
    bare = replace(ASKS, outputs=llm(1, req=[("c1", "a")]).outputs)
    shows = replace(
        client(ASKS, 11), outputs=llm(1, req=[("c1", "a", {"x": 1})]).outputs, unseen={}
    )
    (call,) = derive({span.span_id: span for span in [bare, shows, *TOP]}).calls
    assert call.arguments == '{"x": 1}'


def test_two_ids_of_one_call_are_one_call() -> None:
    """OpenAI's Responses name a call, which its result names too, and the item that holds it."""
    items = llm(1, req=[("fc_1", "a", {"x": 1}), ("fc_2", "b", {})]).outputs
    calls = llm(1, req=[("c1", "a", {"x": 1}), ("c2", "b", {})]).outputs
    for outer, inner in ((items, calls), (calls, items)):
        span = replace(framework(10, "m1"), outputs=outer)
        spans = [span, replace(client(span, 11), outputs=inner, unseen={}), *TOP]
        found = derive({span.span_id: span for span in spans}).calls
        assert [(call.tool, call.call_id) for call in found] == [("a", "c1"), ("b", "c2")]


def test_two_model_calls_in_one_span_that_shows_one_are_two() -> None:
    """An observation of the application's own around all of them, and the client's spans in it."""
    around = replace(SAYS, start=18 * SECOND, end=40 * SECOND, response=None, writer=None)
    inner = [
        replace(
            client(SAYS, 30 + n, parent=SAYS.span_id), response=f"r{n}", start=(20 + n) * SECOND
        )
        for n in range(2)
    ]
    assert verdict(ASKS, RAN, around, inner[0], *TOP) == "trusted"
    assert verdict(ASKS, RAN, around, *inner, *TOP) == "unassessed"
    asks = replace(inner[0], outputs=llm(1, req=[("c9", "z", {})]).outputs, unseen={})
    assert verdict(ASKS, RAN, around, asks, *TOP, forbidden_tools=["z"]) == "violated"


def test_spans_without_number_that_name_one_response_are_no_stack() -> None:
    many = [replace(client(SAYS, 200 + n), writer=f"w{n}") for n in range(MOST)]
    assert verdict(ASKS, RAN, SAYS, *many[1:], *TOP) == "trusted"
    assert verdict(ASKS, RAN, SAYS, *many, *TOP) == "unassessed"


def test_an_id_that_a_server_gives_every_response_costs_nothing() -> None:
    """Spans that follow each other extend the prefix as if each had an id of its own."""
    run = Run(contract(grounding="off"))
    run.feed(TOP[0], TOP[1], replace(ASKS, response="m"))
    before = run.engine.counters.derived
    for number in range(50):
        run.feed(
            framework(
                100 + 3 * number, "m", req=[(f"d{number}", "a", {})], span=span_id(1000 + number)
            )
        )
    assert run.engine.counters.derived == before


LANGCHAIN = (
    '{"generations": [[{"text": "", "message": {"lc": 1, "id": ["langchain", "AIMessage"], "kwargs": '
    '{"response_metadata": {%s}, "id": "%s"}}}]], "llm_output": {%s}}'
)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"gen_ai.operation.name": "chat", "gen_ai.response.id": "msg_1"}, "msg_1"),
        ({"gen_ai.operation.name": "chat", "gen_ai.response.id": " "}, None),
        ({"gen_ai.operation.name": "chat"}, None),
        ({"gen_ai.operation.name": "execute_tool", "gen_ai.response.id": "msg_1"}, None),
        ({"openinference.span.kind": "LLM", "output.value": '{"id":"msg_1","content":[]}'}, "msg_1"),
        ({"openinference.span.kind": "LLM", "output.value": '{"responseId":"r","candidates":[]}'}, "r"),
        ({"openinference.span.kind": "LLM", "output.value": '{"id":1}'}, None),
        ({"openinference.span.kind": "LLM", "output.value": '{"id":"msg_1"'}, None),
        ({"openinference.span.kind": "LLM", "output.value": "msg_1"}, None),
        (
            {
                "openinference.span.kind": "LLM",
                "output.value": LANGCHAIN % ("", "lc_run--1", '"id": "chatcmpl-1"'),
            },
            "chatcmpl-1",
        ),
        (
            {
                "openinference.span.kind": "LLM",
                "output.value": LANGCHAIN % ('"id": "resp_1"', "lc_run--1", ""),
            },
            "resp_1",
        ),
        (
            {"openinference.span.kind": "LLM", "output.value": LANGCHAIN % ("", "msg_1", "")},
            "msg_1",
        ),
        (
            {"openinference.span.kind": "LLM", "output.value": LANGCHAIN % ("", "lc_run--1", "")},
            None,
        ),
        (
            {
                "langfuse.observation.type": "generation",
                "langfuse.observation.output": '{"id": "msg_1", "role": "assistant"}',
            },
            "msg_1",
        ),
    ],
)  # fmt: skip
def test_the_id_of_a_response_is_read(attributes: dict[str, str], expected: str | None) -> None:
    found = normalise(RawSpan("1" * 32, "2" * 16, attributes=dict(attributes), scope="theirs"))
    assert found.response == expected
    assert found.writer == (None if expected is None else "theirs")
