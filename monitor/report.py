"""What golden cases came to: scores, CSV, Markdown, JUnit XML.

Everything here returns text; who writes it to a file is another matter.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from monitor.errors import plain
from monitor.explain import Judged, explain, told
from monitor.golden import MODES, Mode

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
"""Of the CSV file."""

_PREFIXES: Final = {"POLICY": "policy", "SAFETY": "grounding", "TRAJ": "trajectory"}


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
    wrong = [one for one in judged if one.mode == deciding_mode(judged) and not one.as_expected]
    if wrong:
        lines += ["", "## Not as expected", "", "| case | expected | actual |", "|---|---|---|"]
        lines += [
            f"| {_cell(one.case.case_id)} | {told(one.case.expected_decision, one.case.expected_reason)}"
            f" | {told(one.outcome.decision, one.outcome.reason)} |"
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
        failures=str(sum(not one.as_expected for one in ours)),
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
        if not one.as_expected:
            text = explain(one)
            failure = ET.SubElement(test, "failure", message=_xml(text.splitlines()[0]))
            failure.text = _xml(text)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, "unicode") + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("�", text)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.9f}"
