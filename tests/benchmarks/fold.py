"""An in-order tool call's cost at 10, 100 and 1 000 earlier steps of 1 KB.

Everything an arrival costs but the network: load, decode, fold, encode, save, on the store in
memory. The three lengths are measured in turns, so that a noisy machine is noisy to all of them.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median

from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Observed, Record, Span
from tests.traces import SECOND, TRACE, contract, span_id, tool

LENGTHS = (10, 100, 1_000)
ROUNDS = 40
"""Arrivals measured at each length; the smallest half counts."""

SET = PolicySet(
    [
        contract("path", expected_trajectory=["a", "b"], forbidden_tools=["z"]),
        contract("rules", no_repeats=["b"], parameter_rules={"a": {"forbidden": ["y"]}}),
    ]
)


def _step(trajectory: str, n: int) -> Span:
    span = tool(n + 1, f"c{n}", "a", "x" * 1_000)
    return Span(trajectory, span_id(n + 1), "tool", **{
        name: getattr(span, name)
        for name in ("name", "tool", "call_id", "arguments", "result", "parent", "service")
    }, start=n * SECOND, end=(n + 1) * SECOND)  # fmt: skip


class _Trajectory:
    """One trajectory of a given length in a store of its own."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.store = MemoryStore()
        self.engine = Engine(self.store, MemoryPublisher(), MemoryPolicySets(SET))
        self.offset = 0
        self.steps = 0
        self.name = TRACE
        while self.steps < length:
            self.append()

    def append(self) -> float:
        span = _step(self.name, self.steps)
        record = Record(self.offset, self.offset, SET.digest, (Observed(span),))
        start = time.perf_counter()
        asyncio.get_event_loop().run_until_complete(self.engine.apply(0, [record], epoch=1))
        spent = time.perf_counter() - start
        self.offset += 1
        self.steps += 1
        return spent


def measure() -> dict[int, tuple[float, float]]:
    """Microseconds and bytes saved for one arrival, by the number of earlier steps."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    trajectories = [_Trajectory(length) for length in LENGTHS]
    times: dict[int, list[float]] = {length: [] for length in LENGTHS}
    saved = {t.length: t.store.bytes_saved for t in trajectories}
    for _ in range(ROUNDS):
        for trajectory in trajectories:
            times[trajectory.length].append(trajectory.append())
    return {
        t.length: (
            median(sorted(times[t.length])[: ROUNDS // 2]) * 1e6,
            (t.store.bytes_saved - saved[t.length]) / ROUNDS,
        )
        for t in trajectories
    }


def main() -> None:
    found = measure()
    print("one in-order tool call      µs   bytes saved")
    for length, (micros, size) in found.items():
        print(f"  after {length:5} steps    {micros:7.1f}  {size:9.0f}")
    micros = [m for m, _ in found.values()]
    print(f"  longest over shortest: {max(micros) / min(micros):.2f}  (goal ≤ 1.30)")


if __name__ == "__main__":
    main()
