"""Resident memory of a worker after some, and after many more, finished trajectories.

A trajectory is one model call that answers, so that very many finish soon. They are sent as fast as
they are judged, so that both measurements see the same load before them. Redis keeps what is
finished until its time is over, so it is measured apart: bytes a trajectory, and that every key ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import redis

from monitor.model import Message, Span
from tests.benchmarks import bed, wire
from tests.deployment import Deployment
from tests.traces import SECOND

_WAVE = 2_000
"""Trajectories under way at a time."""
_PER_EXPORTER = 200
_LOOKS = 5
_BETWEEN = 0.5
"""Seconds between two looks at a resting worker."""
_SAMPLE = 2_000
"""Keys whose end is looked at."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: resident, by role, after few and after many; of Redis; of Redis a trajectory."""

    few: dict[str, int]
    many: dict[str, int]
    redis_few: int
    redis_many: int
    redis_each: float
    lasting: int
    """Keys that never expire, of those looked at."""


def measure(parts: bed.Parts, few: int, many: int) -> Memory:
    """One worker; `few` and `many` are numbers of trajectories."""
    deployment = parts.deployment("memory", settle_delay="0s")
    with bed.fleet(deployment) as pids, redis.Redis.from_url(parts.redis) as store:
        return asyncio.run(_measure(deployment, dict(zip(("ingest", "evaluate"), pids, strict=True)),
                                    store, few, many))  # fmt: skip


async def _measure(
    deployment: Deployment, pids: dict[str, int], store: redis.Redis, few: int, many: int
) -> Memory:
    async with bed.Judged(deployment) as judged:
        await _finish(judged, 0, few)
        first, redis_first = await _resident(pids), int(store.info("memory")["used_memory"])
        await _finish(judged, few, many)
        second, redis_second = await _resident(pids), int(store.info("memory")["used_memory"])
    looked = [key for key, _ in zip(store.scan_iter(count=1000), range(_SAMPLE), strict=False)]
    return Memory(
        first,
        second,
        redis_first,
        redis_second,
        (redis_second - redis_first) / (many - few),
        sum(store.ttl(key) == -1 for key in looked),
    )


async def _finish(judged: bed.Judged, begin: int, end: int) -> None:
    """Sends trajectories `begin` to `end` - 1, a wave while the one before is judged."""
    for first in range(begin, end, _WAVE):
        last = min(first + _WAVE, end)
        await judged.send(list(_exporters(first, last)))
        await judged.wait(first)
    await judged.wait(end)


def _exporters(first: int, last: int) -> Iterator[list[bytes]]:
    for begin in range(first, last, _PER_EXPORTER):
        spans = [_answer(number) for number in range(begin, min(begin + _PER_EXPORTER, last))]
        yield [wire.request(spans[n : n + wire.BATCH]) for n in range(0, len(spans), wire.BATCH)]


def _answer(number: int) -> Span:
    at = 1_700_000_000 * SECOND + number
    return Span(
        f"{(number + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}", f"{number:08x}00000001",
        "llm", "chat", None, start=at, end=at + SECOND, agent="desk", service="desk",
        inputs=(Message("user", "Is anybody there?"),), outputs=(Message("assistant", "Yes."),),
    )  # fmt: skip


async def _resident(pids: dict[str, int]) -> dict[str, int]:
    """Bytes by role, the median of a few looks at a resting worker."""
    looks: dict[str, list[int]] = {role: [] for role in pids}
    for _ in range(_LOOKS):
        await asyncio.sleep(_BETWEEN)
        for role, pid in pids.items():
            looks[role].append(_resident_now(pid))
    return {role: round(median(found)) for role, found in looks.items()}


def _resident_now(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
