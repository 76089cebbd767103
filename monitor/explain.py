"""A failure explained to a person: reasons, both paths side by side, the claim in its context."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from monitor.contract import Rules
from monitor.errors import plain
from monitor.golden import MODES, GoldenCase, Mode, Outcome
from monitor.model import Finding
from monitor.policy import string_form
from monitor.trajectory import has_rule

CONTEXT: Final = 60
"""Characters of an answer that are shown on either side of a claim."""
PATH_SHOWN: Final = 40
"""Steps of a path that are shown around the first difference."""


class Judged(NamedTuple):
    """One case in one mode."""

    case: GoldenCase
    mode: Mode
    outcome: Outcome
    nanoseconds: int = 0

    @property
    def correct(self) -> bool:
        """The decision is the expected one, for whatever reason."""
        return self.outcome.decision == self.case.expected_decision

    @property
    def reason_differs(self) -> bool:
        """FULL fails as expected, but for another reason than the case names."""
        return (
            self.mode == "FULL"
            and self.correct
            and self.case.expected_reason is not None
            and self.outcome.reason != self.case.expected_reason
        )

    @property
    def as_expected(self) -> bool:
        return self.correct and not self.reason_differs

    @property
    def critical_miss(self) -> bool:
        return self.case.critical and self.case.expected_decision == "FAIL" and not self.correct


def told(decision: str, reason: str | None) -> str:
    return decision if reason is None else f"{decision} {reason}"


def explain(one: Judged) -> str:
    """Why a case is not as expected: reasons, both paths side by side, the claim in its context."""
    case, outcome = one.case, one.outcome
    lines = [
        plain(
            f"{case.case_id} in {one.mode}: expected"
            f" {told(case.expected_decision, case.expected_reason)},"
            f" got {told(outcome.decision, outcome.reason)}"
        )
    ]
    if case.place:
        lines.append(f"  at {plain(case.place)}")
    if case.user_request is not None:
        lines.append(f"  request: {plain(case.user_request)}")
    if not outcome.findings:
        layers = " and ".join(MODES[one.mode]) or "answer"
        lines.append(f"  no violation was found: {layers} passed")
    for finding in outcome.findings:
        lines.append(f"  {finding.code}: {plain(finding.message)}")
        lines += [f"    {line}" for line in _DETAILS[finding.layer](case, finding)]
    shows_path = any(finding.layer == "trajectory" for finding in outcome.findings)
    if shows_path or (not outcome.findings and has_rule(case)):
        observed = [call.tool for call in case.mock_trace.tool_calls]
        lines += ["", *(f"  {line}" for line in paths(case, observed))]
    if not outcome.findings and case.mock_trace.final_answer is not None:
        lines += ["", f"  answer: {plain(case.mock_trace.final_answer)}"]
    return "\n".join(lines)


def _call_line(case: GoldenCase, finding: Finding) -> list[str]:
    if finding.step is None:
        return []
    call = case.mock_trace.tool_calls[finding.step]
    arguments = string_form(call.parameters) or "(nested too deeply)"
    return [f"call {finding.step + 1}: {plain(call.tool)} {plain(arguments)}"]


def _claim_line(case: GoldenCase, finding: Finding) -> list[str]:
    answer = case.mock_trace.final_answer
    return [] if answer is None else [in_context(answer, finding.subject)]


def in_context(answer: str, claim: str) -> str:
    """`… it is ▶SKU-43◀ that …`; the answer alone where the claim is not in it."""
    exact = re.escape(claim)
    found = re.search(rf"(?<!\w){exact}(?!\w)", answer, re.IGNORECASE) or re.search(
        exact, answer, re.IGNORECASE
    )
    if found is None:
        return plain(json.dumps(answer, ensure_ascii=False))
    start, end = found.span()
    before = ("…" if start > CONTEXT else "") + answer[max(0, start - CONTEXT) : start]
    after = answer[end : end + CONTEXT] + ("…" if len(answer) > end + CONTEXT else "")
    return f"{plain(before)}▶{plain(found[0])}◀{plain(after)}"


_DETAILS: Final[dict[str, Callable[[GoldenCase, Finding], list[str]]]] = {
    "policy": _call_line,
    "grounding": _claim_line,
    "trajectory": lambda _case, _finding: [],
}


def paths(rules: Rules, observed: Sequence[str]) -> list[str]:
    """Expected and observed path side by side, one step a line, with a remark where they differ."""
    pair_up = _strict_pairs if rules.trajectory_mode == "strict" else _relaxed_pairs
    pairs = pair_up(rules.expected_trajectory, observed)
    remarks = _remarks(rules, pairs)
    first = next((index for index, remark in enumerate(remarks) if remark), 0)
    start = max(0, first - PATH_SHOWN // 2)
    shown = list(zip(pairs, remarks, strict=True))[start : start + PATH_SHOWN]
    rows = [
        (plain(pair.expected or "", 60), plain(pair.observed or "", 60), remark)
        for pair, remark in shown
    ]
    left = max(len("expected"), *(len(row[0]) for row in rows), 0) if rows else 8
    right = max(len("observed"), *(len(row[1]) for row in rows), 0) if rows else 8
    lines = [f"     {'expected':{left}}   {'observed':{right}}".rstrip()]
    if start:
        lines.append(f"     … {start} steps")
    lines += [
        f"{start + index + 1:3}  {one:{left}}   {other:{right}}   {remark}".rstrip()
        for index, (one, other, remark) in enumerate(rows)
    ]
    rest = len(pairs) - start - len(rows)
    if rest:
        lines.append(f"     … {rest} steps")
    return lines


class _Pair(NamedTuple):
    expected: str | None
    observed: str | None
    differs: bool


def _strict_pairs(expected: Sequence[str], observed: Sequence[str]) -> list[_Pair]:
    pairs = []
    for index in range(max(len(expected), len(observed))):
        one = expected[index] if index < len(expected) else None
        other = observed[index] if index < len(observed) else None
        pairs.append(_Pair(one, other, bool(expected) and one != other))
    return pairs


def _relaxed_pairs(expected: Sequence[str], observed: Sequence[str]) -> list[_Pair]:
    pairs = []
    position = 0
    for tool in observed:
        matched = position < len(expected) and expected[position] == tool
        pairs.append(_Pair(tool if matched else None, tool, differs=False))
        position += matched
    return pairs + [_Pair(tool, None, differs=True) for tool in expected[position:]]


def _remarks(rules: Rules, pairs: Sequence[_Pair]) -> list[str]:
    """A remark for each step that breaks a rule; of differing steps for the first only."""
    remarks: list[str] = []
    called: set[str] = set()
    differed = False
    for pair in pairs:
        tool = pair.observed
        remark = ""
        if tool is not None and tool in rules.forbidden_intermediates:
            remark = "◀ forbidden on this path"
        elif tool is not None and tool in called and tool in rules.no_repeats:
            remark = "◀ called again"
        elif pair.differs and tool is None:
            remark = "◀ missing"
        elif pair.differs and not differed:
            remark = "◀ first difference"
        differed = differed or pair.differs
        if tool is not None:
            called.add(tool)
        remarks.append(remark)
    return remarks
