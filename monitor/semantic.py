"""The semantic layer: what a reading of the answer adds to the deterministic verdict.

A model extracts claims and points at evidence; code decides (`monitor.resolve`). No reading, one
that failed, and one that leaves out what code itself finds in the answer are never a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from monitor.contract import Contract, Rules
from monitor.corpus import Corpus
from monitor.facts import left_open
from monitor.grounding import GroundingMonitor
from monitor.model import Finding, LayerState, Reading, Severity
from monitor.reading import Claim, Kept, Outcome, Read, Shown, reason_text
from monitor.resolve import normal, resolve, stands_in

OUTCOMES: Final = 50
"""Claims that are kept of a reading: the state is written again for every batch."""

_CODES: Final = {
    "unsupported": "SEMANTIC_UNSUPPORTED_CLAIM",
    "mismatch": "SEMANTIC_EVIDENCE_MISMATCH",
    "unchecked": "SEMANTIC_UNCHECKED_CLAIM",
}
_ACTION: Final = "SEMANTIC_UNSUPPORTED_ACTION"
_UNCHECKED: Final = "SEMANTIC_UNCHECKED_CLAIM"
_DISAGREEMENT: Final = "SEMANTIC_DISAGREEMENT"
_LEXICAL: Final = GroundingMonitor(Rules())
"""Finds identifiers, quotations, numbers and claimed actions in a text, as the paper does."""


# -- a reading, resolved ---------------------------------------------------------------------


def keep(
    reading: Reading,
    answer: str,
    evidence: Sequence[Shown],
    *,
    hidden: bool,
    others: bool = False,
) -> Kept:
    """What the state keeps of a reading of `answer`. `evidence` as recorded; `hidden`: a filtered
    field is near, so no excerpt is kept; `others`: other steps are read too, and facts of theirs may
    back claims."""
    kept = Kept(reading.id, reading.attempt, shown=not hidden)
    if reading.status != "assessed":
        kept.reason = reason_text(reading.reason)
        return kept
    try:
        claims = [Claim.model_validate(claim) for claim in reading.claims]
    except ValidationError:
        kept.reason = "invalid"
        return kept
    own = [claim for claim in claims if stands_in(claim.words, answer)]
    kept.claims = len(own)
    if left_out(answer, own) or (claims and not own):
        kept.reason = "truncated" if "text" in reading.cut else "invalid"
    whole = "evidence" not in reading.cut
    found = ((claim, resolve(claim, evidence, whole=whole)) for claim in own)
    kept.outcomes = tuple(
        left_open(claim, outcome) if others else outcome
        for claim, outcome in found
        if outcome is not None
    )[:OUTCOMES]
    return kept


def left_out(answer: str, claims: Sequence[Claim]) -> list[str]:
    """Identifiers, quotations, numbers and actions of an answer that no claim covers. A model that
    was talked into silence is told by this from an answer that claims nothing."""
    found = _LEXICAL.judge(_LEXICAL.initial(), answer, Corpus()).later
    covered = " ".join(normal(claim.words) for claim in claims)
    return [f.subject for f in found if normal(f.subject) not in covered]


# -- the layer -------------------------------------------------------------------------------


def judge(
    contract: Contract, read: Read | None
) -> tuple[LayerState, tuple[Finding, ...], str | None]:
    """State of the layer, its findings, and why it is unassessed."""
    kept = None if read is None else read.kept
    if kept is None:
        return ("unassessed", (), None) if read is None else ("open", (), None)
    gate = contract.semantic.mode == "gate"
    findings, undecided = [], kept.reason is not None
    for outcome in kept.outcomes:
        if not set(contract.semantic.steps).isdisjoint(outcome.backed):
            continue
        if outcome.decided == "undecided" or (
            outcome.decided != "unchecked" and outcome.confidence < contract.semantic.min_confidence
        ):
            undecided = True
            continue
        findings.append(_finding(contract, outcome, kept, gate=gate))
    turning = ("error", "critical") if gate else ("warning", "error", "critical")
    if any(finding.severity in turning for finding in findings):
        return "fail", tuple(findings), None
    if undecided:
        return "unassessed", tuple(findings), kept.reason or "undecided"
    return "pass", tuple(findings), None


def _finding(contract: Contract, outcome: Outcome, kept: Kept, *, gate: bool) -> Finding:
    code = _CODES[outcome.decided]
    if outcome.kind == "action" and code != _UNCHECKED:
        code = _ACTION
    default: Severity = "error" if gate else "warning"
    if code == _UNCHECKED:
        default = "info"
    return Finding(
        layer="semantic",
        code=code,
        subject=outcome.words,
        message=outcome.message,
        severity=contract.severity.get(code, default),
        evidence=outcome.words if kept.shown else None,
    )


def disagreement(contract: Contract, grounding: LayerState, semantic: LayerState) -> Finding | None:
    """Marks an answer for review on which the two ways to ground it do not agree. It turns nothing:
    a judge never overrides a deterministic rejection."""
    if {grounding, semantic} != {"pass", "fail"}:
        return None
    said = "supported" if semantic == "pass" else "not supported"
    return Finding(
        layer="semantic",
        code=_DISAGREEMENT,
        subject="answer",
        message=f"the reading finds the answer {said}, the deterministic grounding says otherwise",
        severity=contract.severity.get(_DISAGREEMENT, "info"),
    )
