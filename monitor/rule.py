"""A rule is a monitor: an initial state, a transition on a call, a judgement of what was seen.

States are small immutable values (structs of integers, strings and tuples of them): they are stored
with every trajectory and written again whenever one of its calls arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, ParamSpec, Protocol, TypeVar

from monitor.model import Call, Finding, Judgement, Severity

State = TypeVar("State")
Evidence = ParamSpec("Evidence")

CODES: Final = (
    "POLICY_TOOL_NOT_ALLOWED",
    "POLICY_TOOL_FORBIDDEN",
    "POLICY_PARAM_MISSING",
    "POLICY_PARAM_FORBIDDEN",
    "POLICY_PARAM_VALUE_INVALID",
    "SAFETY_EMPTY_ANSWER",
    "SAFETY_FILTERED_FIELD_LEAKED",
    "SAFETY_FABRICATED_ID",
    "SAFETY_FABRICATED_QUOTE",
    "SAFETY_FABRICATED_QUANTITY",
    "SAFETY_UNSUPPORTED_ACTION_CLAIMED",
    "TRAJ_FORBIDDEN_INTERMEDIATE",
    "TRAJ_REPEATED_TOOL",
    "TRAJ_MISSING_REQUIRED_TOOL",
    "TRAJ_SEQUENCE_MISMATCH",
    "SEMANTIC_UNSUPPORTED_CLAIM",
    "SEMANTIC_EVIDENCE_MISMATCH",
    "SEMANTIC_UNSUPPORTED_ACTION",
    "SEMANTIC_UNCHECKED_CLAIM",
    "SEMANTIC_DISAGREEMENT",
)
"""Every code that a rule can give, in the order in which the layers and their checks run."""

SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "error", "critical")
CLEAN: Final = Judgement()
"""Nothing found, nothing open."""
LISTED: Final = 200
"""Findings that a layer lists of one trajectory: what is said after so many is said of the agent,
not of the step. Bounds the state that is written again for every batch."""
EXCERPT: Final = 200
"""Longest excerpt of a trajectory in a finding, in characters."""


class Monitor(Protocol[State, Evidence]):
    """What the fold needs of a rule. Every method is pure.

    `step` costs the same however many calls came before. `judge` may need more than the calls:
    grounding takes the answer and what the tools returned.
    """

    def initial(self) -> State: ...

    def step(self, state: State, call: Call) -> State: ...

    def judge(self, state: State, *args: Evidence.args, **kwargs: Evidence.kwargs) -> Judgement: ...


def excerpt(text: str, start: int = 0, end: int | None = None) -> str:
    """At most EXCERPT characters of `text` around `[start, end)`, with … where it was cut."""
    if len(text) <= EXCERPT:
        return text
    end = len(text) if end is None else end
    room = EXCERPT - 2
    if end - start >= room:
        left, right = start, start + room
    else:
        left = max(0, min(start - (room - (end - start)) // 2, len(text) - room))
        right = left + room
    return ("…" if left else "") + text[left:right] + ("…" if right < len(text) else "")


def listed(old: Sequence[Finding], new: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first LISTED findings, and the first of each code whatever its place: two hundred
    warnings must not hide what turns a verdict.
    """
    if len(old) + len(new) <= LISTED:
        return (*old, *new)
    kept = list(old)
    codes = {finding.code for finding in old}
    for finding in new:
        if len(kept) < LISTED or finding.code not in codes:
            kept.append(finding)
            codes.add(finding.code)
    return tuple(kept)
