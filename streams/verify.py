"""Comparing a replay with what was published.

What the topics held is taken down before the end of the journal is: so every published event has
its cause in the journal that is read, and what the workers have not committed yet may be missing.

| not compared                                      | why                                           |
| ------------------------------------------------- | --------------------------------------------- |
| trajectories with arrivals before the range       | they cannot be judged from the range alone    |
| differing ones of which retention may have        | likewise; `may have`: they arrive within      |
| removed the beginning                             | IDLE_TIMEOUT of the first record that is left |
| differing ones that another fold version judged   | it may judge otherwise                        |
| events that their topic no longer keeps           | they cannot be found                          |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from aiokafka import TopicPartition

from monitor.errors import plain
from monitor.label import LABEL, VIOLATION, Event
from streams import topics
from streams.events import EventWriter, NotAnEventError, read
from streams.journal import is_trajectory, partition_of
from streams.ledger import Ledger, fingerprint
from streams.part import Part
from streams.refold import Extent, extents, messages, offsets
from streams.settings import Settings
from streams.topic_log import Raw, TopicLog

_MINUTE: Final = 60_000
_EVER: Final = 2**62


class Published(msgspec.Struct, frozen=True):
    """What the topics of labels and violations held when the command began, and up to where the
    workers had committed the journal (by partition; None: never)."""

    held: dict[TopicPartition, Extent]
    committed: dict[int, int | None]


async def published(settings: Settings, log: TopicLog, partitions: list[int]) -> Published:
    """Takes down how far the workers are. `log` is the journal beside the workers' group."""
    plan = topics.plan(settings)
    committed = {number: await log.committed(number) for number in partitions}
    places = [
        TopicPartition(topic.name, number)
        for topic in (plan.labels, plan.violations)
        for number in partitions
    ]
    return Published(await extents(settings, places), committed)


class Counts(msgspec.Struct):
    """What a comparison found, of all partitions together."""

    alike: int = 0
    compared: int = 0
    open: int = 0
    late: int = 0
    older: int = 0
    unkept: int = 0
    missing: int = 0
    extra: int = 0
    changed: int = 0
    not_compared: int = 0

    @property
    def differ(self) -> int:
        return self.missing + self.extra + self.changed


class Verify:
    """Compares parts of the journal with the topics. `tell` hears of messages that are no events."""

    def __init__(
        self, settings: Settings, found: Published, only: str | None, tell: Callable[[str], None]
    ) -> None:
        plan = topics.plan(settings)
        self.counts = Counts()
        self._settings = settings
        self._found = found
        self._only = only
        self._tell = tell
        self._topics = {LABEL: plan.labels.name, VIOLATION: plan.violations.name}
        self._writer = EventWriter(
            labels=plan.labels.name, violations=plan.violations.name, partitions=settings.partitions
        )

    async def compare(self, part: Part) -> None:
        """Folds and compares; the ledger of the part then has the differences."""
        committed = self._found.committed[part.part.partition]
        if await part.begin():
            cuts = () if committed is None else (committed,)
            async for first, events in part.events(cuts):
                unsure = committed is not None and first >= committed
                self._expect(part.ledger, events, unsure=unsure)
        self.counts.open += part.open
        oldest = await self._load(part)
        to_end = part.part.stop == part.part.log.end
        part.ledger.compare(part.first_time, _EVER if to_end else part.last_time)
        for type_, time in oldest.items():
            self.counts.unkept += part.ledger.unkept(type_, time)
        if not to_end and (names := part.ledger.unexplained()):
            async for events in part.beyond(names, part.last_time + _MINUTE):
                self._expect(part.ledger, events, unsure=True)
                if not part.ledger.unexplained():
                    break
        await self._excuse(part)
        self._count(part)

    def _expect(self, ledger: Ledger, events: list[Event], *, unsure: bool) -> None:
        written = ((event, self._writer.message(event)) for event in events)
        ledger.expect(((event, m.headers, m.value) for event, m in written), unsure=unsure)

    async def _load(self, part: Part) -> dict[str, int]:
        """Reads the topics. Gives, by type of event, the time of the oldest one that its topic has
        kept, when it has not kept all that the range could need."""
        number = part.part.partition
        places = {TopicPartition(name, number): type_ for type_, name in self._topics.items()}
        since = part.first_time - part.reach
        near = await offsets(self._settings, list(places), since) if since > 0 else {}
        bounds, oldest = {}, {}
        for place, type_ in places.items():
            held = self._found.held[place]
            bounds[place] = Extent(min(near.get(place, held.start), held.end), held.end)
            if held.start > 0 and bounds[place].start <= held.start:
                oldest[type_] = _EVER
        async for found in messages(self._settings, bounds):
            rows = []
            for message in found:
                where = f"{message.topic}:{message.partition}:{message.offset}"
                if self._only is not None and message.key != self._only.encode():
                    continue
                try:
                    event = read(message.headers, message.value)
                except NotAnEventError as error:
                    self._tell(f"{where}: no event of ours: {plain(error)}")
                    continue
                print_ = fingerprint(message.key, message.value, message.headers)
                name = event.trajectory
                home = is_trajectory(name) and partition_of(name, self._settings.partitions)
                rows.append((event, print_, where, home is False or home != number))
                if event.type in oldest:
                    oldest[event.type] = min(oldest[event.type], event.time)
            part.ledger.publish(rows)
        return oldest

    async def _excuse(self, part: Part) -> None:
        part.ledger.excuse_versions()
        start = part.part.log.start
        if start > 0 and part.look_back_from == start:
            first = await part.log.at(part.part.partition, start)
            if isinstance(first, Raw):
                idle = round(self._settings.idle_timeout * 1000)
                part.ledger.excuse_cut(first.timestamp, first.timestamp + idle)

    def _count(self, part: Part) -> None:
        counts, ledger = self.counts, part.ledger
        counts.alike += ledger.count("alike")
        counts.late += ledger.count("late")
        counts.compared += ledger.count("compared")
        if part.part.first == 0:
            counts.older += ledger.count("older")
