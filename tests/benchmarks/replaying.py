"""Spans a second of `agenttrust replay`, beside bare decoding and folding of the same journal.

Bare: the records lie in memory already, and so does all state. The three take turns, and medians
count, so that a machine that changes its speed does it to all.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median

from aiokafka import TopicPartition
from rich.console import Console

from monitor.memory import MemoryStore
from streams import topics
from streams.refold import KnownSets, Refold, decoded, extents, journal_records
from streams.replay import Said, replay_range
from streams.settings import Settings
from streams.topic_log import Raw, TopicLog
from tests.benchmarks import bed, load, wire

_ROUNDS = 3
_TAKE = 64
"""Records folded at a time, as a replay does."""


@dataclass(frozen=True, slots=True)
class Replays:
    """Spans a second."""

    replay: float
    verify: float
    bare: float


def measure(parts: bed.Parts, exporters: int) -> Replays:
    """A worker makes the journal first."""
    deployment = parts.deployment("replay")

    async def judge() -> None:
        async with bed.Judged(deployment) as judged:
            await judged.judge(wire.exporters(exporters))

    with bed.fleet(deployment):
        asyncio.run(judge())
    return asyncio.run(_measure(deployment.settings, exporters * wire.RUNS * load.SPANS))


async def _measure(settings: Settings, spans: int) -> Replays:
    sets = KnownSets(settings)
    await sets.read()
    records = await _journal(settings)
    found: dict[str, list[float]] = {"bare": [], "replay": [], "verify": []}
    work: dict[str, Callable[[], Awaitable[None]]] = {
        "bare": lambda: _fold(settings, sets, records),
        "replay": lambda: _replay(settings, verify=False),
        "verify": lambda: _replay(settings, verify=True),
    }
    for _ in range(_ROUNDS):
        for name, run in work.items():
            began = time.perf_counter()
            await run()
            found[name].append(spans / (time.perf_counter() - began))
    return Replays(**{name: median(rates) for name, rates in found.items()})


async def _journal(settings: Settings) -> dict[int, list[Raw]]:
    """By partition, every record."""
    name = topics.plan(settings).journal.name
    places = [TopicPartition(name, number) for number in range(settings.partitions)]
    found: dict[int, list[Raw]] = {}
    async with TopicLog(settings, name, "") as log:
        for place, held in (await extents(settings, places)).items():
            reading = journal_records(log, place.partition, held.start, held.end)
            async with contextlib.aclosing(reading):
                found[place.partition] = [raw async for raws in reading for raw in raws]
    return found


async def _fold(settings: Settings, sets: KnownSets, records: dict[int, list[Raw]]) -> None:
    for partition, raws in records.items():
        refold = Refold(settings, partition, sets, MemoryStore(), print)
        for first in range(0, len(raws), _TAKE):
            await refold.fold(decoded(raws[first : first + _TAKE], settings.partitions))


async def _replay(settings: Settings, *, verify: bool) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        said = Said(Console(file=out), as_json=True)
        counts = await replay_range(settings, (None, None, None, None), said, verify=verify)
    if counts.differ:
        raise SystemExit(f"the replay is not as published: {counts}")
