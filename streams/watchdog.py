"""A worker that is alive and reads nothing is worse than a dead one: nobody restarts it.

Consumers can stop without an error, after a rebalance or a refused join. The sign is lag without
progress; an idle topic is none. A batch in hand does not end the process, since its own waits are
bounded, but it does not count as progress either: `/healthz` fails all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from streams import metrics
from streams.topic_log import Raw, TopicLog

log = logging.getLogger(__name__)

EVERY: Final = 5.0


class StalledError(Exception):
    """The worker must be restarted; the text says what it waited for in vain."""


class Watchdog:
    """Watches one consumer. Durations are seconds.

    `stall`: so long without progress, lag is a stall; longer than any outage is waited for. `join`:
    so long may the group take to give an assignment. `allowed_lag`: a worker further behind than
    that is an alarm. `clock` never goes back; `wall` gives Unix seconds.
    """

    def __init__(
        self,
        topic_log: TopicLog,
        *,
        join: float,
        stall: float,
        allowed_lag: float,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._log = topic_log
        self._join = join
        self._stall = stall
        self._allowed = allowed_lag
        self._every = min(every, stall / 4)
        self._clock = clock
        self._wall = wall
        self._partitions: Sequence[int] | None = None
        self._next: dict[int, int] = {}
        self._handled: float | None = None
        self._since = self._looked = clock()
        self._lag = 0
        self._busy = False
        self._late = False

    def assign(self, partitions: Sequence[int] | None) -> None:
        """What the consumer owns; None while it belongs to no group."""
        self._partitions = partitions
        self._since = self._clock()
        self._next = {}
        self._handled = None
        self._lag = 0
        metrics.put("partitions_owned", len(partitions or ()))
        if partitions is not None:
            metrics.count("rebalances")

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """A batch is in hand."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._since = self._clock()

    def done(self, records: Iterable[Raw]) -> None:
        """These are handled and acknowledged."""
        for raw in records:
            self._next[raw.partition] = max(self._next.get(raw.partition, 0), raw.offset + 1)
            self._handled = raw.timestamp / 1000

    def problems(self) -> list[str]:
        """What is wrong with the consumer, a sentence each."""
        now = self._clock()
        quiet, unseen = now - self._since, now - self._looked
        found = []
        if self._partitions is None and quiet > self._join:
            found.append(f"the consumer group gave no assignment for {quiet:.0f} s")
        if self._lag and quiet > self._stall:
            found.append(f"{self._lag} records wait and none was handled for {quiet:.0f} s")
        if unseen > self._stall:
            found.append(f"Kafka did not tell the end of the topic for {unseen:.0f} s")
        return found

    async def follow(self) -> None:
        """Looks until cancelled. Raises StalledError."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> None:
        """Measures the lag. Raises StalledError when the consumer has stopped."""
        partitions = self._partitions
        if partitions is not None:
            behind = await self._behind(partitions)
            if partitions is not self._partitions:
                return  # it changed meanwhile
            await self._compare(behind)
            waiting = [max(0, count) for count in behind.values()]
            self._lag = sum(waiting)
            metrics.put("records_behind", self._lag)
            metrics.put("records_behind_worst", max(waiting, default=0))
            self._tell_delay()
            if not self._lag and not self._busy:
                self._since = self._clock()
        self._looked = self._clock()
        problems = self.problems()
        if problems and not self._busy:
            raise StalledError("; ".join(problems))

    def _tell_delay(self) -> None:
        """How old the record handled last is; beyond what is allowed, state expires unread."""
        waits = self._lag > 0 and self._handled is not None
        delay = max(0.0, self._wall() - (self._handled or 0.0)) if waits else 0.0
        metrics.put("seconds_behind", delay)
        late = delay > self._allowed
        metrics.put("behind_allowance", late)
        if late and not self._late:
            log.error(
                "%.0f s behind, more than AGENTTRUST_ALLOWED_LAG: state may expire before it is read",
                delay,
            )
        self._late = late

    async def _compare(self, behind: Mapping[int, int]) -> None:
        """Raises StalledError when a log ends before what was read of it: it was made anew, and the
        consumer would leave out whatever has an offset that it has seen.
        """
        for partition, count in behind.items():
            read = self._next.get(partition, 0)
            if count < 0 < read and await self._log.at(partition, read - 1) == "beyond":
                raise StalledError(f"partition {partition} has a new log: it ends before {read}")

    async def _behind(self, partitions: Sequence[int]) -> dict[int, int]:
        """By partition, how many records wait; below 0 when the log ends before what was read."""
        behind = {}
        for partition, end in (await self._log.ends(partitions)).items():
            read = self._next.get(partition)
            if read is None:
                read = await self._log.committed(partition)
                start = await self._log.start(partition)
                read = start if read is None else max(read, start)
            behind[partition] = end - read
        return behind
