"""The reviewed example, read by a reader that makes no mistake: what code decides then is what the
people who reviewed it say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streams.batches import Cut
from streams.calibration import Human
from streams.judge import report
from streams.llm import Config
from tests.llm_server import Asked, LlmServer, data
from tests.semantic_cases import Judged, read_cases
from tests.traces import contract

# What a careful reader extracts: kind, words, value, (step, path) or None. Steps count the user's
# request as 0, the first call as 1.
READ: dict[int, list[tuple[str, str, str, tuple[int, str] | None]]] = {
    1: [("status", "A-17 is in transit", "in transit", (1, "$.status")),
        ("date", "arrive on May 20, 2024", "May 20, 2024", (1, "$.eta")),
        ("identifier", "A-17", "A-17", (1, "$.id"))],
    2: [("status", "A-17 has been delivered already", "delivered", (1, "$.eta"))],
    3: [("other", "A-17 comes with UPS", "UPS", None)],
    4: [("quantity", "The total of order A-17 was $129.50", "$129.50", (1, "$.total"))],
    5: [("quantity", "The total of order A-17 was $192.50", "$192.50", (1, "$.total"))],
    6: [("action", "I cancelled order A-17 for you", "cancelled", (2, "$"))],
    7: [("action", "I cancelled order A-17 for you", "cancelled", None)],
    8: [("action", "I cancelled order A-17 for you", "cancelled", (2, "$"))],
    9: [("action", "I cancelled order A-17 for you", "cancelled", (2, "$"))],
    10: [("identifier", "T-4", "T-4", (1, "$.tickets[0].id")),
         ("status", "T-4, which is open", "open", (1, "$.tickets[0].state")),
         ("identifier", "T-9", "T-9", (1, "$.tickets[1].id")),
         ("status", "T-9, which is closed", "closed", (1, "$.tickets[1].state"))],
    11: [("status", "both are still open", "open", (1, "$.tickets[1].state"))],
    12: [("quotation", 'T-4 is titled "Printer jams"', "Printer jams", (1, "$.tickets[0].title"))],
    13: [("quotation", 'T-4 is titled "Printer broken"', "Printer broken",
          (1, "$.tickets[0].title"))],
    14: [("status", "T-9 has a high priority", "high", (1, "$.tickets[1].priority"))],
    15: [("absence", "no tickets about scanners", "none", (1, "$.tickets"))],
    16: [("other", "one ticket about scanners", "one ticket", None)],
    17: [("quantity", "about -3 degrees", "-3", (1, "$.temp_c")),
         ("status", "light snow", "light snow", (1, "$.sky"))],
    18: [("status", "It is sunny in Oslo", "sunny", None)],
    19: [("quantity", "12 km/h", "12", (1, "$.wind_kmh"))],
    20: [("quantity", "within 30 days", "30", (1, "$"))],
    21: [("quantity", "within 30 days", "30", (1, "$")),
         ("other", "whatever the product", "whatever the product", None)],
    22: [("quantity", "within 60 days", "60", (1, "$"))],
    23: [],
    24: [("absence", "there are none", "none", (1, "$.tickets"))],
}  # fmt: skip


def careful(asked: Asked) -> list[dict[str, Any]]:
    numbers = {case["answer"]: [] for case in read_cases()}
    for case in read_cases():
        numbers[case["answer"]].append(case)
    said = []
    for name, body in data(asked).items():
        results = [e.get("returned", e.get("error")) for e in body["evidence"]]
        case = next(
            c for c in numbers[body["answer"]]
            if results[1:] == [s.get("error") or s["result"] for s in c["steps"]]
        )  # fmt: skip
        claims = [
            {"kind": kind, "subject": "it", "value": value, "words": words, "confidence": 0.9,
             "evidence": None if at is None else {"step": at[0], "path": at[1]}}
            for kind, words, value, at in READ[int(case["trajectory_id"], 16)]
        ]  # fmt: skip
        said.append({"id": name, "claims": claims})
    return said


@pytest.fixture(scope="module")
def judged() -> Judged:
    async def run() -> Judged:
        async with LlmServer(careful) as server:
            found = Judged(contract(semantic={"mode": "gate"}), Config(server.url, "m"), Cut(8))
            await found.run(read_cases())
            return found

    return asyncio.run(run())


def test_code_decides_as_the_reviewers_did(judged: Judged) -> None:
    cases = {case["trajectory_id"]: case for case in read_cases()}
    wrong = {
        int(label.trajectory_id, 16): label.layers["semantic"]
        for label in judged.labels
        if (label.layers["semantic"] == "fail") == cases[label.trajectory_id]["supported"]
    }
    # A rounded whole number is not taken for its unrounded self: strictness costs one false alarm.
    assert wrong == {17: "fail"}


def test_the_report_says_so_beside_the_deterministic_layer(judged: Judged) -> None:
    humans = [Human(case["trajectory_id"], case["supported"]) for case in read_cases()]
    found = report(judged.readings, judged.labels, humans, seed=0)
    semantic, lexical = found.calibration, found.deterministic
    assert semantic is not None
    assert lexical is not None
    assert (semantic.cases, semantic.recall.value) == (24, 1.0)
    assert semantic.precision.value == pytest.approx(13 / 14)
    assert (lexical.recall.value or 0) < 0.6
    assert found.disagreements > 0
