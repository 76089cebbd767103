"""Judgement, walked through: runs folded arrival by arrival, and what is said after each."""

from __future__ import annotations

from monitor.contract import Limits
from monitor.model import HISTORY_LOST, Lost, Message
from tests.traces import (
    SECOND,
    TRACE,
    Run,
    contract,
    llm,
    other,
    root,
    says,
    span_id,
    tool,
)


def test_01_answer_before_its_tool_span_is_never_a_violation() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    assert says(run.feed(llm(1, req=[("c1", "a")]))) == ["open prov"]
    assert run.label.pending == ("root", "answer", "sequence", "grounding", "result:c1")
    assert says(run.feed(llm(3, ans="see T-1", history=[("c1", "a", "T-1")]))) == []
    assert says(run.feed(tool(2, "c1", "a", "T-1"))) == []
    assert says(run.feed(root())) == ["trusted prov"]
    assert says(run.close()) == ["trusted final"]
    assert run.label.coverage.state == "complete"
    assert run.label.closed == "root_settled"


def test_02_early_root_and_hidden_history_are_withdrawn_by_the_same_ids() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    assert says(run.feed(root())) == ["open prov"]
    raised = run.feed(llm(3, ans="see T-1"))
    assert says(raised) == ["+FABRICATED_ID", "+SEQUENCE_MISMATCH", "violated prov"]
    withdrawn = run.feed(llm(1, req=[("c1", "a")]))
    assert says(withdrawn) == ["-FABRICATED_ID", "-SEQUENCE_MISMATCH", "open prov"]
    assert [v.body.id for v in raised[:2]] == [v.body.id for v in withdrawn[:2]]
    assert says(run.feed(tool(2, "c1", "a", "T-1"))) == ["trusted prov"]
    assert says(run.close()) == ["trusted final"]


def test_03_order_is_by_causality_and_start_not_by_arrival() -> None:
    run = Run(contract(expected_trajectory=["a", "b"]))
    assert says(run.feed(tool(2, "c2", "b"))) == ["open prov"]
    assert says(run.feed(tool(1, "c1", "a"))) == []
    assert says(run.feed(llm(3, ans="ok"))) == []
    assert says(run.feed(root())) == ["trusted prov"]
    assert says(run.close()) == ["trusted final"]


def test_04_forbidden_is_told_at_once_and_missing_result_withholds_the_sequence() -> None:
    run = Run(contract(forbidden_tools=["a"], expected_trajectory=["b"]))
    assert says(run.feed(llm(1, req=[("c1", "a")]))) == ["+TOOL_FORBIDDEN", "violated prov"]
    assert says(run.feed(llm(2, ans="no"))) == []
    assert says(run.feed(root())) == []
    assert "result:c1" in run.label.pending
    assert [c.reason for c in run.closes()] == ["idle"]
    assert says(run.close("idle")) == ["violated final"]
    assert run.label.violations == ("POLICY_TOOL_FORBIDDEN",)
    assert run.label.coverage.reasons == ("missing_result",)
    assert run.label.layers["trajectory"] == "unassessed"


def test_05_a_call_whose_span_is_missing_leaves_the_sequence_undecided() -> None:
    run = Run(contract(expected_trajectory=["b"], allowed_tools=["b"]))
    assert says(run.feed(llm(1, req=[("c1", "zz")]))) == ["+TOOL_NOT_ALLOWED", "violated prov"]
    run.feed(llm(2, req=[("c2", "b")], history=[("c1", "zz", "unknown tool")]))
    run.feed(tool(3, "c2", "b"))
    run.feed(llm(4, ans="done", history=[("c2", "b", "ok")]))
    run.feed(root())
    run.close()
    assert run.label.layers == {"policy": "fail", "grounding": "pass", "trajectory": "unassessed"}
    assert run.label.coverage.reasons == ("missing_span",)


def test_06_no_answer_seen() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    assert says(run.feed(tool(1, "c1", "a", "x"))) == ["open prov"]
    assert says(run.feed(root())) == []
    assert [c.reason for c in run.closes()] == ["idle"]
    assert says(run.close("idle")) == ["unassessed final"]
    assert run.label.coverage.reasons == ("no_answer_seen",)
    assert run.label.layers["trajectory"] == "pass"
    assert run.label.layers["grounding"] == "unassessed"


def test_07_a_visible_blank_answer() -> None:
    run = Run(contract())
    assert says(run.feed(llm(1, ans="  "))) == ["open prov"]
    assert says(run.feed(root())) == ["+EMPTY_ANSWER", "violated prov"]
    assert says(run.close()) == ["violated final"]


def test_08_a_late_span_revises_the_final_label() -> None:
    run = Run(contract(forbidden_tools=["z"]))
    run.feed(llm(1, ans="ok"))
    run.feed(root())
    assert says(run.close()) == ["trusted final"]
    revision = run.label.revision
    assert says(run.feed(tool(0, "c1", "z"))) == ["+TOOL_FORBIDDEN", "violated final"]
    assert run.label.revision == revision + 1
    assert run.label.coverage.reasons == ("late",)


def test_09_a_late_span_withdraws() -> None:
    run = Run(contract())
    assert says(run.feed(llm(2, ans="T-1"))) == ["open prov"]
    assert says(run.feed(root())) == ["+FABRICATED_ID", "violated prov"]
    assert says(run.close()) == ["violated final"]
    revision = run.label.revision
    assert says(run.feed(tool(1, "c1", "a", "T-1"))) == ["-FABRICATED_ID", "trusted final"]
    assert run.label.revision == revision + 1
    assert run.label.coverage.reasons == ("late",)


def test_10_a_lost_arrival_raises_nothing_that_it_could_refute() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    run.feed(llm(1, ans="T-9"))
    run.feed(Lost(TRACE, "not OTLP", "otlp_spans:0:7:0"))
    run.feed(root())
    run.close()
    assert run.label.verdict == "unassessed"
    assert run.label.coverage.reasons == ("lost_arrival",)
    assert run.violations == []


def test_10_a_lost_history_is_its_own_reason_and_also_told_after_the_close() -> None:
    run = Run(contract())
    run.feed(llm(1, ans="ok"), root())
    assert says(run.close()) == ["trusted final"]
    run.feed(Lost(TRACE, HISTORY_LOST, "agenttrust.journal:0:7:"))
    assert run.label.verdict == "unassessed"
    assert run.label.coverage.reasons == ("history_lost", "late")


def test_10_a_loss_that_is_told_long_before_its_run_is_not_forgotten() -> None:
    run = Run(contract())
    run.feed(Lost(TRACE, "bad_id", "otlp_spans:0:7:0"))
    assert says(run.close("idle")) == []
    run.feed(llm(1, ans="ok"), root())
    assert (run.label.phase, run.label.verdict) == ("final", "unassessed")
    assert run.label.coverage.reasons == ("late", "lost_arrival")


def test_11_never_trusted_in_mid_run() -> None:
    run = Run(contract(grounding="off", forbidden_tools=["z"]))
    assert says(run.feed(llm(1, req=[("c1", "a")]))) == ["open prov"]
    assert says(run.feed(tool(2, "c1", "a", "x"))) == []
    assert says(run.feed(llm(3, ans="ok", history=[("c1", "a", "x")]))) == []
    assert says(run.feed(root())) == ["trusted prov"]
    assert says(run.close()) == ["trusted final"]
    assert run.label.layers["grounding"] == "off"


def test_12_spans_without_agent_meaning_are_forgotten() -> None:
    run = Run(contract())
    run.feed(other(1), other(2, parent=span_id(1)))
    run.close("idle")
    assert run.events == []
    assert run.store.entries == {0: {}}


def test_13_no_run_root() -> None:
    run = Run(contract())
    run.feed(tool(1, "c1", "a", "T-1"))
    run.feed(llm(2, ans="T-1"))
    assert says(run.close("idle")) == ["unassessed final"]
    assert run.label.coverage.reasons == ("missing_span",)
    assert run.violations == []


def test_14_a_parent_that_is_never_seen() -> None:
    run = Run(contract())
    run.feed(tool(1, "c1", "a", "T-1", parent=span_id(77)))
    run.feed(llm(2, ans="T-1"))
    run.feed(root())
    assert [c.reason for c in run.closes()] == ["idle"]
    run.close("idle")
    assert run.label.verdict == "unassessed"
    assert run.label.coverage.reasons == ("missing_span",)


def test_15_layers_of_one_call() -> None:
    run = Run(contract(expected_trajectory=["a", "b"]))
    run.feed(tool(2, None, "a", None, span=span_id(9), parent=span_id(1), remote=True,
                  service="mcp", arguments=None))  # fmt: skip
    assert run.label.pending[0] == "root"
    run.feed(tool(1, "c1", "a", "T-1", span=span_id(1)))
    run.feed(tool(3, "c2", "b"))
    run.feed(llm(4, ans="ok"))
    run.feed(root())
    assert says(run.close()) == ["trusted final"]
    assert run.label.steps == 3


def test_16_several_runs() -> None:
    run = Run(contract(expected_trajectory=["a"]))
    run.feed(tool(1, "c1", "a"), llm(2, ans="ok"), root())
    run.feed(root(span=span_id(50), start=50), llm(51, ans="ok", parent=span_id(50)))
    run.close()
    assert run.label.verdict == "unassessed"
    assert run.label.coverage.reasons == ("several_runs",)
    assert run.label.layers["policy"] == "pass"


def test_17_step_limit() -> None:
    run = Run(contract(forbidden_tools=["z"]), limits=Limits(max_steps=5))
    run.feed(tool(1, "c1", "z"))
    for number in range(2, 20):
        run.feed(tool(number, f"c{number}", "a"))
    run.feed(root())
    assert run.label.verdict == "violated"
    assert run.label.closed == "step_limit"
    assert run.label.phase == "final"
    assert run.label.coverage.reasons == ("step_limit",)
    assert run.label.steps == 5
    run = Run(contract(), limits=Limits(max_steps=5))
    for number in range(1, 20):
        run.feed(tool(number, f"c{number}", "a"))
    assert says(run.events) == ["open prov", "unassessed final"]


def test_18_arguments_that_another_layer_shows() -> None:
    run = Run(contract(parameter_rules={"a": {"required": ["x", "y"]}}))
    assert says(run.feed(tool(2, "c1", "a", arguments=None))) == ["open prov"]
    assert "arguments:c1" in run.label.pending
    raised = run.feed(llm(1, req=[("c1", "a", {})]))
    assert says(raised) == ["+PARAM_MISSING", "+PARAM_MISSING", "violated prov"]
    assert len({event.body.id for event in raised[:2]}) == 2
    run.feed(llm(3, ans="ok"))
    run.feed(root())
    assert says(run.close()) == ["violated final"]


def test_19_an_agent_that_is_never_named() -> None:
    run = Run(contract(applies_to={"agent": "X"}))
    assert run.feed(llm(1, ans="ok"), root(None)) == []
    assert says(run.close()) == ["unassessed final"]
    assert run.label.contract is None
    assert run.label.coverage.reasons == ("agent_unknown",)


def test_20_late_binding_runs_the_known_steps_through_once() -> None:
    run = Run(contract(applies_to={"agent": "X"}, forbidden_tools=["z"]))
    assert run.feed(llm(1, req=[("c1", "z")])) == []
    assert says(run.feed(root("X"))) == ["+TOOL_FORBIDDEN", "violated prov"]


def test_21_one_label_for_each_contract() -> None:
    run = Run(contract("one"), contract("two", grounding="off"))
    run.feed(llm(1, ans="T-1"), root())
    run.close()
    final = {label.contract.name: label for label in run.labels if label.contract}
    assert final["one"].verdict == "violated"
    assert final["two"].verdict == "trusted"
    both = Run(contract("one", 1), contract("one", 2), contract("two"))
    both.feed(llm(1, ans="T-1"), root())
    assert len({v.id for v in both.violations}) == 3


def test_22_a_trajectory_is_judged_by_the_set_of_its_first_arrival() -> None:
    run = Run(contract("c", 3, forbidden_tools=["z"]))
    run.feed(llm(1, req=[("c1", "a")]))
    old = run.policy_set
    from monitor.contract import PolicySet

    run.policy_set = PolicySet([contract("c", 4, forbidden_tools=["a"])])
    run.sets.add(run.policy_set)
    run.feed(tool(2, "c1", "a"), llm(3, ans="ok"), root())
    assert says(run.close()) == ["trusted final"]
    assert run.label.policy_set == old.digest
    assert run.label.contract is not None
    assert run.label.contract.version == 3


def test_a_claimed_action_of_which_only_history_tells_is_not_trusted() -> None:
    run = Run(contract())
    run.feed(llm(1, req=[("c1", "update_ticket")]))
    run.feed(llm(2, ans="The ticket has been updated.", history=[("c1", "update_ticket", "ok")]))
    run.feed(root())
    run.close()
    assert run.label.layers["grounding"] == "unassessed"
    assert run.label.coverage.reasons == ("missing_span",)


def test_what_an_agent_says_stands_at_the_end_of_its_run() -> None:
    """No model is seen: the agent's own span shows its answer, around the spans of its tools."""
    said = {
        "inputs": (Message("user", "How many?"),),
        "outputs": (Message("assistant", "There are 42."),),
    }
    run = Run(contract(expected_trajectory=["a", "a"]))
    assert says(run.feed(tool(1, "c1", "a", {"n": 42}))) == ["open prov"]
    assert says(run.feed(tool(5, "c2", "a", {"n": 7}))) == []
    assert says(run.feed(root(end=9 * SECOND, **said))) == ["trusted prov"]
    assert run.label.steps == 4
    assert says(run.feed(tool(2, "c3", "b"))) == ["+SEQUENCE_MISMATCH", "violated prov"]
    assert says(run.close()) == ["violated final"]
    assert run.label.coverage.reasons == ()

    run = Run(contract())
    run.feed(root(end=9 * SECOND, **said))
    run.feed(tool(1, "c1", "a", {"n": 42}))
    assert says(run.feed(tool(10, "c2", "a"))) == ["open prov"]  # after the answer
    run.close()
    assert run.label.coverage.reasons == ("no_answer_seen",)
