"""Evaluate: journal -> fold -> events, with state in the store.

A partition is *taken over* before its first record is folded and before its first close is written:
the stored watermark is compared with the log. What the comparison may find, and what follows:

| found                                               | then                                      |
| --------------------------------------------------- | ----------------------------------------- |
| the record at the watermark, same time              | go on behind it                           |
| another record, or the log ends before it           | a new log: forget the state, a new epoch  |
| retention has removed the record after it           | a new epoch; every open trajectory has    |
|                                                     | lost something, and is told so            |
| the group has committed more than is in the state   | the store lost writes: fold them silently |
| no watermark, but a commit                          | the store is empty: fold STATE_TTL back   |
| the log begins later than that                      | what was seen in it may have begun before |
|                                                     | it: every trajectory is told so           |

Records that the group had committed were published then; they are folded without publishing.
A trajectory is told by a `lost` arrival in the journal, reason `history_lost`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Final, Literal

import msgspec

from monitor.engine import Engine, Fenced
from monitor.model import HISTORY_LOST, Close, Lost, Record
from monitor.ports import Watermark
from streams import metrics
from streams.dead_letters import DeadLetters
from streams.events import Message
from streams.journal import Packer, decode
from streams.policy_sets import PolicySetLog
from streams.sender import Sender
from streams.store import RedisStore
from streams.topic_log import Raw, TopicLog

log = logging.getLogger(__name__)

Found = Literal["agrees", "new", "behind", "empty", "new_log", "retention"]
"""What a take-over found; see `streams.metrics`, `takeovers`."""
_ALL_OPEN: Final = 1_000_000
_EVER: Final = 2**53
_SIDE_BY_SIDE: Final = 4
"""Partitions that are folded at a time: enough to wait for the store and to fold by turns, and few
enough that the first have their events out before the last begin."""
CLOSE_EVERY: Final = 0.5
"""Seconds between two looks at what has fallen due."""
_COMPARE: Final = 1.0
"""Seconds after which the log is compared again before it is folded on,"""
_COMPARE_IDLE: Final = 5.0
"""and when nothing comes: a log made anew that has grown to where the old one ended looks the same."""


class Taken(msgspec.Struct):
    """A partition that this worker owns and has compared with the log.

    `folded` is the last offset in the state, -1 for none, `time` that record's timestamp; `written`
    the last offset of a close that was written here: before it is read back, no other is due.
    """

    epoch: int
    folded: int
    written: int = -1
    time: int | None = None
    compared: float = 0.0
    """When it was last seen that the log still holds that record."""


class Evaluate:
    """Handles batches of journal records and writes closes. Times are seconds.

    `clock` gives Unix seconds and says when closes fall due, nothing else of what is published.
    """

    def __init__(
        self,
        *,
        journal: str,
        partitions: int,
        state_ttl: float,
        engine: Engine,
        store: RedisStore,
        journal_log: TopicLog,
        policy_sets: PolicySetLog,
        sender: Sender,
        dead_letters: DeadLetters,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal = journal
        self._partitions = partitions
        self._state_ttl = round(state_ttl * 1000)
        self._engine = engine
        self._store = store
        self._log = journal_log
        self._sets = policy_sets
        self._sender = sender
        self._dead = dead_letters
        self._clock = clock
        self._few = asyncio.Semaphore(_SIDE_BY_SIDE)
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One for each partition as long as the process lives: what began before a rebalance may go on
        after it, and must not meet what begins then."""
        self._assigned: frozenset[int] = frozenset()
        self._taken: dict[int, Taken] = {}

    # -- ownership ---------------------------------------------------------------------------

    def assign(self, partitions: Iterable[int]) -> None:
        """These partitions are this worker's from now on; each will be taken over anew."""
        self._assigned = frozenset(partitions)
        self._taken = {}

    def revoke(self) -> None:
        """No partition is this worker's any more."""
        self.assign(())

    async def _take(self, partition: int) -> Taken:
        """Compares state and log once per assignment; see the module's table."""
        known = self._taken
        taken = known.get(partition)
        if taken is not None:
            return taken
        mark = await self._store.watermark(partition)
        committed = await self._log.committed(partition)
        start = await self._log.start(partition)
        taken = Taken(0, -1)
        if mark is not None:
            taken = Taken(mark.epoch, mark.offset, time=mark.timestamp)
        found: Found = "agrees"
        if mark is None:
            found = "new"
            if committed is not None and committed > start:
                found = "empty"
                await self._rebuild(partition, taken, committed, start)
            elif start > 0:
                found = "retention"
                await self._tell_history_lost(partition, start)
        else:
            found = await self._compare(partition, taken, mark, start)
            if committed is not None and committed > taken.folded + 1 and taken.epoch == mark.epoch:
                log.warning(
                    "partition %d: the state store lost what was folded from %d to %d; folding again",
                    *(partition, taken.folded + 1, committed - 1),
                )
                found = "behind"
                await self._catch_up(partition, taken, mark.offset, committed, silent=True)
        metrics.count("takeovers", found=found)
        known[partition] = taken  # of this assignment: after another one it is taken over again
        metrics.put("epoch", max(one.epoch for one in known.values()))
        if found == "new_log":  # its first records may lie before the commit of the old one
            end = (await self._log.ends([partition])).get(partition, 0)
            await self._catch_up(partition, taken, taken.folded + 1, end, silent=False)
        return taken

    async def _current(self, partition: int, every: float) -> Taken:
        """The partition as it was taken, which is done anew when its log was made anew since."""
        taken = await self._take(partition)
        now = self._clock()
        if now - taken.compared < every:
            return taken
        if taken.time is not None:
            gone = await self._log.replaced(partition, taken.folded, taken.time)
            if gone and self._taken.pop(partition, None) is not None:
                taken = await self._take(partition)
        taken.compared = now
        return taken

    async def _compare(self, partition: int, taken: Taken, mark: Watermark, start: int) -> Found:
        found = await self._log.at(partition, mark.offset)
        if isinstance(found, Raw):
            if found.timestamp == mark.timestamp:
                return "agrees"
            why = f"its record {mark.offset} has time {found.timestamp}, not {mark.timestamp}"
        elif found == "beyond":
            why = f"it ends before record {mark.offset}"
        elif start <= mark.offset + 1:
            return "agrees"
        else:
            log.error(
                "partition %d: retention removed records %d to %d before they were folded",
                *(partition, mark.offset + 1, start - 1),
            )
            await self._tell_history_lost(
                partition, start, await self._store.due(partition, _EVER, _ALL_OPEN)
            )
            taken.epoch, taken.folded, taken.time = mark.epoch + 1, start - 1, None
            return "retention"
        log.error("partition %d has a new log (%s): its state is forgotten", partition, why)
        await self._store.reset(partition)
        taken.epoch, taken.folded, taken.time = mark.epoch + 1, start - 1, None
        return "new_log"

    async def _tell_history_lost(
        self, partition: int, start: int, open_: Iterable[str] = ()
    ) -> None:
        """A `lost` arrival for every trajectory that may have begun before the log does: those
        seen in it while state of before its start would have lived, and the `open_` ones.
        """
        told: set[bytes] = set()  # ids as bytes: there may be very many
        digest = await self._sets.latest()
        source = f"{self._journal}:{partition}:{start}:"

        async def tell(names: Iterable[str]) -> None:
            packer = Packer(digest, self._partitions)
            for name in dict.fromkeys(names):
                if (raw := bytes.fromhex(name)) not in told:
                    told.add(raw)
                    packer.add(Lost(name, HISTORY_LOST, source))
                    metrics.count("lost_arrivals", reason=HISTORY_LOST)
            await self._write(packer)

        await tell(open_)
        end = (await self._log.ends([partition])).get(partition, start)
        horizon = None
        async with aclosing(self._log.read(partition, start, end)) as reading:
            async for raws in reading:
                horizon = raws[0].timestamp + self._state_ttl if horizon is None else horizon
                seen = [
                    arrival.trajectory
                    for raw in raws
                    if raw.timestamp <= horizon
                    for arrival in decode(raw.value, partition, self._partitions).arrivals
                ]
                if not seen:
                    break
                await tell(seen)
        log.error(
            "partition %d: its log begins at %d, too late to know what began before: "
            "%d trajectories are told that their history is lost",
            *(partition, start, len(told)),
        )

    async def _rebuild(self, partition: int, taken: Taken, committed: int, start: int) -> None:
        """Folds again what the committed state must have held. What is left of it is removed: a
        store that lost its watermark may have kept more."""
        await self._store.reset(partition)
        last = await self._log.at(partition, committed - 1)
        if not isinstance(last, Raw):
            taken.folded = start - 1  # the commit belongs to another log
            return
        since = last.timestamp - self._state_ttl
        first = await self._log.since(partition, since)
        first = start if first is None else max(first, start)
        if first == start > 0:
            begin = await self._log.at(partition, start)
            if not isinstance(begin, Raw) or begin.timestamp > since:
                await self._tell_history_lost(partition, start)
        log.warning(
            "partition %d: the state store is empty; folding %d to %d again",
            *(partition, first, committed - 1),
        )
        taken.folded = first - 1
        await self._catch_up(partition, taken, first, committed, silent=True)

    async def _catch_up(
        self, partition: int, taken: Taken, first: int, stop: int, *, silent: bool
    ) -> None:
        """Folds records `first` to `stop` - 1, read beside the consumer group."""
        async with aclosing(self._log.read(partition, first, stop)) as reading:
            async for records in reading:
                await self._fold(partition, taken, records, silent=silent)

    # -- folding -----------------------------------------------------------------------------

    async def handle(self, records: Sequence[Raw]) -> frozenset[int]:
        """Folds records of one partition, in order of offset and each once; gives the partition
        when they may be acknowledged."""
        partition = records[0].partition
        once = {raw.offset: raw for raw in sorted(records, key=lambda raw: raw.offset)}
        async with self._few:
            try:
                folded = await self._part(partition, list(once.values()))
            except Fenced as overtaken:
                if partition in self._assigned:
                    raise
                metrics.count("partitions_fenced")
                log.info("partition %d went to another worker: %s", partition, overtaken)
                folded = False
        return frozenset([partition]) if folded else frozenset()

    async def _part(self, partition: int, records: list[Raw]) -> bool:
        async with self._locks[partition]:
            if partition not in self._assigned:
                return False
            taken = await self._current(partition, _COMPARE)
            # Faust may hand over records of before a rebalance, and leave out what lies between.
            for _, run in groupby(enumerate(records), lambda pair: pair[1].offset - pair[0]):
                found = [raw for _, raw in run]
                first, here = taken.folded + 1, found[0].offset
                if first < here:
                    first = max(first, await self._log.start(partition))
                if first < here:
                    await self._catch_up(partition, taken, first, here, silent=False)
                await self._fold(partition, taken, found, silent=False)
        return True

    async def _fold(
        self, partition: int, taken: Taken, raws: Sequence[Raw], *, silent: bool
    ) -> None:
        records, letters = [], []
        for raw in raws:
            if raw.offset < taken.folded:
                continue
            decoded = decode(raw.value, partition, self._partitions)
            records.append(Record(raw.offset, raw.timestamp, decoded.policy_set, decoded.arrivals))
            if decoded.arrivals:
                self._dead.good()
            for bad in () if silent else decoded.bad:
                source = f"{self._journal}:{partition}:{raw.offset}:{bad.place}"
                letters.append(self._dead.letter(bad.reason, source, bad.raw, bad.trajectory))
        if letters:
            await self._sender.send(letters)
        if records:
            try:
                await self._engine.apply(partition, records, epoch=taken.epoch, silent=silent)
            finally:
                metrics.fold(self._engine.counters)
                self._engine.counters.clear()
            if records[-1].offset >= taken.folded:
                taken.folded, taken.time = records[-1].offset, records[-1].timestamp

    # -- closes ------------------------------------------------------------------------------

    async def close_due(self) -> None:
        """Writes the closes that have fallen due in partitions that are read to their end.

        The end is asked for after the time is taken: what arrived before a close fell due has then
        been folded, so a lagging worker closes nothing that is still alive.
        """
        now = int(self._clock() * 1000)
        for partition, end in (await self._log.ends(self._assigned)).items():
            lock = self._locks[partition]
            if lock.locked():
                continue  # being folded and so not read to its end
            async with lock:
                if partition not in self._assigned:
                    continue
                try:
                    taken = await self._current(partition, _COMPARE_IDLE)
                except Fenced:
                    if partition in self._assigned:
                        raise
                    continue
                if taken.folded < max(end - 1, taken.written):
                    continue
                packer = Packer(await self._sets.latest(), self._partitions)
                for due in await self._engine.closes(partition, now):
                    packer.add(due)
                    if isinstance(due, Close):
                        metrics.count("closes_written", reason=due.reason)
                    else:
                        metrics.count("readings_written", outcome=str(due.reason))
                taken.written = max(await self._write(packer), default=taken.written)

    async def _write(self, packer: Packer) -> list[int]:
        messages = [Message(self._journal, p, None, value) for p, value in packer.records()]
        return await self._sender.send(messages)

    async def follow(self) -> None:
        """Writes closes until cancelled."""
        while True:
            await asyncio.sleep(CLOSE_EVERY)
            await self.close_due()
