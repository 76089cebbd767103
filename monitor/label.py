"""Events: what subscribers and auditors read. (The judgement that fills them: see below.)"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from monitor.model import CloseReason, Layer, LayerState, Phase, Severity, Verdict

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
