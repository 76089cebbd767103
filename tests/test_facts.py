"""Readings of tool results and of what the user said: when their facts back a claim, and when not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.facts import FACTS, back, left_open, stated
from monitor.head import decode_head
from monitor.model import Reading
from monitor.reading import Claim, Kept, ParseRequest, Shown, Stated
from monitor.resolve import resolve
from tests.traces import TRACE, Run, contract, llm, root, says, tool

TICKETS = {"tickets": [{"id": "T-4", "state": "open"}, {"id": "T-9", "state": "closed"}]}
ANSWER = "Ticket T-9 is closed."
STEPS = ["answer", "tool_result", "message"]
CLAIM = {"kind": "status", "subject": "ticket T-9", "value": "closed", "words": "T-9 is closed",
         "evidence": None, "confidence": 0.9}  # fmt: skip
FACT = {"subject": "T-9", "value": "closed", "path": "$.tickets[1].state"}


def run(mode: str = "gate", answer: str = ANSWER, result: Any = TICKETS, **rules: Any) -> Run:
    judged = Run(contract(semantic={"mode": mode, "steps": STEPS}, **rules))
    judged.feed(llm(1, req=[("c1", "ticket.list")], user="What about T-9? It was closed in March."),
                tool(2, "c1", "ticket.list", result), llm(3, ans=answer), root())  # fmt: skip
    judged.close()
    return judged


def reading(request: ParseRequest, **more: Any) -> Reading:
    fields: dict[str, Any] = {
        "trajectory": TRACE, "id": request.id, "step": request.step, "content": request.content,
        "parser": request.parser, "attempt": request.attempt, **more,
    }  # fmt: skip
    return Reading(**fields)


def request(judged: Run, step: str) -> ParseRequest:
    return next(r for r in judged.publisher.requests if r.step.startswith(step))


def facts(judged: Run, step: str, *found: dict[str, str], **more: Any) -> Reading:
    return reading(request(judged, step), facts=found, **more)


def claims(judged: Run, *found: dict[str, Any]) -> Reading:
    return reading(request(judged, "answer"), claims=found)


def test_a_fact_of_a_result_backs_a_claim_that_points_at_nothing() -> None:
    judged = run()
    assert says(judged.feed(claims(judged, CLAIM)))[0] == "+UNSUPPORTED_CLAIM"
    told = judged.feed(facts(judged, "c1", FACT))
    assert says(told) == ["-UNSUPPORTED_CLAIM", "-DISAGREEMENT", "trusted final"]


def test_it_does_so_whichever_reading_comes_first() -> None:
    judged = run()
    assert judged.feed(facts(judged, "c1", FACT)) == []
    assert says(judged.feed(claims(judged, CLAIM))) == ["trusted final"]


@pytest.mark.parametrize(
    "fact",
    [
        {**FACT, "path": "$.tickets[0].state"},
        {**FACT, "path": "$.tickets[0].state", "value": "open"},
        {**FACT, "path": "$.tickets[1].colour"},
        {**FACT, "path": "$.tickets[1]"},
        {**FACT, "path": "$.tickets"},
        {**FACT, "path": "$..state"},
        {**FACT, "value": "T-9", "path": "$.tickets[1].id"},
        {**FACT, "value": ""},
        {**FACT, "value": "closed" * 100},
        {"subject": "T-9", "value": "closed"},
    ],
    ids=str,
)
def test_a_fact_that_does_not_stand_there_or_says_something_else_backs_nothing(fact: Any) -> None:
    judged = run()
    judged.feed(claims(judged, CLAIM))
    assert judged.feed(facts(judged, "c1", fact)) == []


def test_a_fact_about_something_else_backs_nothing_whatever_its_reading_says() -> None:
    """`T-4` is open; the model says that this is told of T-9."""
    judged = run(answer="Ticket T-9 is open.")
    judged.feed(claims(judged, {**CLAIM, "value": "open", "words": "T-9 is open"}))
    lie = {"subject": "T-9", "value": "open", "path": "$.tickets[0].state"}
    assert judged.feed(facts(judged, "c1", lie)) == []
    assert judged.label.verdict == "violated"


def test_a_claim_that_names_nothing_must_share_its_subject() -> None:
    weather = {"sky": "snow", "wind": "calm"}
    claim = {**CLAIM, "subject": "the sky", "value": "calm", "words": "it is calm"}
    for subject, backed in (("sky at noon", False), ("weather", True)):
        judged = run(answer="it is calm", result=weather)
        judged.feed(claims(judged, {**claim, "subject": "weather"}))
        fact = {"subject": subject, "value": "calm", "path": "$.wind"}
        assert bool(judged.feed(facts(judged, "c1", fact))) == backed


def test_plain_text_backs_what_its_fact_is_told_of() -> None:
    text = "T-4 is open. T-9 was closed."
    for subject, backed in (("T-4", False), ("T-9", True)):
        judged = run(result=text)
        judged.feed(claims(judged, CLAIM))
        fact = {"subject": subject, "value": "closed", "path": "$"}
        assert bool(judged.feed(facts(judged, "c1", fact))) == backed


def test_what_the_user_said_backs_a_claim() -> None:
    judged = run(answer="T-9 was closed in March.")
    judged.feed(claims(judged, {**CLAIM, "value": "in March", "words": "closed in March"}))
    fact = {"subject": "T-9", "value": "closed in March", "path": "$"}
    assert says(judged.feed(facts(judged, "user:", fact)))[0] == "-UNSUPPORTED_CLAIM"


def test_what_an_agent_itself_said_backs_nothing() -> None:
    judged = Run(contract(semantic={"mode": "gate", "steps": STEPS}))
    judged.feed(llm(0, ans="I think T-9 is closed."), llm(1, req=[("c1", "ticket.list")]),
                tool(2, "c1", "ticket.list", {}), llm(3, ans=ANSWER), root())  # fmt: skip
    judged.close()
    judged.feed(claims(judged, CLAIM))
    assert request(judged, "0000000000000000").text == "I think T-9 is closed."
    said = facts(judged, "0000000000000000", {"subject": "T-9", "value": "closed", "path": "$"})
    assert judged.feed(said) == []


def test_what_code_found_otherwise_stays_so() -> None:
    judged = run()
    pointed = {**CLAIM, "evidence": {"step": 1, "path": "$.tickets[0].id"}, "kind": "quotation"}
    assert says(judged.feed(claims(judged, pointed)))[0] == "+EVIDENCE_MISMATCH"
    assert judged.feed(facts(judged, "c1", FACT)) == []


def test_no_fact_backs_an_action_or_an_absence() -> None:
    for kind in ("action", "absence"):
        judged = run()
        judged.feed(claims(judged, {**CLAIM, "kind": kind}))
        assert judged.feed(facts(judged, "c1", FACT)) == []


def test_a_fact_never_overrides_a_deterministic_rejection() -> None:
    judged = run(forbidden_tools=["ticket.list"])
    judged.feed(claims(judged, CLAIM), facts(judged, "c1", FACT))
    assert judged.label.layers["semantic"] == "pass"
    assert judged.label.verdict == "violated"
    judged = run(answer="T-9 is closed since 1999.")
    judged.feed(claims(judged, {**CLAIM, "words": "T-9 is closed since 1999"}))
    assert judged.feed(facts(judged, "c1", FACT)) == []  # the number stands in no result
    assert judged.label.violations.count("SAFETY_FABRICATED_QUANTITY") == 1


def test_a_contract_that_does_not_ask_for_them_is_judged_without() -> None:
    """Whatever another contract, with the same rubric, asks for."""
    judged = Run(contract("a", semantic={"mode": "gate"}),
                 contract("b", semantic={"mode": "gate", "steps": ["answer", "tool_result"]}))  # fmt: skip
    judged.feed(llm(1, req=[("c1", "t")]), tool(2, "c1", "t", TICKETS), llm(3, ans=ANSWER), root())
    judged.close()
    judged.feed(facts(judged, "c1", FACT))
    judged.feed(claims(judged, CLAIM))
    assert {label.contract.name: label.verdict for label in judged.labels[-2:] if label.contract} == {
        "a": "violated", "b": "trusted",
    }  # fmt: skip


def test_the_first_reading_counts_until_a_later_attempt_that_did_not_fail() -> None:
    judged = run()
    judged.feed(claims(judged, CLAIM))
    judged.feed(facts(judged, "c1"))
    assert judged.feed(facts(judged, "c1", FACT)) == []
    again = facts(judged, "c1", FACT, id="again", attempt=2)
    assert says(judged.feed(again))[-1] == "trusted final"
    failed = facts(judged, "c1", id="third", attempt=3, status="unassessed", reason="timeout")
    assert judged.feed(failed) == []
    assert says(judged.feed(facts(judged, "c1", id="fourth", attempt=4)))[-1] == "violated final"


def test_facts_of_a_result_that_was_superseded_back_nothing() -> None:
    judged = run()
    judged.feed(facts(judged, "c1", FACT))
    other = tool(2, "c1", "ticket.list", {"tickets": []}, end=10**12)
    judged.feed(other)
    newest = [r for r in judged.publisher.requests if r.step == "answer"][-1]
    judged.feed(reading(newest, claims=(CLAIM,)))
    assert "SEMANTIC_UNSUPPORTED_CLAIM" in judged.label.violations


def test_the_state_keeps_a_bounded_number_of_facts_and_only_those_that_matter() -> None:
    many = {f"k{n}": f"closed {n}" for n in range(3 * FACTS)} | {"x": "irrelevant"}
    judged = run(result=many)
    told = [{"subject": "T-9", "value": many[k], "path": f"$.{k}"} for k in many]
    judged.feed(facts(judged, "c1", *reversed(told)))
    data = judged.store.entries[0][TRACE].head
    assert data is not None
    (kept,) = (one.facts for one in decode_head(data).told.values())
    assert len(kept) == FACTS
    assert "irrelevant" not in {fact.value for fact in kept}


def test_any_order_of_readings_ends_in_the_same_label() -> None:
    def last(order: tuple[int, ...]) -> Any:
        judged = run()
        found = [claims(judged, CLAIM), facts(judged, "c1", FACT),
                 facts(judged, "user:", {"subject": "T-9", "value": "closed", "path": "$"})]  # fmt: skip
        for number in order:
            judged.feed(found[number])
        return judged.label.verdict, judged.label.layers, judged.label.violations

    ends = [last(order) for order in itertools.permutations(range(3))]
    assert all(end == ends[0] for end in ends)
    assert ends[0][0] == "trusted"


# -- the law: a fact gives a claim no more than a pointer would have ---------------------------

_PATHS = ("$", "$.tickets[0].state", "$.tickets[1].state", "$.tickets[1].id", "$.tickets", "/x")
_TEXTS = ("closed", "open", "T-9", "T-4", "9", "closed open", "ticket")


@given(
    st.sampled_from(("identifier", "quantity", "date", "quotation", "status", "action", "other")),
    st.sampled_from(_TEXTS), st.sampled_from(_TEXTS), st.sampled_from(_PATHS),
    st.sampled_from(_TEXTS),
)  # fmt: skip
def test_what_a_fact_backs_is_what_a_pointer_would_have_been_believed(
    kind: str, value: str, subject: str, path: str, told: str
) -> None:
    shown = Shown(1, "ticket.list", "{}", json.dumps(TICKETS))
    claim = Claim.model_validate(
        {**CLAIM, "kind": kind, "value": value, "subject": subject, "words": f"{subject} {value}"}
    )
    outcome = resolve(claim, [shown], whole=True)
    assert outcome is not None
    kept = Kept("r", 1, outcomes=(left_open(claim, outcome),))
    back(kept, [("tool_result", shown, [Stated(subject, told, path)])], [shown])
    if kept.outcomes[0].backed:
        pointed = Claim.model_validate(
            {**claim.model_dump(), "evidence": {"step": 1, "path": path}}
        )
        assert resolve(pointed, [shown], whole=True) is None


@given(st.text(max_size=40), st.text(max_size=40), st.text(max_size=40))
def test_whatever_a_reading_tells_nothing_breaks(subject: str, value: str, path: str) -> None:
    told = Reading(
        TRACE, "r", "c1", "c", facts=({"subject": subject, "value": value, "path": path},)
    )
    for text in (json.dumps(TICKETS), value, "[" * 5_000):
        stated(told, Shown(1, "t", "{}", text), [f"{value} is said"])
