"""A contract, compiled: the monitors of its layers, ready to judge any number of trajectories."""

from __future__ import annotations

from typing import NamedTuple

from monitor.contract import Contract
from monitor.grounding import GroundingMonitor
from monitor.policy import PolicyMonitor
from monitor.trajectory import TrajectoryMonitor, has_rule


class Checks(NamedTuple):
    """One monitor a layer. `grounding` is None when it is off, `trajectory` without a rule."""

    policy: PolicyMonitor
    grounding: GroundingMonitor | None
    trajectory: TrajectoryMonitor | None


def compile_contract(contract: Contract) -> Checks:
    """The contract's monitors. Worth keeping by the contract's digest."""
    severities = contract.severity
    return Checks(
        PolicyMonitor(contract, severities),
        None if contract.grounding == "off" else GroundingMonitor(contract, severities),
        TrajectoryMonitor(contract, severities) if has_rule(contract) else None,
    )
