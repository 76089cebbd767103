"""What judging a golden case costs, by the paper's protocol (arXiv:2611.06674, section V).

Five fresh processes; in each 200 passes to warm up and 300 measured ones over all cases and five
configurations, each time in a new order from a recorded seed. Raw nanoseconds are kept, nothing is
discarded; they are aggregated at the end over all processes. Timed is the way from a case's steps
through the monitors: rules are compiled before, results are flattened within.

The plain transcription of the tests (tests/oracle.py) takes turns with the monitors in the same
process, case by case, so that the ratio does not depend on the machine or its load. Where there is
a JDK, the transcription in Golden.java runs by the same protocol.

    python -m tests.benchmarks.golden [--out DIR] [--processes 5] [--warm-up 200] [--passes 300]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any, Final

from monitor import yaml
from monitor.golden import GoldenCase, Mode, evaluate
from tests import oracle

ROOT: Final = Path(__file__).parent.parent.parent
CORPUS: Final = ROOT / "tests" / "golden" / "cases.yaml"
JAVA: Final = Path(__file__).parent / "Golden.java"
CONFIGURATIONS: Final[dict[str, Mode]] = {
    "final": "FINAL_ANSWER_ONLY",
    "grounding": "ANSWER_GROUNDING_ONLY",
    "policy": "POLICY_ONLY",
    "trajectory": "TRAJECTORY_ONLY",
    "full": "FULL",
}
TARGET: Final = 1.5
"""Largest ratio of means, monitors to plain transcription, full pipeline."""


def values() -> list[dict[str, Any]]:
    """The corpus as plain values."""
    found: list[dict[str, Any]] = yaml.parse(CORPUS.read_bytes(), str(CORPUS)).value
    return found


def contenders() -> dict[str, list[tuple[str, int, Callable[[], Any]]]]:
    """By name: configuration, number of the case, and what to call."""
    plain = values()
    cases = [GoldenCase.model_validate(value) for value in plain]
    for case in cases:
        _ = case.ready
    return {
        "monitors": [
            (name, number, lambda case=case, mode=mode: evaluate(case, mode))
            for name, mode in CONFIGURATIONS.items()
            for number, case in enumerate(cases)
        ],
        "plain": [
            (name, number, lambda value=value, mode=mode: oracle.judge(value, mode))
            for name, mode in CONFIGURATIONS.items()
            for number, value in enumerate(plain)
        ],
    }


def measure(seed: int, warm_up: int, passes: int) -> dict[str, dict[str, list[int]]]:
    """Raw nanoseconds of one process, by contender and configuration."""
    raw = {name: {c: array("q") for c in CONFIGURATIONS} for name in ("monitors", "plain")}
    work = [
        (contender, configuration, call)
        for contender, calls in contenders().items()
        for configuration, _, call in calls
    ]
    order = random.Random(seed)
    for number in range(warm_up + passes):
        order.shuffle(work)
        for contender, configuration, call in work:
            started = perf_counter_ns()
            call()
            taken = perf_counter_ns() - started
            if number >= warm_up:
                raw[contender][configuration].append(taken)
    return {name: {c: list(ns) for c, ns in by.items()} for name, by in raw.items()}


def environment() -> dict[str, Any]:
    """Whatever may explain the figures."""
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        cpu = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), cpu)
    return {
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "timer_ns": min(-perf_counter_ns() + perf_counter_ns() for _ in range(1000)),
    }


def statistics(nanoseconds: list[int]) -> tuple[float, float, float]:
    """Mean, median and 95th percentile in microseconds."""
    ordered = sorted(nanoseconds)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]
    return fmean(ordered) / 1000, median(ordered) / 1000, p95 / 1000


def run(processes: int, warm_up: int, passes: int, out: Path) -> dict[str, dict[str, list[int]]]:
    """All processes, one after the other; writes each one's raw figures to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    total: dict[str, dict[str, list[int]]] = {}
    for number in range(processes):
        seed = 20260101 + number
        done = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.golden", "--child", str(seed),
             "--warm-up", str(warm_up), "--passes", str(passes)],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        raw = json.loads(done.stdout)
        (out / f"python-{number}.json").write_text(done.stdout)
        if java := shutil.which("javac"):
            raw["times"]["java"] = _java(java, seed, warm_up, passes, out, number)
        for contender, by in raw["times"].items():
            for configuration, ns in by.items():
                total.setdefault(contender, {}).setdefault(configuration, []).extend(ns)
        print(f"process {number + 1} of {processes}, seed {seed}", file=sys.stderr)
    return total


def _java(
    javac: str, seed: int, warm_up: int, passes: int, out: Path, number: int
) -> dict[str, list[int]]:
    """The same in a warmed JVM; its decisions are checked against the transcription first."""
    classes = out / "classes"
    subprocess.run([javac, "-d", str(classes), str(JAVA)], check=True)
    cases = out / "cases.json"
    cases.write_text(json.dumps(values()))
    result = out / f"java-{number}.json"
    subprocess.run(
        [shutil.which("java") or "java", "-cp", str(classes), "Golden", str(cases), str(seed),
         str(warm_up), str(passes), str(result)],
        check=True,
    )  # fmt: skip
    found = json.loads(result.read_text())
    for name, mode in CONFIGURATIONS.items():
        expected = [oracle.judge(value, mode)[1] for value in values()]
        if found["reasons"][name] != expected:
            raise SystemExit(f"Golden.java disagrees with the transcription on {name}")
    times: dict[str, list[int]] = found["times"]
    return times


def table(total: dict[str, dict[str, list[int]]]) -> str:
    """The paper's table V for this machine, in Markdown."""
    head = "| configuration | mean | median | p95 | plain mean | ratio |"
    rule = "|---|---:|---:|---:|---:|---:|"
    with_java = "java" in total
    if with_java:
        head, rule = head + " warmed JVM mean | ratio |", rule + "---:|---:|"
    lines = ["Microseconds for a case.", "", head, rule]
    for name in CONFIGURATIONS:
        mean, middle, p95 = statistics(total["monitors"][name])
        plain = statistics(total["plain"][name])[0]
        line = (
            f"| {name} | {mean:.3f} | {middle:.3f} | {p95:.3f} | {plain:.3f} | {mean / plain:.2f} |"
        )
        if with_java:
            java = statistics(total["java"][name])[0]
            line += f" {java:.3f} | {mean / java:.2f} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-golden")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=200)
    parser.add_argument("--passes", type=int, default=300)
    parser.add_argument("--child", type=int, metavar="SEED", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        times = measure(given.child, given.warm_up, given.passes)
        print(json.dumps({"seed": given.child, "environment": environment(), "times": times}))
        return 0
    total = run(given.processes, given.warm_up, given.passes, given.out)
    text = table(total)
    (given.out / "table-5.md").write_text(text)
    (given.out / "environment.json").write_text(json.dumps(environment(), indent=1))
    print(text)
    ratio = fmean(total["monitors"]["full"]) / fmean(total["plain"]["full"])
    print(f"monitors to plain transcription, full: {ratio:.2f} (at most {TARGET})")
    print(f"raw nanoseconds, seeds and environment: {given.out}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
