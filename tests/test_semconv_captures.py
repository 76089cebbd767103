"""Spans of three frameworks that write the current conventions against what they are known to have done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monitor.model import Message, RequestedCall, Span
from monitor.semconv import normalise
from streams.otlp import decode

CAPTURES = Path(__file__).parent / "captures"
TRUTH = json.loads((CAPTURES / "TRUTH.json").read_text())
VARIANTS = (
    "agent-framework-1.23.0-chat",
    "google-adk-2.13.0-latest-content",
    "pydantic-ai-2.68.0",
)
SCENARIOS = [
    (variant, folder.name)
    for variant in VARIANTS
    for folder in sorted((CAPTURES / variant).iterdir())
]
WITH_CONTENT = [(v, s) for v, s in SCENARIOS if s != "no_content"]
DELEGATIONS = {"ask_ticket_agent", "transfer_to_agent"}


def spans(variant: str, scenario: str) -> list[Span]:
    files = sorted((CAPTURES / variant / scenario).glob("*.traces.pb"))
    found = [normalise(raw) for path in files for raw in decode(path.read_bytes())]
    assert found
    return found


def kind(found: list[Span], kind: str) -> list[Span]:
    return sorted((s for s in found if s.kind == kind), key=lambda s: s.start)


def calls(scenario: str) -> list[dict]:
    return [c for t in TRUTH[scenario]["turns"] for c in t["calls"] if "tool" in c]


def result(span: Span) -> object:
    return json.loads(span.result)


def requested(found: list[Span]) -> list[RequestedCall]:
    return [c for s in kind(found, "llm") for m in s.outputs for c in m.calls]


@pytest.mark.parametrize(("variant", "scenario"), WITH_CONTENT)
def test_tool_spans_tell_the_calls(variant, scenario):
    tools = [s for s in kind(spans(variant, scenario), "tool") if s.tool not in DELEGATIONS]
    truth = calls(scenario)
    assert sorted(s.tool for s in tools) == sorted(c["tool"] for c in truth)
    for call in truth:
        (span,) = (
            s for s in tools if s.tool == call["tool"] and json.loads(s.arguments) == call["args"]
        )
        assert span.call_id
        assert span.unseen == {}
        if call["ok"]:
            assert span.error is None
            assert result(span) == call["result"]
        else:
            assert span.error is not None
            told = f"{span.error} {span.result}"
            assert call["error"].split(": ")[1] in told


@pytest.mark.parametrize(("variant", "scenario"), WITH_CONTENT)
def test_llm_spans_tell_the_same_calls_before(variant, scenario):
    found = spans(variant, scenario)
    asked = [c for c in requested(found) if c.tool not in DELEGATIONS]
    assert [(c.tool, json.loads(c.arguments)) for c in asked] == [
        (c["tool"], c["args"]) for c in calls(scenario)
    ]
    executed = [s for s in kind(found, "tool") if s.tool not in DELEGATIONS]
    assert {c.call_id for c in asked} == {s.call_id for s in executed}


@pytest.mark.parametrize(("variant", "scenario"), WITH_CONTENT)
def test_llm_spans_tell_request_and_answer(variant, scenario):
    by_trace: dict[str, list[Span]] = {}
    for span in kind(spans(variant, scenario), "llm"):
        by_trace.setdefault(span.trajectory, []).append(span)
    turns = TRUTH[scenario]["turns"]
    assert len(by_trace) == len(turns)
    for found, turn in zip(by_trace.values(), turns, strict=True):
        users = [m.text for m in found[0].inputs if m.role == "user"]
        assert users[-1] == turn["user"]
        assert found[-1].outputs == (Message("assistant", turn["final_answer"]),)
        assert found[0].inputs[0].role == "system"
        assert TRUTH[scenario]["system"] in found[0].inputs[0].text


@pytest.mark.parametrize(("variant", "scenario"), WITH_CONTENT)
def test_llm_spans_quote_the_results_that_came_in_between(variant, scenario):
    found = spans(variant, scenario)
    quoted = [
        (r.call_id, r.result) for s in kind(found, "llm") for m in s.inputs for r in m.results
    ]
    for span in kind(found, "tool"):
        if span.error is None and span.tool != "transfer_to_agent":
            # ADK wraps a result that is no object.
            wrapped = f'{{"result":{span.result}}}'
            assert {(span.call_id, span.result), (span.call_id, wrapped)} & set(quoted)


@pytest.mark.parametrize(("variant", "scenario"), SCENARIOS)
def test_the_run_root_is_an_agent_span_with_a_name(variant, scenario):
    roots = [s for s in spans(variant, scenario) if s.parent is None]
    assert len(roots) == len(TRUTH[scenario]["turns"])
    for root in roots:
        assert (root.kind, root.agent, root.service) == ("agent", "support_desk", "support-desk")
        assert root.attributes["deployment.environment.name"] == "test"
        assert not root.remote


@pytest.mark.parametrize(("variant", "scenario"), WITH_CONTENT)
def test_agent_spans_that_show_content_show_request_and_answer(variant, scenario):
    turns = TRUTH[scenario]["turns"]
    roots = [s for s in kind(spans(variant, scenario), "agent") if s.parent is None]
    for root, turn in zip(roots, turns, strict=True):
        if variant.startswith("google-adk"):
            assert (root.inputs, root.outputs, root.unseen) == ((), (), {})
            continue
        assert root.inputs == (Message("user", turn["user"]),)
        assert root.outputs[-1] == Message("assistant", turn["final_answer"])


@pytest.mark.parametrize("variant", ["pydantic-ai-2.68.0", "agent-framework-1.23.0-chat"])
def test_hidden_content_is_told_and_never_guessed(variant):
    found = spans(variant, "no_content")
    for span in kind(found, "tool"):
        assert span.tool
        assert span.call_id
        assert (span.arguments, span.result, span.unseen) == (None, None, {})
    for span in kind(found, "llm"):
        assert all(m.text is None for m in (*span.inputs, *span.outputs))
        asked = [c for m in span.outputs for c in m.calls]
        assert all(c.arguments is None for c in asked)
        assert ("output" in span.unseen) != bool(asked)
    assert kind(found, "llm")[-1].unseen["output"] == "content_hidden"


def test_the_span_over_merged_tools_is_a_skeleton():
    found = spans("google-adk-2.13.0-latest-content", "ok_parallel")
    (merged,) = (s for s in found if s.name == "execute_tool (merged)")
    assert (merged.kind, merged.tool, merged.result, merged.unseen) == ("other", None, None, {})
    assert merged.parent is not None


def test_a_second_user_turn_keeps_what_was_said_before():
    for variant in {v for v, _ in SCENARIOS}:
        last = kind(spans(variant, "two_turns"), "llm")
        first_of_second = next(s for s in last if s.trajectory == last[-1].trajectory)
        assert first_of_second.omitted is None
        roles = [m.role for m in first_of_second.inputs]
        assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert "ORD-5531" in first_of_second.inputs[3].results[0].result


def test_the_history_of_a_run_is_kept_once():
    for variant in {v for v, _ in SCENARIOS}:
        first, second, third = kind(spans(variant, "ok_parallel"), "llm")
        assert (first.omitted, second.omitted) == (None, None)
        assert third.omitted is not None
        assert third.omitted.at == 2
        assert third.omitted.count in (2, 3)
        assert [m.role for m in third.inputs] == ["system", "user", "assistant", "tool"]
        assert third.inputs[2].calls == second.outputs[0].calls
