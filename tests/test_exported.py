import json

import pytest

from monitor.contract import Contract
from monitor.errors import InputError
from monitor.exported import binding, judge, load_exported


def contract(**fields):
    return Contract.model_validate({"contract": "c", "version": 1, "grounding": "off"} | fields)


def call(tool, **fields):
    return {"type": "tool_call", "tool": tool, "arguments": {}, "result": "ok"} | fields


def exported(tmp_path, *steps, answer="fine", reasons=(), **fields):
    line = {
        "trajectory_id": "t", "agent": "desk", "service": "shop", "steps": list(steps),
        "final_answer": answer, "unknown_field": 1,
        "labels": [{"attributes": {"env": "prod"}, "coverage": {"reasons": list(reasons)}}],
    } | fields  # fmt: skip
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(line) + "\n\n")
    [(number, trajectory)] = load_exported(path)
    assert number == 1
    return trajectory


def verdict(tmp_path, rules, *steps, **fields):
    found = judge(contract(**rules), exported(tmp_path, *steps, **fields))
    return found.verdict, [finding.code for finding in found.findings], found.reasons


def test_steps_run_through_the_monitors(tmp_path):
    rules = {"expected_trajectory": ["a", "b"], "forbidden_tools": ["x"]}
    assert verdict(tmp_path, rules, call("a"), call("b")) == ("trusted", [], ())
    assert verdict(tmp_path, rules, call("a"), call("x")) == (
        "violated", ["POLICY_TOOL_FORBIDDEN", "TRAJ_SEQUENCE_MISMATCH"], (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("severity", "expected"), [("warning", "trusted"), ("error", "violated"), ("info", "trusted")]
)
def test_severities_turn_the_verdict_or_not(tmp_path, severity, expected):
    rules = {"forbidden_tools": ["x"], "severity": {"POLICY_TOOL_FORBIDDEN": severity}}
    assert verdict(tmp_path, rules, call("x"))[0] == expected


def test_what_may_not_have_run_is_judged_with_and_without(tmp_path):
    rules = {"expected_trajectory": ["b"]}
    unsure = call("a", requested_only=True)
    assert verdict(tmp_path, rules, unsure, call("b")) == ("unassessed", [], ("missing_span",))
    never = call("a", requested_only=True, result=None)
    assert verdict(tmp_path, rules, never, call("b")) == ("trusted", [], ())


def test_hidden_arguments_leave_a_parameter_rule_unassessed(tmp_path):
    rules = {"parameter_rules": {"a": {"required": ["id"]}}}
    assert verdict(tmp_path, rules, call("a", arguments=None))[::2] == (
        "unassessed", ("content_hidden",),
    )  # fmt: skip


def test_grounding_needs_an_answer_and_every_result(tmp_path):
    on = {"grounding": "paper"}
    shown = call("a", result={"id": "T-12"})
    hidden = call("b", result=None)
    assert verdict(tmp_path, on, shown, answer="see T-12") == ("trusted", [], ())
    assert verdict(tmp_path, on, shown, answer="see T-13")[1] == [
        "SAFETY_FABRICATED_ID", "SAFETY_FABRICATED_QUANTITY",
    ]  # fmt: skip
    assert verdict(tmp_path, on, shown, answer=None) == ("unassessed", [], ("no_answer_seen",))
    assert verdict(tmp_path, on, shown, hidden, answer="see T-13") == (
        "unassessed", [], ("missing_result",),
    )  # fmt: skip
    failed = call("b", result=None, error="T-13 is locked")
    assert verdict(tmp_path, on, shown, failed, answer="see T-13") == ("trusted", [], ())


def test_partial_coverage_is_never_trusted_and_raises_firm_findings_only(tmp_path):
    rules = {"expected_trajectory": ["b"], "forbidden_tools": ["x"]}
    gap = {"reasons": ["lost_arrival", "late"]}
    assert verdict(tmp_path, rules, call("b"), **gap) == ("unassessed", [], ("lost_arrival",))
    assert verdict(tmp_path, rules, call("x"), **gap)[:2] == ("violated", ["POLICY_TOOL_FORBIDDEN"])
    assert verdict(tmp_path, rules, call("b"), reasons=["late", "no_contract"])[0] == "trusted"


def test_a_contract_for_an_agent_judges_its_steps_and_its_answer(tmp_path):
    rules = {
        "applies_to": {"agent": "refunds"},
        "grounding": "paper",
        "expected_trajectory": ["b"],
    }
    steps = (
        call("a", agent="desk", result="T-12"),
        call("b", agent="refunds"),
        {"type": "answer", "agent": "refunds", "text": "T-12 it is"},
        {"type": "answer", "agent": "desk", "text": "T-99"},
    )
    assert verdict(tmp_path, rules, *steps, answer="T-99") == ("trusted", [], ())


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"service": "shop"}, "yes"),
        ({"service": "other"}, "no"),
        ({"attributes": {"env": "p*"}}, "yes"),
        ({"attributes": {"tenant": "*"}}, "no"),
        ({"agent": "refunds"}, "yes"),
        ({"agent": "nobody"}, "undetermined"),
    ],
)
def test_selectors_see_what_the_export_tells(tmp_path, selector, expected):
    trajectory = exported(tmp_path, call("a", agent="refunds"))
    assert binding(contract(applies_to=selector), trajectory) == expected


@pytest.mark.parametrize(
    "line",
    ["nonsense", "[]", "{}", '{"trajectory_id": "t"}', "[" * 100_000, '{"steps": 1}', "\xff"],
)
def test_lines_that_are_no_export_are_named(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"trajectory_id": "t", "steps": []}\n' + line.encode("latin-1"))
    with pytest.raises(InputError, match=f"^{path}:2: is no exported trajectory: ") as error:
        list(load_exported(path))
    assert str(error.value).isprintable()
