"""`agenttrust check`: golden cases in the paper's six modes, as a gate in CI.

Nothing is written before every case is judged, and every report appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, cast

import click

from monitor import report
from monitor.errors import InputError, plain
from monitor.explain import Judged, explain
from monitor.golden import MODES, SIZE_LIMIT, GoldenCase, Mode, evaluate, files_of, load_cases

MIN_CORRECT: Final = 0.95
MAX_CRITICAL_MISSES: Final = 0
LONG_RUN: Final = 3000
"""Judgements from which on a terminal shows a progress bar."""
LONG_READ: Final = 1_000_000
"""Bytes from which on a terminal is told that cases are being read."""
SHOWN: Final = 20
"""Failures that are explained; the reports hold all."""

_output = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--mode",
    type=click.Choice([*MODES, "all"], case_sensitive=False),
    default="all",
    show_default=True,
    help="Which of the six configurations to run.",
)
@click.option("--csv", "csv_path", type=_output, help="One row a case and mode.")
@click.option("--summary", "summary_path", type=_output, help="Markdown tables.")
@click.option("--junit", "junit_path", type=_output, help="JUnit XML, one test a case.")
@click.option(
    "--min-correct",
    type=click.FloatRange(0, 1),
    help=f"Least share of correct decisions.  [default: {MIN_CORRECT}, of FULL]",
)
@click.option(
    "--max-critical-misses",
    type=click.IntRange(min=0),
    help=f"Most critical cases missed.  [default: {MAX_CRITICAL_MISSES}, of FULL]",
)
@click.option("--all-violations", is_flag=True, help="List every violation, not the first layer's.")
@click.option("--strict", is_flag=True, help="Warnings are errors.")
@click.option("--json", "as_json", is_flag=True, help="Scores and rows as JSON on standard output.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    default=SIZE_LIMIT,
    show_default=True,
    help="Largest file of cases.",
)
@click.pass_context
def check(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    mode: str,
    csv_path: Path | None,
    summary_path: Path | None,
    junit_path: Path | None,
    min_correct: float | None,
    max_critical_misses: int | None,
    all_violations: bool,
    strict: bool,
    as_json: bool,
    max_bytes: int,
) -> None:
    """Judge golden cases: YAML or JSON files, or folders of them.

    Exits with 0 when the thresholds hold, 1 when one fails, 2 on bad input. The thresholds are
    FULL's; with another single mode they count only when they are given.
    """
    if sys.stderr.isatty() and (size := _size(paths)) >= LONG_READ:
        click.echo(f"reading {size / 1e6:.1f} MB of cases …", err=True)
    cases = load_cases(*paths, strict=strict, limit=max_bytes)
    if not cases:
        raise InputError(", ".join(map(str, paths)), "holds no case", "at least one")
    modes = tuple(MODES) if mode == "all" else (cast("Mode", mode),)
    judged = list(_judge(cases, modes, all_violations=all_violations))
    problems = _problems(judged, min_correct, max_critical_misses, strict=strict)
    write(
        {
            path: text
            for path, text in (
                (csv_path, report.csv_text(judged)),
                (summary_path, report.summary(judged)),
                (junit_path, report.junit(judged)),
            )
            if path is not None
        }
    )
    for case in cases:
        for key in case.stray_results:
            click.echo(f"warning: {plain(case.place)}: result {plain(key)} names no call", err=True)
    if as_json:
        found = report.as_json(judged, violations=all_violations)
        click.echo(json.dumps({"ok": not problems, "problems": problems, **found}))
    else:
        _tell(judged, problems, all_violations=all_violations)
    ctx.exit(1 if problems else 0)


def _size(paths: tuple[Path, ...]) -> int:
    return sum(file.stat().st_size for file in files_of(*paths) if file.is_file())


def _judge(
    cases: tuple[GoldenCase, ...], modes: tuple[Mode, ...], *, all_violations: bool
) -> Iterator[Judged]:
    pairs: Iterable[tuple[GoldenCase, Mode]] = ((case, mode) for case in cases for mode in modes)
    total = len(cases) * len(modes)
    if total >= LONG_RUN and sys.stderr.isatty():
        with click.progressbar(
            pairs, length=total, label="judging", file=sys.stderr, update_min_steps=500
        ) as bar:
            yield from (_timed(case, mode, all_violations=all_violations) for case, mode in bar)
    else:
        yield from (_timed(case, mode, all_violations=all_violations) for case, mode in pairs)


def _timed(case: GoldenCase, mode: Mode, *, all_violations: bool) -> Judged:
    """From a case's steps through the monitors; rules are compiled before."""
    _ = case.ready
    started = time.perf_counter_ns()
    outcome = evaluate(case, mode, all_violations=all_violations)
    return Judged(case, mode, outcome, time.perf_counter_ns() - started)


def _problems(
    judged: list[Judged], min_correct: float | None, max_misses: int | None, *, strict: bool
) -> list[str]:
    """Thresholds that fail, in words."""
    mode = report.deciding_mode(judged)
    score = report.scores(judged)[mode]
    problems = []
    least = min_correct if mode != "FULL" or min_correct is not None else MIN_CORRECT
    most = max_misses if mode != "FULL" or max_misses is not None else MAX_CRITICAL_MISSES
    if least is not None and score.share < least:
        problems.append(
            f"{mode}: {score.correct} of {score.cases} correct ({score.share:.1%}),"
            f" at least {least:.1%} must be"
        )
    if most is not None and score.critical_misses > most:
        problems.append(
            f"{mode}: {score.critical_misses} critical cases missed, at most {most} may"
        )
    differing = sum(one.reason_differs for one in judged)
    if strict and differing:
        problems.append(f"{mode}: {differing} cases fail for another reason than expected")
    return problems


def _tell(judged: list[Judged], problems: list[str], *, all_violations: bool) -> None:
    mode = report.deciding_mode(judged)
    ours = [one for one in judged if one.mode == mode]
    wrong = [one for one in ours if not one.as_expected]
    for one in wrong[:SHOWN]:
        click.echo(explain(one) + "\n")
    if len(wrong) > SHOWN:
        click.echo(f"… and {len(wrong) - SHOWN} more cases that are not as expected\n")
    if all_violations:
        for one in ours:
            for finding in one.outcome.findings:
                click.echo(
                    f"{plain(one.case.case_id)}  {finding.code}  {plain(finding.subject, 80)}"
                )
        click.echo()
    found = report.scores(judged)
    width = max(len(name) for name in found)
    click.echo(f"{'':{width}}  correct  faults caught  false fails  critical misses")
    for name, score in found.items():
        click.echo(
            f"{name:{width}}  {f'{score.correct}/{score.cases}':>7}"
            f"  {f'{score.faults_caught}/{score.faults}':>13}"
            f"  {f'{score.false_fails}/{score.passing}':>11}"
            f"  {f'{score.critical_misses}/{score.critical}':>15}"
        )
    for problem in problems:
        click.echo(f"failed: {problem}")


def write(texts: Mapping[Path, str]) -> None:
    """Writes files so that each appears whole, and none when one cannot be written."""
    ready: list[tuple[str, Path]] = []
    try:
        for path, text in texts.items():
            try:
                with tempfile.NamedTemporaryFile(
                    "w", encoding="utf-8", newline="", dir=path.parent, delete=False,
                    prefix=f".{path.name}.",
                ) as file:  # fmt: skip
                    ready.append((file.name, path))
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                if path.is_dir():
                    raise IsADirectoryError(21, os.strerror(21))
            except OSError as error:
                raise InputError(str(path), f"cannot be written: {error.strerror}") from None
        mode = 0o666 & ~_umask()
        while ready:
            name, path = ready.pop(0)
            Path(name).chmod(mode)
            Path(name).replace(path)
    finally:
        for name, _ in ready:
            Path(name).unlink(missing_ok=True)


def _umask() -> int:
    """The process's mask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
