"""A reading's way through fold and label; who writes readings is not this test's business."""

from __future__ import annotations

import pytest

from monitor.head import content_digest
from monitor.model import Close, Reading
from tests.traces import TRACE, Run, contract, llm, root, says

ANSWER = "all is well"


def reading(**more: object) -> Reading:
    fields: dict[str, object] = {
        "id": "r1",
        "step": "answer",
        "content": content_digest(ANSWER),
        "claims": ({"text": "all is well", "evidence": None},),
        **more,
    }
    return Reading(TRACE, **fields)  # type: ignore[arg-type]


def run(mode: str) -> Run:
    judged = Run(contract(semantic={"mode": mode}))
    judged.feed(llm(1, ans=ANSWER), root())
    return judged


def test_advisory_lists_a_warning_and_turns_nothing() -> None:
    judged = run("advisory")
    assert says(judged.close()) == ["trusted final"]
    assert judged.label.pending == ("semantic",)
    assert says(judged.feed(reading())) == ["+UNSUPPORTED_CLAIM", "trusted final"]
    assert judged.violations[-1].severity == "warning"
    assert judged.label.layers["semantic"] == "fail"
    assert "late" not in judged.label.coverage.reasons


def test_a_gate_keeps_the_label_open_until_the_reading_is_in() -> None:
    judged = run("gate")
    assert says(judged.close()) == ["open prov"]
    assert judged.label.closed == "root_settled"
    assert judged.label.pending == ("semantic",)
    assert says(judged.feed(reading())) == ["+UNSUPPORTED_CLAIM", "violated final"]


def test_a_gate_whose_reading_failed_is_unassessed_never_trusted() -> None:
    judged = run("gate")
    judged.close()
    told = judged.feed(reading(status="unassessed", reason="timeout", claims=()))
    assert says(told) == ["unassessed final"]


def test_a_claim_with_evidence_is_supported() -> None:
    judged = run("gate")
    judged.close()
    claims = ({"text": "all is well", "evidence": {"step": 1, "path": "$"}},)
    assert says(judged.feed(reading(claims=claims))) == ["trusted final"]


@pytest.mark.parametrize(
    "second",
    [reading(id="r2", claims=()), reading(content="superseded"), reading(step="c1")],
    ids=["second", "superseded", "other step"],
)
def test_only_the_first_reading_of_the_answer_as_it_stands_counts(second: Reading) -> None:
    judged = run("advisory")
    judged.feed(reading())
    assert judged.feed(second) == []


def test_without_a_contract_that_asks_a_reading_changes_nothing() -> None:
    judged = Run(contract())
    judged.feed(llm(1, ans=ANSWER), root())
    judged.close()
    assert judged.feed(reading()) == []
    assert "semantic" not in judged.label.layers


def test_a_reading_keeps_a_close_from_counting() -> None:
    """It is a journal item of the trajectory: a close written before it was read is ignored."""
    judged = run("advisory")
    due = Close(TRACE, "root_settled", judged.last_arrival)
    judged.feed(reading())
    assert judged.feed(due) == []
    assert judged.label.closed is None
