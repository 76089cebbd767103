"""A reading's way through fold, engine and label; who writes readings is not this test's business."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from monitor.contract import Contract, PolicySet
from monitor.engine import Engine
from monitor.memory import Crash, Fuse, MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Arrival, Close, Observed, Reading, Record, Span
from monitor.reading import ParseRequest, parser_digest
from tests.traces import TRACE, Run, contract, llm, root, says, tool

ANSWER = "order A-17 has arrived"
DELIVERED = tool(2, "c1", "order.get", {"id": "A-17", "status": "arrived"})


def spans(answer: str = ANSWER) -> list[Span]:
    return [llm(1, req=[("c1", "order.get")]), DELIVERED, llm(3, ans=answer), root()]


def claim(words: str = ANSWER, evidence: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "kind": "status",
        "subject": "order A-17",
        "value": "arrived",
        "words": words,
        "evidence": evidence,
        "confidence": 0.9,
        **more,
    }


SUPPORTED = claim(evidence={"step": 0, "path": "$.status"})


def reading(request: ParseRequest, *claims: dict[str, Any], **more: Any) -> Reading:
    fields: dict[str, Any] = {
        "trajectory": request.trajectory,
        "id": request.id,
        "step": request.step,
        "content": request.content,
        "parser": request.parser,
        "attempt": request.attempt,
        "claims": claims,
        **more,
    }
    return Reading(**fields)


def run(mode: str = "advisory", **more: Any) -> Run:
    judged = Run(contract(semantic={"mode": mode, **more}))
    judged.feed(*spans())
    return judged


def request(judged: Run) -> ParseRequest:
    (found,) = judged.publisher.requests
    return found


def test_a_request_carries_the_answer_and_what_it_is_held_against() -> None:
    asked = request(run(rubric="be exact"))
    assert (asked.step, asked.type, asked.text) == ("answer", "answer", ANSWER)
    assert [(s.step, s.tool, s.result) for s in asked.evidence] == [
        (0, "order.get", DELIVERED.result)
    ]
    assert asked.rubric == "be exact"
    assert asked.parser == parser_digest("be exact")
    assert asked.cut == ()


def test_advisory_lists_a_warning_and_turns_nothing() -> None:
    judged = run()
    assert says(judged.close()) == ["trusted final"]
    assert judged.label.pending == ("semantic",)
    told = judged.feed(reading(request(judged), claim()))
    assert says(told) == ["+UNSUPPORTED_CLAIM", "+DISAGREEMENT", "trusted final"]
    assert [v.severity for v in judged.violations] == ["warning", "info"]
    assert judged.label.layers["semantic"] == "fail"
    assert judged.label.coverage.state == "complete"


def test_a_gate_keeps_the_label_open_until_the_reading_is_in() -> None:
    judged = run("gate")
    assert says(judged.close()) == ["open prov"]
    assert judged.label.closed == "root_settled"
    assert judged.label.pending == ("semantic",)
    told = judged.feed(reading(request(judged), claim()))
    assert says(told) == ["+UNSUPPORTED_CLAIM", "+DISAGREEMENT", "violated final"]


def test_a_gate_with_every_claim_supported_is_trusted() -> None:
    judged = run("gate")
    judged.close()
    assert says(judged.feed(reading(request(judged), SUPPORTED))) == ["trusted final"]


def test_a_gate_whose_reading_failed_is_unassessed_never_trusted() -> None:
    judged = run("gate")
    judged.close()
    failed = reading(request(judged), status="unassessed", reason="timeout")
    assert says(judged.feed(failed)) == ["unassessed final"]
    assert judged.label.coverage.reasons == ("reading_timeout",)


def test_a_reading_never_overrides_a_deterministic_rejection() -> None:
    judged = Run(contract(forbidden_tools=["order.get"], semantic={"mode": "gate"}))
    judged.feed(*spans())
    judged.close()
    judged.feed(reading(request(judged), SUPPORTED))
    assert judged.label.verdict == "violated"
    assert judged.label.layers["semantic"] == "pass"


def test_an_answer_that_grounding_rejects_and_the_reading_supports_is_for_review() -> None:
    judged = Run(contract(semantic={"mode": "gate"}))
    judged.feed(llm(1, req=[("c1", "o")]), tool(2, "c1", "o", {"total": 1234.5}),
                llm(3, ans="it costs 1,234.50"), root())  # fmt: skip
    judged.close()
    assert judged.label.verdict == "violated"
    fact = claim("it costs 1,234.50", {"step": 0, "path": "$.total"},
                 kind="quantity", value="1,234.50")  # fmt: skip
    assert says(judged.feed(reading(request(judged), fact))) == ["+DISAGREEMENT", "violated final"]


def test_only_the_first_reading_of_an_attempt_counts() -> None:
    judged = run()
    judged.feed(reading(request(judged), claim()))
    assert judged.feed(reading(request(judged), SUPPORTED)) == []
    again = reading(request(judged), SUPPORTED, id="r2", attempt=2)
    assert says(judged.feed(again))[:2] == ["-UNSUPPORTED_CLAIM", "-DISAGREEMENT"]


def test_a_later_attempt_that_failed_takes_nothing_away() -> None:
    judged = run()
    judged.feed(reading(request(judged), SUPPORTED))
    failed = reading(request(judged), attempt=2, status="unassessed", reason="timeout")
    assert judged.feed(failed) == []


@pytest.mark.parametrize(
    "other", [{"content": "superseded"}, {"step": "c1"}, {"parser": "another"}], ids=str
)
def test_a_reading_of_something_else_does_nothing(other: dict[str, str]) -> None:
    judged = run()
    assert judged.feed(reading(request(judged), claim(), **other)) == []


def test_a_reading_whose_claims_cannot_be_read_is_unassessed() -> None:
    judged = run("gate")
    judged.close()
    judged.feed(reading(request(judged), {"words": "rubbish"}))
    assert judged.label.verdict == "unassessed"
    assert judged.label.coverage.reasons == ("reading_invalid",)


def test_without_a_contract_that_asks_nothing_is_asked_and_a_reading_changes_nothing() -> None:
    asking, judged = run(), Run(contract())
    judged.feed(*spans())
    judged.close()
    assert judged.publisher.requests == []
    assert judged.feed(reading(request(asking), claim())) == []
    assert "semantic" not in judged.label.layers


def test_a_reading_keeps_a_close_from_counting() -> None:
    """It is a journal item of the trajectory: a close written before it was read is ignored."""
    judged = run()
    due = Close(TRACE, "root_settled", judged.last_arrival)
    judged.feed(reading(request(judged), claim()))
    assert judged.feed(due) == []
    assert judged.label.closed is None


def test_contracts_with_one_rubric_share_a_request() -> None:
    asking = {"semantic": {"mode": "advisory", "rubric": "r"}}
    judged = Run(contract("a", **asking), contract("b", **asking),
                 contract("c", semantic={"mode": "gate", "rubric": "other"}))  # fmt: skip
    judged.feed(*spans())
    assert len(judged.publisher.requests) == 2
    for asked in judged.publisher.requests:
        judged.feed(reading(asked, claim()))
    assert {label.layers["semantic"] for label in judged.labels[-3:]} == {"fail"}


def test_an_answer_is_asked_for_once_and_a_superseded_one_never_again() -> None:
    judged = run()
    judged.close()
    judged.feed(root())  # a repeat
    assert len(judged.publisher.requests) == 1
    judged.feed(llm(4, user="and B-2?", ans="it is on its way"))
    first, second = judged.publisher.requests
    assert (first.step, second.step) == ("answer", "answer")
    assert second.text == "it is on its way"
    assert judged.feed(reading(first, claim())) == []


def test_a_result_that_comes_late_supersedes_a_reading_that_did_not_know_it() -> None:
    judged = run("gate")
    judged.close()
    judged.feed(reading(request(judged), claim()))
    assert judged.label.verdict == "violated"
    judged.feed(tool(2, None, "status.get", "arrived", span="e" * 16))
    first, second = judged.publisher.requests
    assert first.content != second.content
    assert judged.label.verdict == "open"
    assert says(judged.feed(reading(second, SUPPORTED))) == ["trusted final"]


def test_a_sample_is_chosen_by_the_trajectory_and_the_rest_is_judged_without() -> None:
    judged = run("gate", sample=0.0)
    judged.close()
    assert judged.publisher.requests == []
    assert judged.label.verdict == "trusted"
    assert judged.label.layers["semantic"] == "off"


def test_other_steps_are_asked_for_when_a_contract_says_so() -> None:
    judged = Run(contract(semantic={"mode": "gate", "steps": ["tool_result", "message"]}))
    judged.feed(llm(0, ans="let me see", user="where is A-17?"), *spans())
    assert [(r.type, r.step) for r in judged.publisher.requests] == [
        ("tool_result", "c1"), ("message", "user:0000000000000000"),
        ("message", "0000000000000000"),
    ]  # fmt: skip
    judged.close()
    assert len(judged.publisher.requests) == 3
    assert judged.label.verdict == "trusted"


# -- when nobody answers ---------------------------------------------------------------------


def test_a_reading_that_never_comes_is_written_as_unassessed() -> None:
    judged = run("gate")
    judged.close()
    (missed,) = judged.closes()
    assert isinstance(missed, Reading)
    assert (missed.status, missed.reason, missed.id) == (
        "unassessed", "timeout", request(judged).id,
    )  # fmt: skip
    assert says(judged.feed(missed)) == ["unassessed final"]
    assert judged.closes() == []
    assert judged.feed(reading(request(judged), SUPPORTED)) == []


def test_close_and_missing_reading_fall_due_each_at_its_time() -> None:
    judged = run("gate")
    assert [type(item) for item in judged.closes()] == [Close, Reading]
    judged.close()
    assert [type(item) for item in judged.closes()] == [Reading]


def test_no_reading_is_awaited_behind_a_limit() -> None:
    judged = Run(contract(semantic={"mode": "gate"}))
    judged.feed(*spans())
    judged.close()
    judged.engine.on_fold_error = lambda *_: None
    work = judged.store.entries[0][TRACE]
    assert work.due is not None
    judged.time += 25 * 3_600_000
    judged.feed(llm(9, ans="far too late"))
    assert judged.label.coverage.reasons == ("age_limit", "late")
    assert judged.label.verdict == "unassessed"
    assert judged.label.phase == "final"
    assert judged.closes() == []


# -- laws ------------------------------------------------------------------------------------


def _last(contract_: Contract, arrivals: list[Arrival]) -> tuple[Any, ...]:
    judged = Run(contract_)
    for arrival in arrivals:
        judged.feed(arrival)
    judged.close()
    for asked in judged.publisher.requests:
        judged.feed(reading(asked, SUPPORTED, claim("A-17", None, kind="identifier", value="A-17")))
    label = judged.label
    return label.verdict, label.layers, label.violations, label.coverage.reasons


def test_any_order_of_spans_ends_in_the_same_semantic_label() -> None:
    asking = contract(semantic={"mode": "gate"})
    ends = [
        _last(asking, [Observed(span) for span in order])
        for order in itertools.permutations(spans())
    ]
    assert all(end == ends[0] for end in ends)
    assert ends[0][0] == "violated"


def test_a_replay_gives_every_event_and_request_again_without_a_model() -> None:
    asking = contract(semantic={"mode": "gate"})
    live = Run(asking)
    live.feed(*spans())
    live.close()
    live.feed(reading(request(live), claim()))
    again = Run(asking)
    again.feed(*spans())
    again.close()
    again.feed(reading(request(live), claim()))
    assert again.events == live.events
    assert again.publisher.requests == live.publisher.requests


def test_new_fields_of_a_contract_keep_old_digests() -> None:
    assert (
        contract(semantic={"mode": "gate"}).digest
        == contract(semantic={"mode": "gate", "sample": 1.0, "steps": ["answer"]}).digest
    )
    assert PolicySet.decode(
        PolicySet([contract(semantic={"mode": "gate", "rubric": "r"})]).encode()
    )


def test_a_crash_at_any_effect_loses_no_request_and_repeats_are_the_same() -> None:
    asking = PolicySet([contract(semantic={"mode": "gate"})])
    records = [
        Record(1, 1_000, asking.digest, tuple(Observed(span) for span in spans()[:2])),
        Record(2, 2_000, asking.digest, tuple(Observed(span) for span in spans()[2:])),
        Record(3, 3_000, asking.digest, (Close(TRACE, "root_settled", 2),)),
    ]

    async def run_until_done(at: int) -> tuple[MemoryPublisher, int, bytes]:
        fuse = Fuse(at)
        store, publisher = MemoryStore(fuse), MemoryPublisher(fuse)
        for _ in range(2):  # the second one is the worker that takes over
            engine = Engine(store, publisher, MemoryPolicySets(asking))
            try:
                for record in records:
                    await engine.apply(0, [record], epoch=1)
                break
            except Crash:
                continue
        return publisher, fuse.count, store.entries[0][TRACE].head

    whole, effects, head = asyncio.run(run_until_done(-1))
    assert len(whole.requests) == 1
    for at in range(effects):
        publisher, _, after = asyncio.run(run_until_done(at))
        assert {one.id: one for one in publisher.requests} == {r.id: r for r in whole.requests}
        assert {event.id for event in publisher.events} == {event.id for event in whole.events}
        assert after == head
