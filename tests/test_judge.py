"""`agenttrust judge report`: rates from readings and labels, agreement with people."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import InputError
from monitor.label import ContractRef, Label
from monitor.model import Account, Coverage, Reading
from streams.calibration import Human, agreement, kappa, precision, read_humans, recall
from streams.judge import document, report, text


def trace(number: int) -> str:
    return f"{number:032x}"


def reading(number: int, reason: str | None = None, **account: Any) -> Reading:
    about: dict[str, Any] = {
        "batch": 4, "latency": 0.5 + number, "input_tokens": 100, "output_tokens": 10,
        "cost": 0.002, **account,
    }  # fmt: skip
    return Reading(
        trace(number), f"r{number}", "answer", "c",
        status="assessed" if reason is None else "unassessed", reason=reason,
        account=Account("m-1", "p", "r", **about),
    )  # fmt: skip


def label(
    number: int, semantic: str, grounding: str = "pass", revision: int = 1, **more: Any
) -> Label:
    layers: Any = {"policy": "pass", "grounding": grounding, "semantic": semantic}
    fields: dict[str, Any] = {
        "trajectory_id": trace(number), "conversation_id": None, "agent": None, "service": None,
        "attributes": {}, "contract": ContractRef("c", 1, "d"), "verdict": "trusted",
        "phase": "final", "coverage": Coverage("complete", ()), "layers": layers, "violations": (),
        "pending": (), "steps": 1, "revision": revision, "closed": "idle", "policy_set": "p",
        "fold_version": 1, **more,
    }  # fmt: skip
    return Label(**fields)


def test_rates_and_cost() -> None:
    readings = [reading(n) for n in range(6)] + [reading(6, "invalid"), reading(7, "timeout")]
    readings += [reading(8, batch=0, cost=0.0), reading(0)]
    found = report(readings, [], None, seed=0)
    assert (found.readings, found.trajectories, found.from_cache) == (9, 9, 1)
    assert found.unassessed == {"invalid": 1, "timeout": 1}
    assert found.unassessed_rate == pytest.approx(2 / 9)
    assert found.invalid_rate == pytest.approx(1 / 9)
    assert found.cost == pytest.approx(0.016)
    assert found.cost_of_1000 == pytest.approx(16 / 9)
    assert found.latency_median == 4.5
    assert "1.78 USD for 1 000 trajectories" in text(found)
    assert document(found)["invalid_rate"] == found.invalid_rate


def test_the_last_label_of_a_trajectory_counts() -> None:
    labels = [
        label(1, "fail", revision=2, violations=("SEMANTIC_DISAGREEMENT",)),
        label(1, "open"),
        label(2, "pass"),
        label(3, "pass", contract=None),
    ]
    found = report([], labels, None, seed=0)
    assert (found.labels, found.layers) == (2, {"fail": 1, "pass": 1})
    assert found.disagreement_rate == 0.5


def test_nothing_at_all_is_no_error() -> None:
    found = report([], [], [], seed=0)
    assert found.cost_of_1000 == found.unassessed_rate == 0
    assert "not defined" in text(found)


def test_people_are_asked_about_what_was_assessed_only() -> None:
    labels = [label(1, "fail"), label(2, "pass"), label(3, "fail"), label(4, "unassessed"),
              label(5, "pass", grounding="fail")]  # fmt: skip
    humans = [Human(trace(1), False), Human(trace(2), True), Human(trace(3), True),
              Human(trace(4), False), Human(trace(5), False), Human(trace(9), True)]  # fmt: skip
    found = report([], labels, humans, seed=1)
    one = found.calibration
    assert one is not None
    assert (one.cases, one.unjudged) == (4, 2)
    assert (one.hits, one.false_alarms, one.misses, one.agreed_supported) == (1, 1, 1, 1)
    assert (one.precision.value, one.recall.value, one.kappa.value) == (0.5, 0.5, 0.0)
    assert found.deterministic is not None
    assert found.deterministic.hits == 1
    assert "semantic against 4 human labels (2 more were not judged)" in text(found)


def test_a_published_example_of_kappa() -> None:
    """50 proposals: both yes 20, both no 15, apart 5 and 10: kappa 0.4."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert kappa(pairs) == pytest.approx(0.4)
    assert precision(pairs) == pytest.approx(20 / 25)
    assert recall(pairs) == pytest.approx(20 / 30)


def judged(count: int, seed: int) -> tuple[dict[tuple[str, str], bool | None], list[Human]]:
    draws = random.Random(seed)
    found: dict[tuple[str, str], bool | None] = {}
    humans = []
    for number in range(count):
        truth = draws.random() < 0.4
        found[trace(number), "c"] = truth if draws.random() < 0.8 else not truth
        humans.append(Human(trace(number), not truth))
    return found, humans


def test_the_seed_decides_the_intervals_and_more_cases_narrow_them() -> None:
    few = agreement(*judged(30, 1), seed=7, samples=300)
    assert few == agreement(*judged(30, 1), seed=7, samples=300)
    assert few != agreement(*judged(30, 1), seed=8, samples=300)
    many = agreement(*judged(1500, 1), seed=7, samples=300)

    def width(estimate: Any) -> float:
        return float(estimate.high - estimate.low)

    for name in ("precision", "recall", "kappa"):
        one = getattr(few, name)
        assert one.low <= one.value <= one.high
        assert width(getattr(many, name)) < width(one)
    assert many.recall.low <= 0.8 <= many.recall.high


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_figures_are_within_their_bounds(pairs: list[tuple[bool, bool]]) -> None:
    for figure in (precision, recall):
        value = figure(pairs)
        assert value is None or 0 <= value <= 1
    value = kappa(pairs)
    assert value is None or -1 - 1e-9 <= value <= 1 + 1e-9


def test_a_file_of_human_labels(tmp_path: Path) -> None:
    path = tmp_path / "humans.jsonl"
    path.write_text('{"trajectory_id": "t", "supported": false, "by": "me", "x": 1}\n\n')
    assert read_humans(path) == [Human("t", False, "me")]
    path.write_text('{"trajectory_id": "t", "supported": "no"}\n')
    with pytest.raises(InputError, match=r"humans.jsonl:1.*supported"):
        read_humans(path)
