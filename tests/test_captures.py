"""Recorded runs of many variants: what is read right, in whatever order it arrives."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.engine import Engine
from monitor.label import Label, Violation
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Close, Observed, Record, Span
from monitor.prefix import derive
from monitor.semconv import RawLog, RawSpan, normalise
from monitor.semconv.logs import normalise_logs
from monitor.story import steps
from streams.otlp import decode, decode_logs
from tests.captures_scoreboard import CAPTURES, CELLS, contracts, inspected, scenarios, scores
from tests.traces import raise_fold_error

DIALECTS = (Path(__file__).parent.parent / "docs" / "dialects.md").read_text()

IMPOSSIBLE = {
    ("google-adk-2.13.0-default", "bad_forbidden", "calls"),
    ("google-adk-2.13.0-default", "bad_forbidden", "request"),
    ("google-adk-2.13.0-default", "bad_forbidden", "answer"),
    ("google-adk-2.13.0-default", "ok_parallel", "calls"),
    ("google-adk-2.13.0-default", "ok_parallel", "request"),
    ("google-adk-2.13.0-default", "ok_parallel", "answer"),
    ("langchain-1.5.2-langsmith", "no_content", "calls"),
    ("langchain-1.5.2-traceloop-0.62.4", "no_content", "calls"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "bad_forbidden", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "bad_invented", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "bad_invented", "label"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "handoff", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "ok_parallel", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "same_tool_parallel", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "tool_error", "answer"),
    ("openai-agents-0.24.0-traceloop-0.62.4-chat", "two_turns", "answer"),
    ("openai-sdk-3.57.0-openinference-0.1.66", "no_content", "calls"),
    ("openai-sdk-3.57.0-traceloop-0.62.4-nowrap", "ok_parallel", "calls"),
}
"""Cells that the wire does not make possible; docs/dialects.md says why."""


@pytest.mark.parametrize(("variant", "scenario"), scenarios())
def test_every_cell_is_right_that_the_wire_makes_possible(variant, scenario):
    wrong = {(s.variant, s.scenario, s.cell): s.wrong for s in scores(variant, scenario) if s.wrong}
    expected = {cell for cell in IMPOSSIBLE if cell[:2] == (variant, scenario)}
    assert set(wrong) == expected, wrong


def test_every_impossible_cell_is_explained():
    for variant, scenario, cell in IMPOSSIBLE:
        assert cell in CELLS
        lines = [line for line in DIALECTS.splitlines() if line.startswith(f"| `{variant}` ")]
        assert any(f"{scenario}" in line and cell in line for line in lines), (variant, scenario)


STACKED = (
    "anthropic-2.14.0-traceloop-0.62.4",
    "google-adk-2.13.0-openinference-1.0.5",
    "langchain-1.5.2-openinference-0.1.80-anthropic-2.14.0",
    "langchain-1.5.2-traceloop-0.62.4-openai-v2-2.4b0",
    "openai-sdk-3.57.0-openinference-0.1.66-traceloop-0.62.4-responses",
    "pydantic-ai-2.68.0-anthropic-2.14.0-openinference-3.1.0",
)
"""Several instrumentations at once, of which some hide what others show."""


@pytest.mark.parametrize("variant", STACKED)
def test_what_one_instrumentation_shows_is_assessed(variant):
    (label,) = (
        label for run in inspected(variant, "ok_parallel").trajectories for label in run.labels
    )
    assert (label.verdict, label.coverage.state) == ("trusted", "complete")


Raw = RawSpan | RawLog


@cache
def raws(variant: str, scenario: str) -> list[list[Raw]]:
    """What each request holds, in order of arrival."""
    found: list[list[Raw]] = []
    for path in sorted((CAPTURES / variant / scenario).glob("*.pb")):
        read = decode_logs if ".logs." in path.name else decode
        found.append([r for r in read(path.read_bytes()) if isinstance(r, RawSpan | RawLog)])
    return found


def normalised(batches: list[list[Raw]]) -> list[list[Span]]:
    return [
        [
            *(normalise(raw) for raw in batch if isinstance(raw, RawSpan)),
            *normalise_logs(raw for raw in batch if isinstance(raw, RawLog)),
        ]
        for batch in batches
    ]


@cache
def arrivals(variant: str, scenario: str) -> list[list[Span]]:
    """What each request brings, in order of arrival."""
    return normalised(raws(variant, scenario))


def outcome(batches: list[list[Span]]) -> dict[str, Any]:
    """Steps, labels and standing violations of every trajectory, after its close."""
    store, publisher = MemoryStore(), MemoryPublisher()
    engine = Engine(store, publisher, MemoryPolicySets(contracts()), on_fold_error=raise_fold_error)
    digest = contracts().digest
    records = [
        Record(offset, 1_000_000 + offset, digest, tuple(map(Observed, batch)))
        for offset, batch in enumerate(batches)
    ]
    last = len(records)
    names = sorted({span.trajectory for batch in batches for span in batch})
    ends = {
        name: max(n for n, batch in enumerate(batches) if any(s.trajectory == name for s in batch))
        for name in names
    }
    closes = tuple(Close(name, "idle", ends[name]) for name in names)

    async def feed() -> dict[str, Any]:
        for record in records:
            await engine.apply(0, [record], epoch=1)
        await engine.apply(0, [Record(last, 2_000_000, digest, closes)], epoch=1)
        return {name: steps(await engine.prefix(0, name)) for name in names}

    told = asyncio.run(feed())
    labels: dict[Any, Any] = {}
    raised: dict[str, Any] = {}
    for event in publisher.events:
        body = event.body
        if isinstance(body, Label):
            reasons = [reason for reason in body.coverage.reasons if reason != "late"]
            labels[body.trajectory_id, body.contract and body.contract.name] = (
                body.verdict, body.layers, body.steps, sorted(body.violations), reasons,
                body.agent, body.service, body.conversation_id,
            )  # fmt: skip
        elif isinstance(body, Violation):
            raised[body.id] = body
    standing = {(v.code, v.step, v.tool) for v in raised.values() if v.state == "raised"}
    return {"steps": told, "labels": labels, "violations": standing}


@pytest.mark.parametrize("variant", sorted({variant for variant, _ in scenarios()}))
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_law_1_order_batching_and_duplicates_change_nothing(variant, data):
    scenario = data.draw(st.sampled_from([s for v, s in scenarios() if v == variant]))
    batches = arrivals(variant, scenario)
    spans = [span for batch in batches for span in batch]
    random = data.draw(st.randoms(use_true_random=False))
    mixed = spans + random.choices(spans, k=random.randint(0, 5))
    random.shuffle(mixed)
    cuts = sorted(random.sample(range(len(mixed)), k=min(len(mixed), random.randint(0, 6))))
    again = [
        mixed[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(mixed)], strict=True)
        if start < end
    ]
    assert outcome(again) == outcome(batches)


@pytest.mark.parametrize(
    ("variant", "scenario"), [pair for pair in scenarios() if pair[1] == "bad_forbidden"]
)
def test_a_forbidden_call_is_told_at_the_first_arrival_that_shows_it(variant, scenario):
    batches = arrivals(variant, scenario)
    shown = told = None
    spans: dict[str, Span] = {}
    for number, batch in enumerate(batches):
        spans |= {span.span_id: span for span in batch}
        named = [s.tool for s in batch] + [
            c.tool for s in batch for m in s.outputs for c in m.calls
        ]
        if shown is None and "issue_refund" in named:
            shown = number
        found = outcome(batches[: number + 1])["violations"] if batch else set()
        if told is None and any(code == "POLICY_TOOL_FORBIDDEN" for code, _, _ in found):
            told = number
    assert shown is not None
    assert told == shown
    assert any(call.tool == "issue_refund" for call in derive(spans).calls)


CONTENT = (
    "arguments", "result", "messages", "input.value", "output.value", "content", "prompt",
    "completion", "text", "toolCalls", "toolCall.args", "response", "entity.input", "entity.output",
    "events", "input", "output",
)  # fmt: skip


def less(raw: Raw, random: Any) -> Raw | None:
    """The span with one piece of content absent, redacted or dropped; a log record is not there."""
    if isinstance(raw, RawLog):
        return None
    keys = [k for k, v in raw.attributes.items() if k.endswith(CONTENT) and isinstance(v, str)]
    told = [event for event in raw.events if event.name != "exception"]
    if told and (not keys or random.random() < 0.5):
        gone = random.choice(told)
        events = tuple(event for event in raw.events if event is not gone)
        return msgspec.structs.replace(raw, events=events)
    if not keys:
        return raw
    key = random.choice(sorted(keys))
    kept = {k: v for k, v in raw.attributes.items() if k != key}
    match random.randrange(3):
        case 0:
            return msgspec.structs.replace(raw, attributes=kept)
        case 1:
            return msgspec.structs.replace(raw, attributes=kept | {key: "__REDACTED__"})
    return msgspec.structs.replace(raw, attributes=kept, dropped=1)


@pytest.mark.parametrize("variant", sorted({variant for variant, _ in scenarios()}))
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_law_5_less_content_leads_to_no_trust_and_to_no_accusation(variant, data):
    chosen = ("ok_parallel", "same_tool_parallel", "bad_invented", "no_content")
    scenario = data.draw(
        st.sampled_from([s for v, s in scenarios() if v == variant and s in chosen])
    )
    batches = raws(variant, scenario)
    random = data.draw(st.randoms(use_true_random=False))
    at = random.choice([n for n, batch in enumerate(batches) if batch])
    place = random.randrange(len(batches[at]))
    changed = less(batches[at][place], random)
    batch = [*batches[at][:place], *([changed] if changed else []), *batches[at][place + 1 :]]
    before = {label[0] for label in outcome(normalised(batches))["labels"].values()}
    after = outcome(normalised([*batches[:at], batch, *batches[at + 1 :]]))["labels"]
    assert {label[0] for label in after.values()} <= before | {"unassessed"}
