"""Folding a part of the journal again, beside the workers: no group, no commits, no live state.

`replay` and `show` stand on this. What is read is what the topics held when the command began, so
that a replay of a living system ends.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.errors import plain
from monitor.label import Event
from monitor.memory import MemoryStore
from monitor.model import Record
from monitor.reading import ParseRequest
from streams import topics
from streams.errors import UserError
from streams.journal import decode
from streams.patience import PATIENCE, patiently
from streams.settings import Settings
from streams.topic_log import FAILURES, Raw, TopicLog

_TAKE: Final = 64
"""Records in hand at a time: at 256 KB each still little, and a load and a save for all of them."""
_QUIET: Final = 300
"""Milliseconds without a record after which a reported end is believed."""
_PROBING: Final = 3.0
"""Seconds in which reported ends are corrected; on a busy topic they move on without us."""


class Extent(msgspec.Struct, frozen=True):
    """What a partition holds: the offset of its first record, and the one after its last."""

    start: int
    end: int


def consumer(settings: Settings) -> AIOKafkaConsumer:
    """A consumer that leaves no trace at the broker."""
    return AIOKafkaConsumer(
        **settings.kafka_args(),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=100,
    )


async def extents(
    settings: Settings, places: Sequence[TopicPartition]
) -> dict[TopicPartition, Extent]:
    """What partitions hold now. Ends that the broker reports too low are read past."""
    client = consumer(settings)
    await patiently("Kafka", client.start, FAILURES)
    try:
        starts = await client.beginning_offsets(places)
        ends = {place: int(end) for place, end in (await client.end_offsets(places)).items()}
        client.assign(places)
        for place in places:
            client.seek(place, ends[place])
        until = time.monotonic() + _PROBING
        while time.monotonic() < until:
            found = await client.getmany(timeout_ms=_QUIET)
            if not found:
                break
            ends |= {place: records[-1].offset + 1 for place, records in found.items()}
    finally:
        await client.stop()
    return {place: Extent(int(starts[place]), ends[place]) for place in places}


async def offsets(
    settings: Settings, places: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """First offsets at or after a time (ms), or earlier ones; without those that the broker does
    not know one for."""
    client = consumer(settings)
    await patiently("Kafka", client.start, FAILURES)
    try:
        found = await client.offsets_for_times(dict.fromkeys(places, timestamp))
    finally:
        await client.stop()
    return {p: int(at.offset) for p, at in found.items() if at is not None and at.timestamp >= 0}


async def messages(
    settings: Settings, bounds: Mapping[TopicPartition, Extent]
) -> AsyncGenerator[list[Any], None]:
    """Messages of several partitions with key and headers, each partition's in order."""
    left = {place: extent.end for place, extent in bounds.items() if extent.start < extent.end}
    if not left:
        return
    client = consumer(settings)
    await patiently("Kafka", client.start, FAILURES)
    try:
        client.assign(list(left))
        for place in left:
            client.seek(place, bounds[place].start)
        heard = time.monotonic()
        while left:
            found = await client.getmany(*left, timeout_ms=1000, max_records=500)
            if found:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                raise UserError(f"{settings.kafka_bootstrap} gives no more records")
            for place, records in found.items():
                end = bounds[place].end
                if inside := [record for record in records if record.offset < end]:
                    yield inside
            for place in list(left):
                if await client.position(place) >= left[place]:
                    del left[place]
    finally:
        await client.stop()


async def journal_records(
    log: TopicLog, partition: int, first: int, stop: int
) -> AsyncGenerator[list[Raw], None]:
    """Records `first` to `stop` - 1 without a gap: an offset that holds nothing has no value.

    Raises UserError when they cannot all be read.
    """
    position = first
    if first >= stop:
        return
    async with aclosing(log.read(partition, first, stop, most=_TAKE)) as reading:
        async for raws in reading:
            whole = []
            for raw in raws:
                whole += [
                    Raw(partition, missing, raw.timestamp, None)
                    for missing in range(position, raw.offset)
                ]
                whole.append(raw)
                position = raw.offset + 1
            yield whole
    if position < stop:
        raise UserError(
            f"partition {partition} of the journal holds no record {position} any more;"
            " retention may have removed it while it was read"
        )


class KnownSets:
    """`monitor.ports.PolicySets`: those that are in the contracts topic. Waits for none."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._place = TopicPartition(topics.plan(settings).contracts.name, 0)
        self._read_to = 0
        self._sets: dict[str, PolicySet] = {}

    async def get(self, digest: str) -> PolicySet:
        """The set. Raises UserError for one that is not there."""
        if digest not in self._sets:
            await self.read()
        if digest not in self._sets:
            raise UserError(
                f"policy set {plain(digest, 64)!r} is not in topic {self._place.topic}:"
                " what was judged by it cannot be judged again"
            )
        return self._sets[digest]

    async def read(self) -> None:
        """Reads what the topic holds beyond what is known."""
        extent = (await extents(self._settings, [self._place]))[self._place]
        extent = Extent(max(extent.start, self._read_to), extent.end)
        async for found in messages(self._settings, {self._place: extent}):
            for message in found:
                try:
                    policy_set = PolicySet.decode(message.value or b"")
                except ValueError:
                    continue  # not ours; should a record name it, it is missed then
                self._sets[policy_set.digest] = policy_set
        self._read_to = max(self._read_to, extent.end)

    @property
    def state_ttl(self) -> int:
        """Milliseconds after which no set knows of a state any more."""
        lives = [policy_set.limits.state_ttl for policy_set in self._sets.values()]
        return max(lives, default=0)


class _Out:
    """A `Publisher` that hands events to the caller. Nobody is asked for a reading: what was read
    is in the journal."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    async def publish(self, events: Sequence[Event], requests: Sequence[ParseRequest]) -> None:
        del requests
        self._events += events

    def take(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class Refold:
    """Records of one partition through the engine that the workers run, on a store of its own.

    `tell` hears a line about every trajectory that the fold breaks on.
    """

    def __init__(
        self,
        settings: Settings,
        partition: int,
        sets: KnownSets,
        store: MemoryStore,
        tell: Callable[[str], None],
    ) -> None:
        self.partition = partition
        self._out = _Out()
        self.engine = Engine(
            store,
            self._out,
            sets,
            settle_delay=round(settings.settle_delay * 1000),
            idle_timeout=round(settings.idle_timeout * 1000),
            on_fold_error=lambda name, error: tell(f"trajectory {name} breaks the fold: {error!r}"),
        )

    async def fold(self, records: Sequence[Record]) -> list[Event]:
        """The events that follow from consecutive records."""
        await self.engine.apply(self.partition, records, epoch=0)
        return self._out.take()


def decoded(raws: Iterable[Raw], partitions: int, only: str | None = None) -> list[Record]:
    """Records as the fold takes them; with `only`, without the arrivals of other trajectories."""
    records = []
    for raw in raws:
        if only is not None and only.encode() not in (raw.value or b""):
            records.append(Record(raw.offset, raw.timestamp, ""))
            continue
        found = decode(raw.value, raw.partition, partitions)
        arrivals = found.arrivals
        if only is not None:
            arrivals = tuple(a for a in arrivals if a.trajectory == only)
        records.append(Record(raw.offset, raw.timestamp, found.policy_set, arrivals))
    return records


async def check_topics(settings: Settings) -> None:
    """Raises UserError when a topic that is read is missing, or its partition count is another."""
    plan = topics.plan(settings)
    wanted = [plan.journal, plan.contracts, plan.labels, plan.violations]
    async with topics.admin(settings) as client:
        counts = await topics.partition_counts(client, [topic.name for topic in wanted])
    if missing := [topic.name for topic in wanted if topic.name not in counts]:
        told = ", ".join(missing)
        raise UserError(
            f"no topic {told} at {settings.kafka_bootstrap}; run: agenttrust topics create"
        )
    topics.check_partitions(settings.partitions, counts[plan.journal.name], None)
    for topic in (plan.labels, plan.violations):
        if counts[topic.name] != settings.partitions:
            raise UserError(
                f"topic {topic.name} has {counts[topic.name]} partitions,"
                f" the journal has {settings.partitions}"
            )
