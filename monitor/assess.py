"""RGE state -> judgement: what each layer says, what stands in its way, what may be published now.

`assess` is a function of the state alone, so that a finding which later facts refute is no longer
in it. A finding of `now` follows from what is known, whatever arrives. One of `later` is given only
at quiescence or close, and only in a layer that nothing missing keeps from judging (a few, `FIRM`,
do not depend on what is missing). Before that a layer without a failure is `open`.
"""

from __future__ import annotations

from typing import Final

from monitor import ask, semantic
from monitor.bench import Bench, Judge
from monitor.head import Head, Standing
from monitor.model import (
    FIRM,
    Coverage,
    Finding,
    Judgement,
    Layer,
    LayerState,
    Phase,
    Struct,
    Verdict,
)
from monitor.reading import parser_digest
from monitor.window import judgements, ran

PENDING: Final = 32
"""Entries of `pending` at most; a label is no log."""


ALL: Final[tuple[str, ...]] = ("policy", "grounding", "trajectory", "semantic")


_SEQUENCE: Final = ("TRAJ_MISSING_REQUIRED_TOOL", "TRAJ_SEQUENCE_MISMATCH")


_TURNING: Final = ("error", "critical")


class Assessment(Struct, frozen=True):
    """What a trajectory's state says under one contract, before it is compared with the past."""

    verdict: Verdict
    phase: Phase
    coverage: Coverage
    layers: dict[Layer, LayerState]
    findings: tuple[Finding, ...]
    pending: tuple[str, ...]


class Reasons:
    """Coverage reasons, each with the layers that it keeps from judging."""

    def __init__(self) -> None:
        self.of: dict[str, set[str]] = {}

    def add(self, reason: str, *layers: str) -> None:
        self.of.setdefault(reason, set()).update(layers)

    def unassessed(self, layer: str) -> bool:
        return any(layer in layers for layers in self.of.values())

    def coverage(self) -> Coverage:
        partial = any(reason != "late" for reason in self.of)
        return Coverage("partial" if partial else "complete", tuple(sorted(self.of)))


def assess(head: Head, standing: Standing, judge: Judge, bench: Bench) -> Assessment:
    """The judgement on the prefix under one contract (design: stability, verdict, coverage)."""
    policy, trajectory = judgements(head, standing, judge, bench.ruled)
    grounding = standing.grounding or Judgement()
    reasons = _reasons(head, standing, judge, policy, trajectory, grounding)
    checks = judge.checks
    findings: list[Finding] = []
    layers: dict[Layer, LayerState] = {}

    def layer(name: Layer, judgement: Judgement, *, active: bool = True) -> None:
        unassessed = reasons.unassessed(name)
        said = [*judgement.now]
        if head.settled and head.limit != "fold_error":
            said += (f for f in judgement.later if not unassessed or f.code in FIRM)
        if name == "trajectory" and reasons.unassessed("sequence"):
            said = [finding for finding in said if finding.code not in _SEQUENCE]
            unassessed = unassessed or bool(judge.contract.expected_trajectory)
        findings.extend(said)
        if any(finding.severity in _TURNING for finding in said):
            layers[name] = "fail"
        elif not active:
            layers[name] = "pass"
        elif not head.settled:
            layers[name] = "open"
        else:
            layers[name] = "unassessed" if unassessed else "pass"

    layer("policy", policy)
    if checks.grounding is None:
        layers["grounding"] = "off"
    else:
        layer("grounding", grounding)
    layer("trajectory", trajectory, active=checks.trajectory is not None)
    verdict = _verdict(findings, layers)
    mode = judge.contract.semantic.mode
    if mode != "off":
        layers["semantic"], said = _semantic(head, standing, judge, layers, reasons)
        findings += said
        # A judge never overrides a deterministic rejection, and only a gate turns the rest.
        if mode == "gate" and verdict != "violated":
            verdict = _verdict(findings, layers)
    final = head.closed is not None and (mode != "gate" or layers["semantic"] != "open")
    return Assessment(
        verdict=verdict,
        phase="final" if final else "provisional",
        coverage=reasons.coverage(),
        layers=layers,
        findings=tuple(findings),
        pending=(
            *_pending(head, judge, policy, trajectory),
            *(("semantic",) if layers.get("semantic") == "open" else ()),
        ),
    )


def _semantic(
    head: Head,
    standing: Standing,
    judge: Judge,
    layers: dict[Layer, LayerState],
    reasons: Reasons,
) -> tuple[LayerState, list[Finding]]:
    """State and findings of the semantic layer, and why a gate is unassessed."""
    contract = judge.contract
    if "answer" not in contract.semantic.steps or not ask.asks(contract, head.trajectory):
        return "off", []
    if not head.settled:
        return "open", []
    if reasons.unassessed("semantic") or reasons.unassessed("grounding"):
        return "unassessed", []  # it rests on the same evidence
    answer = ask.answer_of(head, standing, judge)
    read = None
    if answer is not None:
        key = ask.step_of(head, answer), parser_digest(contract.semantic.rubric)
        read = next((r for r in head.reads if (r.step, r.parser) == key), None)
    state, found, reason = semantic.judge(contract, read)
    if reason is not None and contract.semantic.mode == "gate":
        reasons.add(f"reading_{reason}", "semantic")
    apart = semantic.disagreement(contract, layers["grounding"], state)
    return state, [*found, *(() if apart is None else (apart,))]


def _verdict(findings: list[Finding], layers: dict[Layer, LayerState]) -> Verdict:
    if any(finding.severity in _TURNING for finding in findings):
        return "violated"
    if "unassessed" in layers.values():
        return "unassessed"
    return "open" if "open" in layers.values() else "trusted"


def _reasons(
    head: Head,
    standing: Standing,
    judge: Judge,
    policy: Judgement,
    trajectory: Judgement,
    grounding: Judgement,
) -> Reasons:
    """Why the judgement may be incomplete. What later arrivals may still mend counts only once
    they are no longer awaited: at quiescence, or at the close."""
    reasons = Reasons()
    hard_reasons(head, reasons)
    if not head.settled or head.limit is not None:
        return reasons  # behind a limit everything else is missing too
    if head.gaps:
        reasons.add("history_gap", *ALL)
    if len(head.roots) > 1:
        reasons.add("several_runs", "grounding", "sequence")
    if standing.anonymous:
        reasons.add("agent_unknown", *ALL)
    for unseen in head.output_unseen:
        reasons.add(unseen, "policy", "grounding", *(() if head.tools_seen else ("trajectory",)))
    for unseen in head.results_unseen:
        reasons.add(unseen, "grounding")
    rules = judge.contract.parameter_rules
    for tool, unseen in head.arguments_unseen.items():
        if tool in rules:
            reasons.add(unseen, "policy")
    for call in head.window:
        if ran(call, head) and not call.readable:
            reasons.add(call.result_unseen or "content_hidden", "grounding")
        if call.key in policy.blind:
            reasons.add(call.arguments_unseen or "content_hidden", "policy")
    if trajectory.undecided:
        reasons.add("missing_span", "trajectory")
    for code in grounding.undecided:
        action = code == "SAFETY_UNSUPPORTED_ACTION_CLAIMED"
        reasons.add("missing_span" if action else "content_truncated", "grounding")
    if head.closed is None:
        return reasons
    if not head.roots or head.missing:
        reasons.add("missing_span", *ALL)
    if head.unanswered or head.pending_calls:
        reasons.add("missing_result", "grounding", "sequence")
    answer = standing.answer if judge.one_agent else head.answer
    if answer is None or not answer.shown or not answer.follows:
        reasons.add("no_answer_seen", "grounding")
    return reasons


def hard_reasons(head: Head, reasons: Reasons) -> None:
    """What no later arrival mends."""
    if head.lost:
        reasons.add("lost_arrival", *ALL)
    if head.history_lost:
        reasons.add("history_lost", *ALL)
    if head.unknown:
        reasons.add("unknown_arrival", *ALL)
    if head.limit is not None:
        reasons.add(head.limit, *ALL)
    if head.late:
        reasons.add("late")


def _pending(head: Head, judge: Judge, policy: Judgement, trajectory: Judgement) -> tuple[str, ...]:
    """What an open label waits for."""
    if head.closed is not None:
        return ()
    pending = []
    if not head.roots or head.missing:
        pending.append("root")
    if head.answer is None or not head.answer.follows:
        pending.append("answer")
    if not head.settled:
        if judge.contract.expected_trajectory:
            pending.append("sequence")
        if any(finding.code == "TRAJ_REPEATED_TOOL" for finding in trajectory.later):
            pending.append("repeat")
        if judge.checks.grounding is not None:
            pending.append("grounding")
        blind = set(policy.blind)
        pending += (f"arguments:{c.call_id or c.key}" for c in head.window if c.key in blind)
        pending += (f"result:{call.call_id or call.key}" for call in head.pending_calls)
    return tuple(pending[:PENDING])
