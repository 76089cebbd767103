"""RGE state -> label, and violations raised and withdrawn: the events that subscribers read.

`publish` compares what the state now says with what was published. What no longer follows is
withdrawn under the same violation id; a label comes out when verdict, phase, violations or coverage
differ from the one before.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from monitor.assess import ALL, Assessment, Reasons, assess, hard_reasons
from monitor.bench import Bench, Judge
from monitor.head import Head, Standing
from monitor.model import (
    FOLD_VERSION,
    CloseReason,
    Coverage,
    Finding,
    Layer,
    LayerState,
    Phase,
    Severity,
    Verdict,
    digest,
)
from monitor.rge import undetermined
from monitor.window import judgements

LABEL: Final = "io.agenttrust.label.v1"


VIOLATION: Final = "io.agenttrust.violation.v1"


class Body(msgspec.Struct, frozen=True, gc=False):
    """Value of an event: every field is always written, so that readers need no defaults."""


class ContractRef(Body, frozen=True):
    name: str
    version: int
    digest: str


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
    if head.settled or head.lost or head.history_lost or head.unknown or head.limit is not None:
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
    hard_reasons(head, reasons)
    unknown = undetermined(head, bench)
    reasons.add("agent_unknown" if unknown else "no_contract", *ALL)
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
