"""`make bench`: every ratio of the hot path beside its goal, in one run.

Ratios, because a machine and its load are in every absolute figure. Nothing is sent anywhere; a
broker and a Redis are started and ended. A goal that is missed is said, and does not fail the run:
a busy machine is no defect.
"""

from __future__ import annotations

from statistics import median

from tests.benchmarks import decode, fold, worker
from tests.benchmarks.told import told

FLAT = 1.3
"""Largest over smallest cost of an arrival, however long the run before it."""
_REPEATS = 5


def _fold() -> None:
    runs = [fold.measure() for _ in range(_REPEATS)]
    spans, sizes = [], []
    for found in runs:
        micros = [m for m, _ in found.values()]
        bytes_ = [b for _, b in found.values()]
        spans.append(max(micros) / min(micros))
        sizes.append(max(bytes_) / min(bytes_))
    shown = ", ".join(
        f"{median(run[n][0] for run in runs):.0f} µs and {runs[0][n][1]:.0f} bytes after {n}"
        for n in fold.LENGTHS
    )
    print(f"An in-order tool call: {shown} steps")
    told("time, longest run over shortest", median(spans), FLAT)
    told("bytes saved, longest run over shortest", median(sizes), FLAT)


def _decode() -> None:
    print(
        f"\nDecode and normalise: goal ≤ {decode.OVER_NEEDED} × a parse, the keys that are needed and "
        f"orjson, or ≤ {decode.OVER_PARSE:g} × a bare parse"
    )
    decode.report(rounds=16)


def _worker() -> None:
    for title, history in (("only what is new", False), ("the whole conversation", True)):
        rounds = worker.measure(exporters=20, rounds=3, history=history)
        print(f"\nA worker, model calls showing {title}: {worker.summary(rounds)}")
        ratio = median(found.ratio for found in rounds)
        told("its own decode and normalise over all of it", ratio, worker.GOAL, at_least=True)


def main() -> None:
    _fold()
    _decode()
    _worker()


if __name__ == "__main__":
    main()
