"""One partition's part of a range of the journal, folded from its trajectories' beginnings.

A trajectory can only be judged again from its first arrival on. So the journal is read back by
STATE_TTL, which is as long as a state lives, before the range: what has arrivals there is noted
and left out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Final

from monitor.label import Event
from monitor.model import Record
from streams.ledger import Ledger
from streams.range import Range
from streams.refold import KnownSets, Refold, decoded, journal_records
from streams.settings import Settings
from streams.spill import SpillingStore
from streams.topic_log import Raw, TopicLog

_HOUR: Final = 3_600_000
"""Milliseconds that clocks of brokers and producers may differ by."""
_EVER: Final = 2**62


class Part:
    """A part of a range and what came of it.

    `ledger` knows afterwards which trajectories the range holds and which began before it.
    `first_time` and `last_time` are those of its records, `reach` is how far before them something
    may lie that matters to it, in milliseconds. `advance` hears how many records of it were folded, `tell` hears of what a reader must know.
    """

    def __init__(
        self,
        settings: Settings,
        log: TopicLog,
        sets: KnownSets,
        part: Range,
        folder: Path,
        *,
        only: str | None,
        advance: Callable[[int], None],
        tell: Callable[[str], None],
    ) -> None:
        self.part = part
        self.log = log
        self.first_time = _EVER
        self.last_time = 0
        self.look_back_from = part.first
        self.reach = sets.state_ttl + _HOUR
        self.ledger = Ledger(folder / f"{part.partition}.ledger")
        self._settings = settings
        self._only = only
        self._advance = advance
        self._store = SpillingStore(folder / f"{part.partition}.state", sets.state_ttl)
        self._refold = Refold(settings, part.partition, sets, self._store, tell)

    def close(self) -> None:
        self._store.close()
        self.ledger.close()

    @property
    def open(self) -> int:
        """Trajectories that have not ended yet."""
        return self._store.open

    async def begin(self) -> bool:
        """Reads back what is needed to know; False when the range holds no record."""
        part = self.part
        if part.first == part.stop:
            return False
        first = await self.log.at(part.partition, part.first)
        if not isinstance(first, Raw):
            return False
        self.first_time = first.timestamp
        if part.first > part.log.start:
            since = self.first_time - self.reach
            found = await self.log.since(part.partition, since)
            self.look_back_from = part.log.start if found is None else max(found, part.log.start)
            async with aclosing(self._records(self.look_back_from, part.first)) as reading:
                async for records in reading:
                    self.ledger.outside({a.trajectory for r in records for a in r.arrivals})
        return True

    async def events(
        self, cuts: tuple[int, ...] = ()
    ) -> AsyncGenerator[tuple[int, list[Event]], None]:
        """The events of the range, with the offset of the first record that may have caused them.
        No batch reaches over an offset of `cuts`."""
        part = self.part
        bounds = sorted({part.first, part.stop, *(c for c in cuts if part.first < c < part.stop)})
        for first, stop in pairwise(bounds):
            async with aclosing(self._records(first, stop)) as reading:
                async for records in reading:
                    self._advance(len(records))
                    self.last_time = max(self.last_time, *(r.timestamp for r in records))
                    yield first, await self._refold.fold(self._inside(records))

    def _inside(self, records: list[Record]) -> list[Record]:
        """Records without the arrivals of trajectories that began before the range."""
        times: dict[str, int] = {}
        for record in records:
            for arrival in record.arrivals:
                times.setdefault(arrival.trajectory, record.timestamp)
        before = self.ledger.arrived(times)
        return [_without(record, before) for record in records] if before else records

    async def beyond(self, names: set[str], until: int) -> AsyncGenerator[list[Event], None]:
        """Events that trajectories of the range have after it, while records are not newer than
        `until`. Trajectories that only come there are noted as outside the range."""
        known = {name for name in names if self.ledger.holds(name)}
        after = self._records(self.part.stop, self.part.log.end)
        async with aclosing(after) as reading:
            async for records in reading:
                here = {a.trajectory for r in records for a in r.arrivals}
                self.ledger.outside((here & names) - known)
                yield await self._refold.fold([_without(r, here - known) for r in records])
                if records[0].timestamp > until:
                    return

    async def _records(self, first: int, stop: int) -> AsyncGenerator[list[Record], None]:
        raw = journal_records(self.log, self.part.partition, first, stop)
        async with aclosing(raw) as reading:
            async for raws in reading:
                yield decoded(raws, self._settings.partitions, self._only)


def _without(record: Record, names: set[str]) -> Record:
    arrivals = tuple(a for a in record.arrivals if a.trajectory not in names)
    return Record(record.offset, record.timestamp, record.policy_set, arrivals)
