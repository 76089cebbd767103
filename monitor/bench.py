"""The judges of a policy set: its contracts, compiled once."""

from __future__ import annotations

import msgspec

from monitor.checks import Checks, compile_contract
from monitor.contract import Contract, PolicySet, matches


class Judge(msgspec.Struct, frozen=True):
    """One contract, compiled."""

    contract: Contract
    checks: Checks

    @property
    def one_agent(self) -> bool:
        """It judges the steps of one agent only."""
        return self.contract.applies_to.agent is not None

    def judges(self, agent: str | None) -> bool:
        """Whether a step of this agent is its business."""
        wanted = self.contract.applies_to.agent
        return wanted is None or (agent is not None and matches(wanted, agent))


class Bench:
    """The judges of one policy set."""

    def __init__(self, policy_set: PolicySet) -> None:
        self.policy_set = policy_set
        self.limits = policy_set.limits
        self.judges = [Judge(c, compile_contract(c)) for c in policy_set.contracts]
        self.ruled = frozenset(t for c in policy_set.contracts for t in c.parameter_rules)
        """Tools whose arguments some rule reads."""
