"""RGE state -> label, and violations raised and withdrawn.

`assess` is the judgement: what each layer says, what stands in its way, and what may be published
now. It is a function of the state alone, so that a finding which later facts refute is no longer in
it: `publish` compares with what was published and withdraws the rest under the same ids.

A finding of `now` follows from what is known, whatever arrives. One of `later` is published only
at quiescence or close, and only in a layer that nothing missing keeps from judging (a few, `FIRM`,
do not depend on what is missing). Before that a layer without a failure is `open`.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from monitor import semantic
from monitor.model import (
    FIRM,
    FOLD_VERSION,
    CloseReason,
    Finding,
    Judgement,
    Layer,
    LayerState,
    Phase,
    Severity,
    Struct,
    Verdict,
    digest,
)
from monitor.rge import Bench, Head, Judge, Standing, judgements, undetermined

LABEL: Final = "io.agenttrust.label.v1"
VIOLATION: Final = "io.agenttrust.violation.v1"


class Body(msgspec.Struct, frozen=True, gc=False):
    """Value of an event: every field is always written, so that readers need no defaults."""


class ContractRef(Body, frozen=True):
    name: str
    version: int
    digest: str


class Coverage(Body, frozen=True):
    state: Literal["complete", "partial"]
    reasons: tuple[str, ...]


class Label(Body, frozen=True):
    """`io.agenttrust.label.v1`: the verdict on a trajectory's prefix under one contract."""

    trajectory_id: str
    conversation_id: str | None
    agent: str | None
    service: str | None
    attributes: dict[str, str]
    contract: ContractRef | None
    verdict: Verdict
    phase: Phase
    coverage: Coverage
    layers: dict[Layer, LayerState]
    violations: tuple[str, ...]
    pending: tuple[str, ...]
    steps: int
    revision: int
    closed: CloseReason | None
    policy_set: str
    fold_version: int


class Violation(Body, frozen=True):
    """`io.agenttrust.violation.v1`: one violation of a contract, raised or withdrawn."""

    id: str
    state: Literal["raised", "withdrawn"]
    trajectory_id: str
    conversation_id: str | None
    agent: str | None
    service: str | None
    attributes: dict[str, str]
    contract: ContractRef
    layer: Layer
    code: str
    severity: Severity
    step: int | None
    call_id: str | None
    span_id: str | None
    tool: str | None
    message: str
    evidence: str | None
    revision: int


class Event(msgspec.Struct, frozen=True, gc=False):
    """A CloudEvent before it is written: `time` is journal time in milliseconds."""

    id: str
    type: Literal["io.agenttrust.label.v1", "io.agenttrust.violation.v1"]
    time: int
    trajectory: str
    body: Label | Violation


_encoder = msgspec.json.Encoder()


def encode(event: Event) -> bytes:
    """The event's value: the same event always gives the same bytes."""
    return _encoder.encode(event.body)


# -- assessment --------------------------------------------------------------------------------

PENDING: Final = 32
"""Entries of `pending` at most; a label is no log."""

_ALL: Final[tuple[str, ...]] = ("policy", "grounding", "trajectory", "semantic")
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
        layers["semantic"], said = semantic.judge(
            judge.contract, head.reading_of_answer, awaited=head.limit is None
        )
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
    _hard_reasons(head, reasons)
    if not head.settled or head.limit is not None:
        return reasons  # behind a limit everything else is missing too
    if head.gaps:
        reasons.add("history_gap", *_ALL)
    if len(head.roots) > 1:
        reasons.add("several_runs", "grounding", "sequence")
    if standing.anonymous:
        reasons.add("agent_unknown", *_ALL)
    for unseen in head.output_unseen:
        reasons.add(unseen, "policy", "grounding", *(() if head.tools_seen else ("trajectory",)))
    for unseen in head.results_unseen:
        reasons.add(unseen, "grounding")
    rules = judge.contract.parameter_rules
    for tool, unseen in head.arguments_unseen.items():
        if tool in rules:
            reasons.add(unseen, "policy")
    for call in head.window:
        if call.executed and not call.readable:
            reasons.add(call.result_unseen or "content_hidden", "grounding")
        if call.key in policy.blind:
            reasons.add(call.arguments_unseen or "content_hidden", "policy")
    if trajectory.undecided:
        reasons.add("missing_span", "trajectory")
    if grounding.undecided:
        reasons.add("missing_span", "grounding")
    if head.closed is None:
        return reasons
    if not head.roots or head.missing:
        reasons.add("missing_span", *_ALL)
    if head.unanswered or head.pending_calls:
        reasons.add("missing_result", "grounding", "sequence")
    answer = standing.answer if judge.one_agent else head.answer
    if answer is None or not answer.shown or not answer.follows:
        reasons.add("no_answer_seen", "grounding")
    return reasons


def _hard_reasons(head: Head, reasons: Reasons) -> None:
    """What no later arrival mends."""
    if head.lost:
        reasons.add("lost_arrival", *_ALL)
    if head.unknown:
        reasons.add("unknown_arrival", *_ALL)
    if head.limit is not None:
        reasons.add(head.limit, *_ALL)
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


# -- events ------------------------------------------------------------------------------------


def publish(head: Head, bench: Bench, time: int) -> list[Event]:
    """Events that bring subscribers from what was published to what the state now says."""
    if not head.agentic:
        return []
    events: list[Event] = []
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        if standing.bound or standing.revision:
            if standing.open and _says_nothing_new(head, standing, judge, bench):
                continue
            found = assess(head, standing, judge, bench)
            events += _revise(head, standing, judge, found, bench, time)
    if head.closed is not None and not any(standing.bound for standing in head.standings):
        events += _unbound(head, bench, time)
    return events


def _says_nothing_new(head: Head, standing: Standing, judge: Judge, bench: Bench) -> bool:
    """The usual arrival: the prefix stays open, and its findings are those that stand published.
    Told apart here because the whole assessment costs as much as the rest of the fold."""
    if head.settled or head.lost or head.unknown or head.limit is not None:
        return False
    policy, trajectory = judgements(head, standing, judge, bench.ruled)
    found = (*policy.now, *trajectory.now)
    return len(found) == len(standing.raised) and all(
        one.code == other.code and one.subject == other.subject and one.step == other.step
        for one, other in zip(found, standing.raised.values(), strict=True)
    )


def _revise(
    head: Head, standing: Standing, judge: Judge, found: Assessment, bench: Bench, time: int
) -> list[Event]:
    contract = judge.contract
    reference = ContractRef(contract.contract, contract.version, contract.digest)
    raised = {
        digest(head.trajectory, contract.contract, str(contract.version), f.code, f.subject): f
        for f in found.findings
    }
    before = standing.raised
    # One that now stands at another step, since an earlier one has come to light, is raised again.
    new = {n: f for n, f in raised.items() if n not in before or before[n].step != f.step}
    gone = {name: f for name, f in before.items() if name not in raised}
    said = _saying(found, tuple(f.code for f in raised.values()), head)
    changed = said != standing.said
    standing.revision += changed
    standing.raised, standing.said = raised, said
    standing.open = not head.settled

    def violation(name: str, finding: Finding, state: Literal["raised", "withdrawn"]) -> Event:
        body = _violation(head, reference, name, finding, state, standing.revision, bench)
        name = digest(head.trajectory, contract.digest, name, state, head.chain)
        return Event(name, VIOLATION, time, head.trajectory, body)

    events = [violation(name, finding, "raised") for name, finding in new.items()]
    events += [violation(name, finding, "withdrawn") for name, finding in gone.items()]
    if changed:
        events.append(_label(head, reference, found, standing, bench, time))
    return events


def _saying(found: Assessment, codes: tuple[str, ...], head: Head) -> tuple[object, ...]:
    """What makes a label differ from the one before. After the close, also its steps and evidence:
    a late span that changes these is told even when the verdict stands."""
    return (
        found.verdict,
        found.phase,
        list(codes),
        list(found.coverage.reasons),
        {**found.layers},
        [head.print, head.agent] if head.closed is not None else None,
    )


def _unbound(head: Head, bench: Bench, time: int) -> list[Event]:
    """At the close, of a trajectory to which no contract applies."""
    standing = head.outsider = head.outsider or Standing()
    reasons = Reasons()
    _hard_reasons(head, reasons)
    unknown = undetermined(head, bench)
    reasons.add("agent_unknown" if unknown else "no_contract", *_ALL)
    layers: dict[Layer, LayerState] = dict.fromkeys(
        ("policy", "grounding", "trajectory"), "unassessed"
    )
    found = Assessment("unassessed", "final", reasons.coverage(), layers, (), ())
    said = _saying(found, (), head)
    if said == standing.said:
        return []
    standing.said = said
    standing.revision += 1
    return [_label(head, None, found, standing, bench, time)]


def _label(
    head: Head,
    contract: ContractRef | None,
    found: Assessment,
    standing: Standing,
    bench: Bench,
    time: int,
) -> Event:
    body = Label(
        trajectory_id=head.trajectory,
        conversation_id=head.conversation,
        agent=head.agent,
        service=head.service,
        attributes=_attributes(head, bench),
        contract=contract,
        verdict=found.verdict,
        phase=found.phase,
        coverage=found.coverage,
        layers=found.layers,
        violations=tuple(finding.code for finding in found.findings),
        pending=found.pending,
        steps=head.steps,
        revision=standing.revision,
        closed=head.closed,
        policy_set=head.policy_set,
        fold_version=FOLD_VERSION,
    )
    named = contract.digest if contract else ""
    name = digest(head.trajectory, named, str(standing.revision), head.chain)
    return Event(name, LABEL, time, head.trajectory, body)


def _violation(
    head: Head,
    contract: ContractRef,
    name: str,
    finding: Finding,
    state: Literal["raised", "withdrawn"],
    revision: int,
    bench: Bench,
) -> Violation:
    return Violation(
        id=name,
        state=state,
        trajectory_id=head.trajectory,
        conversation_id=head.conversation,
        agent=head.agent,
        service=head.service,
        attributes=_attributes(head, bench),
        contract=contract,
        layer=finding.layer,
        code=finding.code,
        severity=finding.severity,
        step=finding.step,
        call_id=finding.call_id,
        span_id=finding.span_id,
        tool=finding.tool,
        message=finding.message,
        evidence=_evidence(finding.evidence, bench),
        revision=revision,
    )


def _evidence(text: str | None, bench: Bench) -> str | None:
    """An excerpt as the deployment wants it: plain, as a hash, or not at all."""
    how = bench.policy_set.evidence
    if text is None or how == "off":
        return None
    return text[:200] if how == "plain" else digest(text)


def _attributes(head: Head, bench: Bench) -> dict[str, str]:
    names = bench.policy_set.event_attributes
    return {name: head.attributes[name] for name in names if name in head.attributes}
