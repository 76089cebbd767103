"""What of each partition is handled without a hole: the only thing that is ever committed.

Faust commits past a head that was not acknowledged when one record is missing there, or when the
group has no commit yet; when a stream is left, it acknowledges by itself what still waits in it; and
after a rebalance it may leave out records; and of a topic made anew it drops, without a word, whatever
has an offset below the old commit. Each of these lost messages, seldom, under load. So its
bookkeeping is not used: positions are counted here from the group's commit on, records that were left
out are read beside the group, and what Faust commits is asked of here (`install`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import Any

from streams.topic_log import Raw, TopicLog

Place = tuple[str, int]
"""Topic and partition."""


class Positions:
    """Of one consumer. `logs` reads its topics, by name."""

    def __init__(self, logs: Mapping[str, TopicLog]) -> None:
        self._logs = logs
        self._next: dict[Place, int] = {}
        self._handled: dict[Place, int] = {}
        self._times: dict[Place, int] = {}
        """Times (ms) of the records before `_handled`."""

    def forget(self) -> None:
        """The group has given out its partitions anew: each begins at its commit."""
        self._next.clear()
        self._handled.clear()
        self._times.clear()

    def handled(self, place: Place) -> int | None:
        """The offset behind everything that is handled; None when nothing was."""
        return self._handled.get(place)

    async def parts(self, batch: Sequence[Raw]) -> AsyncGenerator[list[Raw], None]:
        """The batch without what is handled already, and before it, what was left out."""
        rest: list[Raw] = []
        ordered = sorted(batch, key=lambda raw: (raw.topic, raw.partition, raw.offset))
        for place, found in groupby(ordered, key=lambda raw: (raw.topic, raw.partition)):
            at = self._next.get(place)
            if at is None:
                at = await self._begin(place)
            compared = False
            for raw in found:
                if raw.offset < at and not compared:
                    compared = True
                    if await self._replaced(place, at):
                        at = await self._logs[place[0]].start(place[1])
                        for known in (self._next, self._handled, self._times):
                            known.pop(place, None)
                if raw.offset > at:
                    if rest:  # what comes before it in the partition
                        yield rest
                        rest = []
                    reading = self._logs[place[0]].read(place[1], at, raw.offset)
                    async with aclosing(reading):
                        async for left_out in reading:
                            yield left_out
                if raw.offset >= at:
                    rest.append(raw)
                    at = raw.offset + 1
        if rest:
            yield rest

    async def _begin(self, place: Place) -> int:
        log = self._logs[place[0]]
        committed = await log.committed(place[1])
        if committed is None or await log.ends_before(place[1], committed):
            committed = await log.start(place[1])
        return self._next.setdefault(place, committed)

    async def _replaced(self, place: Place, at: int) -> bool:
        """Whether the log is another one than what was read up to `at`."""
        log = self._logs[place[0]]
        if self._handled.get(place) == at:
            return await log.replaced(place[1], at - 1, self._times[place])
        return await log.ends_before(place[1], at)

    def done(self, records: Iterable[Raw]) -> None:
        """These are handled, after all that `parts` gave before."""
        for raw in records:
            place = raw.topic, raw.partition
            behind = raw.offset + 1
            self._next[place] = max(self._next.get(place, 0), behind)
            if behind > self._handled.get(place, 0):
                self._handled[place], self._times[place] = behind, raw.timestamp

    def install(self, consumer: Any) -> None:
        """Makes Faust's consumer commit what is handled, nothing else, and drop no record."""

        def new_offset(tp: Any) -> int | None:
            consumer._acked[tp].clear()  # noqa: SLF001 - there is no other way in
            consumer._acked_index[tp].clear()  # noqa: SLF001
            return self.handled((tp.topic, tp.partition))

        consumer._new_offset = new_offset  # noqa: SLF001
        consumer._read_offset = _Unread()  # noqa: SLF001


class _Unread(dict[Any, Any]):
    """Faust drops records below the offset that it has read last: here, none was read."""

    def __getitem__(self, _: Any) -> None:
        return None
