"""`make bench-kafka`: whole deployments on Apache Kafka and redis-server, each figure beside what
it is to be compared with, in one run.

    python -m tests.benchmarks.kafka [rate] [latency] [memory] [replay] [options]

Takes minutes, and the whole machine. Without a part named, all are run.
"""

from __future__ import annotations

import argparse

from tests.benchmarks import bed, latency, memory, rate, replaying
from tests.benchmarks.told import told

FLAT = 1.1
"""Memory after many finished trajectories over that after a tenth of them."""
REPLAY = 0.6


def _rate(parts: bed.Parts, given: argparse.Namespace) -> None:
    found = rate.measure(parts, given.exporters)
    print(
        f"\nSpans/s from the first sent to the last final label: {found.one:.0f} with one worker, "
        f"{found.two:.0f} with two; on the embedded parts {found.embedded:.0f}; "
        f"Faust reading them without work {found.reading:.0f}"
    )
    told("one worker over the embedded parts", found.one / found.embedded)
    told("two workers over one", found.two / found.one)
    told("one worker over Faust without work", found.one / found.reading)
    told("two workers over Faust without work", found.two / found.reading)


def _latency(parts: bed.Parts, given: argparse.Namespace) -> None:
    for found in latency.measure(parts, given.rates, given.seconds, given.together):
        print(
            f"\nMilliseconds from producing a span to its violation at a subscriber, at {found.rate} "
            f"spans/s: p50 {found.middle:.0f}, p99 {found.worst:.0f} (of {found.count}); bare "
            f"produce and consume: p50 {found.echo_middle:.1f}, p99 {found.echo_worst:.1f}"
        )
        if found.queues:
            print("The worker does not keep up here: this is the length of a queue, growing")
        told("p50 over a bare echo", found.middle / found.echo_middle)
        told("p99 over a bare echo", found.worst / found.echo_worst)


def _memory(parts: bed.Parts, given: argparse.Namespace) -> None:
    found = memory.measure(parts, given.few, given.many)
    for role in ("ingest", "evaluate"):
        few, many = found.few[role], found.many[role]
        print(
            f"\nResident memory of {role}: {few / 1e6:.0f} MB after {given.few} finished "
            f"trajectories, {many / 1e6:.0f} MB after {given.many}"
        )
        told("the second over the first", many / few, FLAT)
    print(
        f"\nRedis: {found.redis_few / 1e6:.0f} MB, then {found.redis_many / 1e6:.0f} MB: "
        f"{found.redis_each:.0f} bytes a trajectory; keys without an end: {found.lasting}"
    )


def _replay(parts: bed.Parts, given: argparse.Namespace) -> None:
    found = replaying.measure(parts, given.exporters)
    print(
        f"\nSpans/s of a replay: {found.replay:.0f}; of bare decode and fold of the same journal: "
        f"{found.bare:.0f}; of a replay that verifies: {found.verify:.0f}"
    )
    told("a replay over bare decode and fold", found.replay / found.bare, REPLAY, at_least=True)
    told("one that verifies over bare decode and fold", found.verify / found.bare)


_PARTS = {"rate": _rate, "latency": _latency, "memory": _memory, "replay": _replay}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.kafka")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(_PARTS)}; none: all")
    parser.add_argument("--exporters", type=int, default=40, help="of 600 spans: rate, replay")
    parser.add_argument(
        "--rates", type=int, nargs="+", default=[200, 1000], help="spans/s: latency"
    )
    parser.add_argument("--seconds", type=float, default=20, help="of each rate")
    parser.add_argument("--together", type=int, default=1, help="spans of a message: latency")
    parser.add_argument("--few", type=int, default=20_000, help="trajectories: memory")
    parser.add_argument("--many", type=int, default=200_000)
    given = parser.parse_args()
    if unknown := set(given.parts) - _PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(_PARTS)}")
    with bed.real() as parts:
        for name, run in _PARTS.items():
            if not given.parts or name in given.parts:
                run(parts, given)


if __name__ == "__main__":
    main()
