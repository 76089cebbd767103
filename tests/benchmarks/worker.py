"""A whole worker beside the decoding and normalising that it does.

What stands around the reading of spans (Kafka, journal, fold, store, events) is to cost little more
than twice as much again: a ratio of 0.3. Measured is the CPU time of the two processes of a worker, from the moment
that spans are sent until the last run has its final label, on the embedded broker and a Redis; and
that of a process that only decodes and normalises the same bytes. The two take turns, and the
ratio of neighbours counts, so that a machine that changes its speed does it to both.

    python -m tests.benchmarks.worker [--exporters 20] [--rounds 3] [--history] [--profile DIR]

`--history`: model calls repeat the whole conversation, as real agents' do; without it they show
only what is new, which is the cheapest span to read and so the hardest case for the ratio.
`--profile` also writes a cProfile of each role's main thread, start included, and of the reading to
a folder; the figures are then those of profiled code.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from monitor.semconv import RawSpan, normalise
from streams import otlp
from tests import services
from tests.benchmarks import bed, load, wire
from tests.deployment import Deployment

GOAL: Final = 0.3
_WARM_UP: Final = 2
"""Exporters before the clocks are read."""
_REST: Final = 3.0

# -- one round -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement: CPU microseconds a span of each part, labels a span, spans a second from the
    first sent to the last final label, which is a settle delay after its run's end."""

    reading: float
    ingest: float
    evaluate: float
    resting: float
    """What a worker without work spends in the same time: it is in the two before, too."""
    spans_per_second: float
    labels: float

    @property
    def ratio(self) -> float:
        return self.reading / (self.ingest + self.evaluate)

    @property
    def busy(self) -> float:
        """The ratio without what is spent at rest, which a slow machine stretches."""
        return self.reading / (self.ingest + self.evaluate - self.resting)


def _reading(file: Path, profile: Path | None) -> float:
    """CPU microseconds a span of a process that does nothing else."""
    command = [*bed.python(profile), "-m", "tests.benchmarks.worker", "--read", str(file)]
    done = subprocess.run(command, cwd=services.ROOT, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _read_file(file: Path) -> None:
    """What the process of `_reading` does: a part to warm up, then all, which counts."""
    requests = wire.unpacked(file.read_bytes())
    spans, began = 0, 0.0
    for part in (requests[: len(requests) // 4], requests):
        spans, began = 0, time.process_time()
        for request in part:
            for raw in otlp.decode(request):
                assert isinstance(raw, RawSpan)
                normalise(raw)
                spans += 1
    print((time.process_time() - began) / spans * 1e6)


def store_kind() -> str:
    """Which Redis the figures are of."""
    return "redis-server" if shutil.which("redis-server") else "fakeredis, a slower Redis"


@contextmanager
def _services(folder: Path) -> Iterator[tuple[str, str]]:
    """Addresses of a broker and of a Redis for one measurement."""
    kafka, redis = services.free_port(), services.free_port()
    if shutil.which("redis-server"):
        options = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
        store = services.start_redis_server(redis, folder, *options)
    else:
        store = services.start_fake_redis(redis, folder / "redis.log")
    with services.start_broker(kafka, folder / "broker.log"), store:
        yield f"127.0.0.1:{kafka}", f"redis://127.0.0.1:{redis}/0"


def measure(
    exporters: int = 20, rounds: int = 3, *, history: bool = False, profile: Path | None = None
) -> list[Round]:
    """Rounds of a worker between readings of the same spans."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agenttrust-")))
        kafka, redis = stack.enter_context(_services(folder))
        parts = bed.Parts(kafka, redis, folder)
        deployment = parts.deployment("bench", settle_delay="1s")
        pids = [
            stack.enter_context(
                bed.worker(deployment, role, profile=profile and profile / f"{role}.pstats")
            )
            for role in ("ingest", "evaluate")
        ]
        bench = _Bench(deployment, pids, exporters, history=history, profile=profile)
        return asyncio.run(bench.rounds(rounds))


class _Bench:
    """Sends runs to a worker and reads the clocks of its processes."""

    def __init__(
        self,
        deployment: Deployment,
        pids: list[int],
        exporters: int,
        *,
        history: bool,
        profile: Path | None,
    ) -> None:
        self._deployment = deployment
        self._pids = pids
        self._exporters = exporters
        self._history = history
        self._profile = profile

    async def rounds(self, count: int) -> list[Round]:
        async with bed.Judged(self._deployment) as judged:
            await judged.judge(wire.exporters(_WARM_UP, history=self._history))
            self._resting = await self._rest()
            return [await self._round(judged, number) for number in range(2, count + 2)]

    async def _round(self, judged: bed.Judged, number: int) -> Round:
        sent = wire.exporters(self._exporters, history=self._history, salt=number)
        spans = self._exporters * wire.RUNS * load.SPANS
        file = self._deployment.folder / "requests"
        file.write_bytes(wire.packed([request for requests in sent for request in requests]))
        before = _reading(file, self._profile and self._profile / "reading.pstats")
        labels, spent, began = judged.labels, bed.spent(self._pids), time.monotonic()
        await judged.judge(sent)
        wall = time.monotonic() - began
        ingest, evaluate = (b - a for a, b in zip(spent, bed.spent(self._pids), strict=True))
        after = _reading(file, self._profile and self._profile / "reading.pstats")
        return Round(
            reading=(before + after) / 2,
            ingest=ingest / spans * 1e6,
            evaluate=evaluate / spans * 1e6,
            resting=self._resting * wall / spans * 1e6,
            spans_per_second=spans / wall,
            labels=(judged.labels - labels) / spans,
        )

    async def _rest(self) -> float:
        """Seconds of CPU a second of both roles while nothing arrives."""
        spent = sum(bed.spent(self._pids))
        await asyncio.sleep(_REST)
        return (sum(bed.spent(self._pids)) - spent) / _REST


# -- the command -----------------------------------------------------------------------------


def summary(rounds: Sequence[Round]) -> str:
    """A line of figures: medians, and the smallest and largest ratio."""
    ratios = [found.ratio for found in rounds]

    def middle(name: str) -> float:
        return median(getattr(found, name) for found in rounds)

    return (
        f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}; {middle('busy'):.2f}"
        f" without rest); µs of CPU a span: reading {middle('reading'):.0f},"
        f" ingest {middle('ingest'):.0f}, evaluate {middle('evaluate'):.0f},"
        f" of which rest {middle('resting'):.0f}; {middle('spans_per_second'):.0f} spans/s,"
        f" a label per {1 / middle('labels'):.0f} spans; {store_kind()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worker")
    parser.add_argument("--exporters", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read is not None:
        _read_file(given.read)
        return
    if given.profile is not None:
        given.profile.mkdir(parents=True, exist_ok=True)
    rounds = measure(given.exporters, given.rounds, history=given.history, profile=given.profile)
    print(summary(rounds), f"(goal: {GOAL} or more)")


if __name__ == "__main__":
    main()
