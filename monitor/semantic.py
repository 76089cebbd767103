"""The semantic layer: what a reading of the answer adds to the deterministic verdict.

A model extracts claims and points at evidence; it never decides. A claim that points at nothing is
unsupported. No reading, or one that failed, is never a pass: the layer is then open or unassessed.
"""

from __future__ import annotations

from typing import Final

from monitor.contract import Contract
from monitor.model import Finding, LayerState, Reading, Severity

_CODE: Final = "SEMANTIC_UNSUPPORTED_CLAIM"


def judge(
    contract: Contract, reading: Reading | None, *, awaited: bool
) -> tuple[LayerState, tuple[Finding, ...]]:
    """State of the layer and its findings. `awaited`: a reading may still come."""
    if reading is None:
        return ("open" if awaited else "unassessed"), ()
    if reading.status == "unassessed":
        return "unassessed", ()
    default: Severity = "error" if contract.semantic.mode == "gate" else "warning"
    findings = tuple(
        Finding(
            layer="semantic",
            code=_CODE,
            subject=str(claim.get("text", "")),
            message="the reading points at no evidence for a claim",
            severity=contract.severity.get(_CODE, default),
            evidence=str(claim.get("text", "")),
        )
        for claim in reading.claims
        if claim.get("evidence") is None
    )
    return ("fail" if findings else "pass"), findings
