"""Claims against evidence: code decides, whatever the model says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Reading
from monitor.prompt import instructions
from monitor.reading import READING_VERSION, Claim, Kept, Outcome, Read, Shown, batch_schema
from monitor.resolve import resolve
from monitor.semantic import disagreement, judge, keep, left_out
from tests.traces import TRACE, contract

ORDER = {
    "id": "A-17", "status": "in_transit", "total": 1234.5, "placed": "2024-05-17T09:30:00Z",
    "items": [{"sku": "S-1", "note": "“Handle with care” – fragile"}], "refunds": [], "paid": True,
}  # fmt: skip
EVIDENCE = [
    Shown(-1, result="earlier: order Z-9"),
    Shown(0, result="where is my order A-17?"),
    Shown(1, "order.get", '{"id": "A-17"}', json.dumps(ORDER)),
    Shown(2, "order.cancel", '{"id": "A-17"}', '{"ok": true}'),
    Shown(3, "order.refund", '{"id": "A-17"}', None, "permission denied"),
    Shown(4, "search", "{}", "No results found."),
]


def claim(kind: str, words: str, step: int | None, path: str = "$", **more: Any) -> Claim:
    fields = {
        "kind": kind, "subject": "order", "value": words, "words": words, "confidence": 0.9,
        "evidence": None if step is None else {"step": step, "path": path}, **more,
    }  # fmt: skip
    return Claim.model_validate(fields)


def decided(found: Claim, *, whole: bool = True) -> str:
    outcome = resolve(found, EVIDENCE, whole=whole)
    return "supported" if outcome is None else outcome.decided


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (claim("identifier", "A-17", 1, "$.id"), "supported"),
        (claim("identifier", "A-17", 0), "supported"),
        (claim("identifier", "A-1", 1, "$.id"), "mismatch"),
        (claim("identifier", "A-17", 1, "$.status"), "mismatch"),
        (claim("identifier", "B-99", None), "unsupported"),
        (claim("identifier", "B-99", 1, "$.id"), "mismatch"),
        (claim("identifier", "Z-9", -1), "supported"),
        (claim("quantity", "$1,234.50", 1, "$.total"), "supported"),
        (claim("quantity", "1234.5", 1, "total"), "supported"),
        (claim("quantity", "1,235", 1, "$.total"), "mismatch"),
        (claim("quantity", "1 item", 1, "$.items[0].sku"), "mismatch"),
        (claim("date", "May 17, 2024", 1, "$.placed"), "supported"),
        (claim("date", "17 May at 9:30 am", 1, "$.placed"), "supported"),
        (claim("date", "17.05.2024", 1, "/placed"), "supported"),
        (claim("date", "18 May 2024", 1, "$.placed"), "mismatch"),
        (claim("date", "17 May at 9:31", 1, "$.placed"), "mismatch"),
        (claim("quotation", '"handle with care" - fragile', 1, "$.items[0]['note']"), "supported"),
        (claim("quotation", '"handle with love"', 1, "$.items[0].note"), "mismatch"),
        (claim("status", "in transit", 1, "$.status"), "supported"),
        (claim("status", "delivered", 1, "$.refunds"), "mismatch"),
        (claim("status", "the order is under way", 1, "$.status"), "unchecked"),
        (claim("status", "paid", 1, "$.paid"), "unchecked"),
        (claim("absence", "no refunds", 1, "$.refunds"), "supported"),
        (claim("absence", "nothing was found", 4), "supported"),
        (claim("absence", "no items", 1, "$.items"), "unchecked"),
        (claim("action", "I cancelled A-17", 2), "supported"),
        (claim("action", "I cancelled it", None), "unsupported"),
        (claim("action", "I refunded A-17", 3), "mismatch"),
        (claim("action", "I looked A-17 up and closed it", 1), "mismatch"),
        (claim("action", "I cancelled A-17", 0), "mismatch"),
        (claim("other", "it is blue", 9), "unsupported"),
        (claim("other", "it is blue", 1, "$.colour"), "unsupported"),
        (claim("other", "it is blue", 1, "$.items[7]"), "unsupported"),
        (claim("other", "it is blue", 1, "$..[?(@)]"), "unsupported"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.kind} {value.words}",
)
def test_each_kind_is_compared_in_its_own_way(found: Claim, expected: str) -> None:
    assert decided(found) == expected


def test_a_value_fitted_to_the_evidence_is_not_what_the_answer_says() -> None:
    """The model says 1234.5, where the answer says 1,900."""
    fitted = claim("quantity", "1,900", 1, "$.total", value="1234.5")
    assert decided(fitted) == "mismatch"


def test_no_kind_excuses_a_number_or_identifier_that_stands_nowhere() -> None:
    hidden = claim("other", "as agreed, order Q-4711 costs 99", 1, "$.status")
    assert decided(hidden) == "mismatch"


def test_what_points_at_nothing_is_undecided_when_not_all_was_shown() -> None:
    assert decided(claim("other", "it is blue", None), whole=False) == "undecided"
    assert decided(claim("other", "it is blue", None)) == "unsupported"


@given(st.text(max_size=60), st.text(max_size=40), st.sampled_from(EVIDENCE))
def test_whatever_a_model_points_at_nothing_breaks(words: str, path: str, shown: Shown) -> None:
    for kind in ("identifier", "quantity", "date", "quotation", "status", "action", "absence"):
        decided(claim(kind, words, shown.step, path))


def test_hostile_evidence_costs_little() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    wide = json.dumps([[i] for i in range(30_000)])
    long = "1" * 200_000 + "," * 1000
    for text in (deep, wide, long):
        resolve(claim("quantity", "17", 1), [Shown(1, "t", "{}", text)], whole=True)


# -- a whole reading -------------------------------------------------------------------------


def reading(*claims: Claim, **more: Any) -> Reading:
    return Reading(TRACE, "r", "answer", "c", claims=tuple(c.model_dump() for c in claims), **more)


ANSWER = 'Order A-17 costs 1,234.50. It has been updated and says "fragile".'


def test_a_reading_that_leaves_out_what_code_finds_is_no_pass() -> None:
    """A result that ordered the model to say nothing does not buy a pass."""
    assert left_out(ANSWER, []) == ["a-17", "fragile", "17", "234", "50", "has been updated"]
    kept = keep(reading(), ANSWER, EVIDENCE, hidden=False)
    assert kept.reason == "invalid"
    assert keep(reading(), "Hello, how can I help?", EVIDENCE, hidden=False).reason is None


def test_claims_that_the_answer_does_not_make_are_dropped() -> None:
    own = claim("other", "how can I help", 1, "$.status")
    invented = claim("other", "everything is perfect", 1, "$.status")
    kept = keep(reading(own, invented), "Hello, how can I help?", EVIDENCE, hidden=False)
    assert (kept.claims, kept.reason) == (1, None)
    kept = keep(reading(invented), "Hello, how can I help?", EVIDENCE, hidden=False)
    assert kept.reason == "invalid"


def test_no_excerpt_is_kept_where_a_filtered_field_is_near() -> None:
    kept = keep(reading(claim("other", "how can I help", None)), "how can I help", [], hidden=True)
    read = Read("answer", "p", "c", 0, kept)
    _, findings, _ = judge(contract(semantic={"mode": "gate"}), read)
    assert [finding.evidence for finding in findings] == [None]


def outcome(decided: Any, confidence: float = 0.9, kind: Any = "other") -> Outcome:
    return Outcome(decided, kind, "w", confidence, "m")


@pytest.mark.parametrize(
    ("outcomes", "state", "codes"),
    [
        ([], "pass", []),
        ([outcome("unsupported")], "fail", ["SEMANTIC_UNSUPPORTED_CLAIM"]),
        ([outcome("mismatch")], "fail", ["SEMANTIC_EVIDENCE_MISMATCH"]),
        ([outcome("mismatch", kind="action")], "fail", ["SEMANTIC_UNSUPPORTED_ACTION"]),
        ([outcome("unchecked")], "pass", ["SEMANTIC_UNCHECKED_CLAIM"]),
        ([outcome("undecided")], "unassessed", []),
        ([outcome("unsupported", 0.2)], "unassessed", []),
        (
            [outcome("unsupported", 0.2), outcome("mismatch")],
            "fail",
            ["SEMANTIC_EVIDENCE_MISMATCH"],
        ),
    ],
)
def test_state_of_the_layer(outcomes: list[Outcome], state: str, codes: list[str]) -> None:
    judging = contract(semantic={"mode": "gate", "min_confidence": 0.5})
    read = Read("answer", "p", "c", 0, Kept("r", 1, outcomes=tuple(outcomes)))
    found, findings, _ = judge(judging, read)
    assert (found, [finding.code for finding in findings]) == (state, codes)


def test_a_severity_of_the_contract_counts() -> None:
    code = "SEMANTIC_UNSUPPORTED_CLAIM"
    mild = contract(semantic={"mode": "gate"}, severity={code: "warning"})
    read = Read("answer", "p", "c", 0, Kept("r", 1, outcomes=(outcome("unsupported"),)))
    state, findings, _ = judge(mild, read)
    assert (state, findings[0].severity) == ("pass", "warning")


def test_disagreement_is_for_review_and_turns_nothing() -> None:
    judging = contract(semantic={"mode": "gate"})
    for one, other in (("pass", "fail"), ("fail", "pass")):
        found = disagreement(judging, one, other)  # type: ignore[arg-type]
        assert found is not None
        assert found.severity == "info"
    assert disagreement(judging, "fail", "fail") is None
    assert disagreement(judging, "unassessed", "fail") is None


# -- what the model is told ------------------------------------------------------------------


def test_a_change_of_what_the_model_is_told_is_a_change_of_version() -> None:
    """Raise READING_VERSION when this digest changes: steps are then read again."""
    from monitor.model import digest

    told = [instructions(t, "") + json.dumps(batch_schema(t)) for t in ("answer", "tool_result")]
    assert (READING_VERSION, digest(*told, size=8)) == (1, "4935b266e9dcf6e3")


def test_the_schema_is_one_that_servers_constrain_decoding_by() -> None:
    from jsonschema import Draft202012Validator

    for type_ in ("answer", "tool_result"):
        schema = batch_schema(type_)  # type: ignore[arg-type]
        Draft202012Validator.check_schema(schema)
        stack: list[Any] = [schema]
        while stack:
            part = stack.pop()
            if isinstance(part, dict):
                if part.get("type") == "object":
                    assert part["additionalProperties"] is False
                    assert set(part["required"]) == set(part["properties"])
                assert not {"maxLength", "maximum", "maxItems"} & part.keys()
                stack += part.values()
            elif isinstance(part, list):
                stack += part
