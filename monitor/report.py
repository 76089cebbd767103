"""What golden cases came to: scores, CSV, Markdown, JUnit XML, and a failure explained to a person.

Everything here returns text; who writes it to a file is another matter.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from io import StringIO
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from monitor.errors import plain
from monitor.golden import MODES, GoldenCase, Mode, Outcome
from monitor.model import Finding
from monitor.policy import string_form

COLUMNS: Final = (
    "case_id",
    "domain",
    "mode",
    "expected",
    "actual",
    "correct",
    "reason",
    "fault_type",
    "critical",
    "nanoseconds",
)
CONTEXT: Final = 60
"""Characters of an answer that are shown on either side of a claim."""
PATH_SHOWN: Final = 40
"""Steps of a path that are shown around the first difference."""

_PREFIXES: Final = {"POLICY": "policy", "SAFETY": "grounding", "TRAJ": "trajectory"}


class Judged(NamedTuple):
    """One case in one mode."""

    case: GoldenCase
    mode: Mode
    outcome: Outcome
    nanoseconds: int = 0

    @property
    def correct(self) -> bool:
        """The decision is the expected one (a differing reason is told apart, see `reason_differs`)."""
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
    def critical_miss(self) -> bool:
        return self.case.critical and self.case.expected_decision == "FAIL" and not self.correct


class Score(NamedTuple):
    """A mode over all cases, as the paper counts."""

    cases: int
    correct: int
    faults: int
    faults_caught: int
    passing: int
    false_fails: int
    critical: int
    critical_misses: int

    @property
    def share(self) -> float:
        return self.correct / self.cases if self.cases else 0.0


def scores(judged: Iterable[Judged]) -> dict[Mode, Score]:
    """The score of each mode that ran, in the paper's order."""
    by_mode: dict[Mode, list[Judged]] = {}
    for one in judged:
        by_mode.setdefault(one.mode, []).append(one)
    return {mode: _score(by_mode[mode]) for mode in MODES if mode in by_mode}


def _score(judged: Sequence[Judged]) -> Score:
    faults = [one for one in judged if one.case.expected_decision == "FAIL"]
    passing = [one for one in judged if one.case.expected_decision == "PASS"]
    return Score(
        cases=len(judged),
        correct=sum(one.correct for one in judged),
        faults=len(faults),
        faults_caught=sum(one.correct for one in faults),
        passing=len(passing),
        false_fails=sum(not one.correct for one in passing),
        critical=sum(one.case.critical for one in faults),
        critical_misses=sum(one.critical_miss for one in faults),
    )


def deciding_mode(judged: Sequence[Judged]) -> Mode:
    """The mode whose outcome counts: FULL where it ran, else the last one that did."""
    modes = {one.mode for one in judged}
    return next(mode for mode in reversed(MODES) if mode in modes)


def row(one: Judged) -> dict[str, str | int | bool | None]:
    """A row of the report, by COLUMNS."""
    return {
        "case_id": one.case.case_id,
        "domain": one.case.domain,
        "mode": one.mode,
        "expected": one.case.expected_decision,
        "actual": one.outcome.decision,
        "correct": one.correct,
        "reason": one.outcome.reason,
        "fault_type": one.case.fault_type,
        "critical": one.case.critical,
        "nanoseconds": one.nanoseconds,
    }


def csv_text(judged: Iterable[Judged]) -> str:
    """One row a case and mode; `true|false`, nothing for what is absent."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in judged:
        values = row(one).values()
        writer.writerow([str(v).lower() if isinstance(v, bool) else v for v in values])
    return out.getvalue()


def as_json(judged: Sequence[Judged], *, violations: bool) -> dict[str, Any]:
    """Scores and rows as JSON values; with `violations` every finding of each row."""
    rows = []
    for one in judged:
        entry: dict[str, Any] = {**row(one), "reason_differs": one.reason_differs}
        if violations:
            entry["violations"] = [
                {
                    "layer": finding.layer,
                    "code": finding.code,
                    "subject": finding.subject,
                    "message": finding.message,
                    "step": finding.step,
                    "tool": finding.tool,
                    "evidence": finding.evidence,
                }
                for finding in one.outcome.findings
            ]
        rows.append(entry)
    return {
        "modes": {mode: score._asdict() for mode, score in scores(judged).items()},
        "rows": rows,
    }


# -- Markdown ------------------------------------------------------------------------------


def summary(judged: Sequence[Judged]) -> str:
    """The paper's tables III (faults by layer and type) and IV (results by configuration)."""
    lines = ["# Golden cases", ""]
    found = scores(judged)
    first = next(iter(found.values()))
    counts = (
        f"{first.cases} cases: {first.faults} with a fault ({first.critical} critical),"
        f" {first.passing} that must pass."
    )
    head = (
        f"| configuration | correct /{first.cases} | faults caught /{first.faults}"
        f" | false fails /{first.passing} | critical misses /{first.critical} |"
    )
    lines += [counts, "", "## Results by configuration", "", head, "|---|---:|---:|---:|---:|"]
    lines += [
        f"| {mode} | {s.correct} | {s.faults_caught} | {s.false_fails} | {s.critical_misses} |"
        for mode, s in found.items()
    ]
    lines += _faults(judged, list(found))
    wrong = [one for one in judged if one.mode == deciding_mode(judged) and not _as_told(one)]
    if wrong:
        lines += ["", "## Not as expected", "", "| case | expected | actual |", "|---|---|---|"]
        lines += [
            f"| {_cell(one.case.case_id)} | {_told(one.case.expected_decision, one.case.expected_reason)}"
            f" | {_told(one.outcome.decision, one.outcome.reason)} |"
            for one in wrong
        ]
    return "\n".join(lines) + "\n"


def _faults(judged: Sequence[Judged], modes: Sequence[Mode]) -> list[str]:
    """Table: of each fault type, how many cases each configuration catches."""
    kinds: dict[tuple[int, str, str], list[Judged]] = {}
    full = {one.case.case_id: one.outcome.reason for one in judged if one.mode == "FULL"}
    order = [*_PREFIXES.values(), "–"]
    for one in judged:
        if one.case.expected_decision == "FAIL":
            reason = one.case.expected_reason or full.get(one.case.case_id) or ""
            layer = _PREFIXES.get(reason.split("_")[0], "–")
            key = (order.index(layer), layer, one.case.fault_type or "–")
            kinds.setdefault(key, []).append(one)
    if not kinds:
        return []
    lines = [
        "",
        "## Faults by layer and type",
        "",
        "| layer | fault type | cases | critical |"
        + "".join(f" caught by {mode} |" for mode in modes),
        "|---|---|---:|---:|" + "---:|" * len(modes),
    ]
    for (_, layer, kind), group in sorted(kinds.items(), key=lambda item: item[0][0]):
        one_mode = [one for one in group if one.mode == group[0].mode]
        cells = [
            layer,
            _cell(kind),
            str(len(one_mode)),
            str(sum(one.case.critical for one in one_mode)),
            *(str(sum(one.correct for one in group if one.mode == mode)) for mode in modes),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _cell(text: str) -> str:
    return plain(text).replace("|", "\\|")


def _told(decision: str, reason: str | None) -> str:
    return decision if reason is None else f"{decision} {reason}"


def _as_told(one: Judged) -> bool:
    return one.correct and not one.reason_differs


# -- JUnit ---------------------------------------------------------------------------------

_NOT_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(judged: Sequence[Judged]) -> str:
    """One test a case, in the mode whose outcome counts."""
    mode = deciding_mode(judged)
    ours = [one for one in judged if one.mode == mode]
    suites = ET.Element("testsuites")
    suite = ET.SubElement(
        suites,
        "testsuite",
        name=f"golden cases, {mode}",
        tests=str(len(ours)),
        failures=str(sum(not _as_told(one) for one in ours)),
        errors="0",
        time=_seconds(sum(one.nanoseconds for one in ours)),
    )
    for one in ours:
        test = ET.SubElement(
            suite,
            "testcase",
            classname=_xml(one.case.domain or "golden"),
            name=_xml(one.case.case_id),
            time=_seconds(one.nanoseconds),
        )
        if not _as_told(one):
            text = explain(one)
            failure = ET.SubElement(test, "failure", message=_xml(text.splitlines()[0]))
            failure.text = _xml(text)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, "unicode") + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("�", text)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.9f}"


# -- a failure, explained ------------------------------------------------------------------


def explain(one: Judged) -> str:
    """Why a case is not as expected: reasons, both paths side by side, the claim in its context."""
    case, outcome = one.case, one.outcome
    lines = [
        plain(
            f"{case.case_id} in {one.mode}: expected"
            f" {_told(case.expected_decision, case.expected_reason)},"
            f" got {_told(outcome.decision, outcome.reason)}"
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
    if shows_path or (not one.correct and not outcome.findings and case.monitors.trajectory):
        lines += ["", *(f"  {line}" for line in paths(case))]
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
    """`… it is [SKU-43] that …`"""
    answer = case.mock_trace.final_answer or ""
    found = re.search(re.escape(finding.subject), answer, re.IGNORECASE)
    if found is None:
        return [f"answer: {json.dumps(answer)}"]
    start, end = found.span()
    before = ("…" if start > CONTEXT else "") + answer[max(0, start - CONTEXT) : start]
    after = answer[end : end + CONTEXT] + ("…" if len(answer) > end + CONTEXT else "")
    return [f"{plain(before)}▶{plain(found[0])}◀{plain(after)}"]


_DETAILS: Final[dict[str, Callable[[GoldenCase, Finding], list[str]]]] = {
    "policy": _call_line,
    "grounding": _claim_line,
    "trajectory": lambda _case, _finding: [],
}


def paths(case: GoldenCase) -> list[str]:
    """Expected and observed path side by side, one step a line, with a remark where they differ."""
    expected = list(case.expected_trajectory)
    observed = [call.tool for call in case.mock_trace.tool_calls]
    pairs = (
        _strict_pairs(expected, observed)
        if case.trajectory_mode == "strict"
        else _relaxed_pairs(expected, observed)
    )
    remarks = _remarks(case, pairs)
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


def _strict_pairs(expected: list[str], observed: list[str]) -> list[_Pair]:
    pairs = []
    for index in range(max(len(expected), len(observed))):
        one = expected[index] if index < len(expected) else None
        other = observed[index] if index < len(observed) else None
        pairs.append(_Pair(one, other, bool(expected) and one != other))
    return pairs


def _relaxed_pairs(expected: list[str], observed: list[str]) -> list[_Pair]:
    pairs = []
    position = 0
    for tool in observed:
        matched = position < len(expected) and expected[position] == tool
        pairs.append(_Pair(tool if matched else None, tool, differs=False))
        position += matched
    return pairs + [_Pair(tool, None, differs=True) for tool in expected[position:]]


def _remarks(case: GoldenCase, pairs: Sequence[_Pair]) -> list[str]:
    """A remark for each step that breaks a rule; of differing steps for the first only."""
    remarks: list[str] = []
    called: set[str] = set()
    differed = False
    for pair in pairs:
        tool = pair.observed
        remark = ""
        if tool is not None and tool in case.forbidden_intermediates:
            remark = "◀ forbidden on this path"
        elif tool is not None and tool in called and tool in case.no_repeats:
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
