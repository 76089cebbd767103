"""Recorded runs of real frameworks against what they are known to have done: `make captures`.

Each recorded request enters in the order in which it arrived, through decoding, normalising and the
engine that judges the stream. A cell is one question asked of one scenario of one variant:

| cell | right when |
|---|---|
| calls | the calls are the true ones, in order: tool, arguments, result or failure |
| request | each run's first user request is the true one |
| answer | each run's final answer is the true one |
| label | the verdict that the scenario was made for comes out |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from monitor.contract import PolicySet, load_contracts
from monitor.model import Step
from monitor.story import final_answer, steps, user_request
from streams.inspect import Inspection, Judged, judge
from streams.otlp_files import read_files

HERE: Final = Path(__file__).parent
CAPTURES: Final = HERE / "captures"
TRUTH: Final = json.loads((CAPTURES / "TRUTH.json").read_text())

Cell = Literal["calls", "request", "answer", "label"]
CELLS: Final[tuple[Cell, ...]] = ("calls", "request", "answer", "label")
LABELLED: Final = {
    "ok_parallel",
    "same_tool_parallel",
    "bad_forbidden",
    "bad_invented",
    "no_content",
    "maxsteps_dropped_attrs",
}
REJECTED: Final = {("pydantic-ai-2.68.0-mcp-2.3.0", "tool_error"): "search_catalog"}
"""Calls that the framework refused before any span of theirs began."""
TOOLS: Final = {"get_ticket", "get_order", "get_item", "search_catalog", "issue_refund"}


class Score(NamedTuple):
    """A cell and why it is wrong, None when it is right."""

    variant: str
    scenario: str
    cell: Cell
    wrong: str | None


def scenarios() -> list[tuple[str, str]]:
    """Every recorded (variant, scenario)."""
    return sorted((f.parent.name, f.name) for f in CAPTURES.glob("*/*") if f.is_dir())


@cache
def contracts() -> PolicySet:
    return PolicySet(load_contracts(HERE / "captures_contracts"))


def inspected(variant: str, scenario: str) -> Inspection:
    return asyncio.run(judge(read_files([CAPTURES / variant / scenario]), contracts()))


def scores(variant: str, scenario: str) -> Iterator[Score]:
    """The cells that the scenario has."""
    found = inspected(variant, scenario).trajectories
    truth = TRUTH.get(scenario)
    if truth is not None:
        turns = truth["turns"]
        shown = scenario != "no_content"
        rejected = REJECTED.get((variant, scenario))
        wrong = _calls(found, turns, shown=shown, rejected=rejected)
        yield Score(variant, scenario, "calls", wrong)
        if shown:
            asked = [user_request(run.prefix) for run in found]
            asked = [text for text in asked if text is not None]
            yield Score(
                variant, scenario, "request", _texts(asked, [turn["user"] for turn in turns])
            )
            said = [final_answer(run.prefix) for run in found]
            said = [text for text in said if text is not None]
            yield Score(
                variant, scenario, "answer", _texts(said, [turn["final_answer"] for turn in turns])
            )
    if scenario in LABELLED:
        yield Score(variant, scenario, "label", _label(scenario, found))


def _texts(found: list[str], truth: list[str]) -> str | None:
    """Several traces of one run repeat its request."""
    distinct = list(dict.fromkeys(found))
    return None if distinct == truth else f"{distinct}"


def _calls(
    found: list[Judged], turns: list[dict[str, Any]], *, shown: bool, rejected: str | None
) -> str | None:
    ours = [
        step
        for run in found
        for step in steps(run.prefix)
        if step.type == "tool_call" and step.tool in TOOLS
    ]
    truth = [call for turn in turns for call in turn["calls"] if "tool" in call]
    if [step.tool for step in ours] != [call["tool"] for call in truth]:
        return f"tools {[step.tool for step in ours]}"
    for step, call in zip(ours, truth, strict=True):
        if step.tool == rejected:
            if not step.requested_only or step.arguments != call["args"]:
                return f"{step.tool}: not told as rejected"
        elif wrong := _call(step, call, shown=shown):
            return f"{step.tool}: {wrong}"
    return None


def _call(step: Step, call: dict[str, Any], *, shown: bool) -> str | None:
    if step.arguments != call["args"] and (shown or step.arguments is not None):
        return f"arguments {step.arguments!r}"
    if not call["ok"]:
        return None if step.error is not None or not shown else f"no failure: {step.result!r}"
    if step.error is not None:
        return f"failed: {step.error!r}"
    if step.requested_only:
        return "requested only"
    result = step.result
    if result != call["result"] and (shown or result is not None):
        return f"result {result!r}"
    return None


def _label(scenario: str, found: list[Judged]) -> str | None:
    verdicts = [label.verdict for run in found for label in run.labels]
    codes = {(v.layer, v.code) for run in found for v in run.violations}
    told = f"{verdicts} {sorted(code for _, code in codes)}"
    if not verdicts:
        right = False
    elif scenario in ("no_content", "maxsteps_dropped_attrs"):
        right = "trusted" not in verdicts and "violated" not in verdicts
    elif scenario == "bad_forbidden":
        right = ("policy", "POLICY_TOOL_FORBIDDEN") in codes
    elif scenario == "bad_invented":
        right = any(layer == "grounding" for layer, _ in codes)
    else:
        right = "violated" not in verdicts
    return None if right else told


def table(found: list[Score]) -> Iterator[str]:
    """A line a scenario, then the totals."""
    rows: dict[tuple[str, str], dict[str, Score]] = {}
    for score in found:
        rows.setdefault((score.variant, score.scenario), {})[score.cell] = score
    wide = max(len(variant) for variant, _ in rows)
    yield f"{'variant':{wide}} {'scenario':22} " + " ".join(f"{cell:7}" for cell in CELLS)
    for (variant, scenario), cells in rows.items():
        marks = [
            ""
            if (score := cells.get(cell)) is None
            else "right"
            if score.wrong is None
            else "WRONG"
            for cell in CELLS
        ]
        yield f"{variant:{wide}} {scenario:22} " + " ".join(f"{mark:7}" for mark in marks).rstrip()
    for cell in CELLS:
        ours = [score for score in found if score.cell == cell]
        yield f"{cell:8} {sum(score.wrong is None for score in ours)} of {len(ours)}"
    right = sum(score.wrong is None for score in found)
    yield f"{'total':8} {right} of {len(found)}"


def main() -> None:
    """Prints the scoreboard; with a word as argument the reasons of the variants that hold it."""
    import sys

    only = sys.argv[1] if len(sys.argv) > 1 else ""
    found = [s for v, n in scenarios() if only in f"{v}/{n}" for s in scores(v, n)]
    for line in table(found):
        print(line)  # noqa: T201
    if only:
        for score in found:
            if score.wrong is not None:
                print(f"{score.variant}/{score.scenario} {score.cell}: {score.wrong}")  # noqa: T201


if __name__ == "__main__":
    main()
