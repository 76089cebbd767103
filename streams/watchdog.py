"""A worker that is alive and reads nothing is worse than a dead one: nobody restarts it.

Consumers can stop without an error, after a rebalance or a refused join. The sign is lag without
progress; an idle topic is none. Each topic is looked at by itself: a busy one hides no other. A batch
in hand does not end the process, since its own waits are bounded, but it does not count as progress
either: `/healthz` fails all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from streams import metrics
from streams.positions import Place
from streams.topic_log import Raw, TopicLog

log = logging.getLogger(__name__)

EVERY: Final = 5.0


class StalledError(Exception):
    """The worker must be restarted; the text says what it waited for in vain."""


class Watchdog:
    """Watches one consumer. `logs` reads its topics, by name. Durations are seconds.

    `stall`: so long without progress, lag is a stall; longer than any outage is waited for. `join`:
    so long may the group take to give an assignment. `allowed_lag`: a worker further behind than
    that is an alarm. `clock` never goes back; `wall` gives Unix seconds.
    """

    def __init__(
        self,
        logs: Mapping[str, TopicLog],
        *,
        join: float,
        stall: float,
        allowed_lag: float,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._logs = logs
        self._join = join
        self._stall = stall
        self._allowed = allowed_lag
        self._every = min(every, stall / 4)
        self._clock = clock
        self._wall = wall
        self._places: Sequence[Place] | None = None
        self._next: dict[Place, int] = {}
        self._handled: dict[str, float] = {}
        self._since = dict.fromkeys(logs, clock())
        self._looked = clock()
        self._lag = dict.fromkeys(logs, 0)
        self._busy = 0
        self._late = False

    def assign(self, places: Sequence[Place] | None) -> None:
        """What the consumer owns; None while it belongs to no group."""
        self._places = places
        self._since = dict.fromkeys(self._logs, self._clock())
        self._next = {}
        self._handled = {}
        self._lag = dict.fromkeys(self._logs, 0)
        metrics.put("partitions_owned", len(places or ()))
        if places is not None:
            metrics.count("rebalances")

    @contextlib.contextmanager
    def batch(self, topics: Iterable[str]) -> Iterator[None]:
        """A batch of records of these topics is in hand."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._since |= dict.fromkeys(topics, self._clock())

    def done(self, records: Iterable[Raw]) -> None:
        """These are handled and acknowledged."""
        for raw in records:
            place = raw.topic, raw.partition
            self._next[place] = max(self._next.get(place, 0), raw.offset + 1)
            self._handled[raw.topic] = raw.timestamp / 1000

    def problems(self) -> list[str]:
        """What is wrong with the consumer, a sentence each."""
        now = self._clock()
        found = []
        if self._places is None and (quiet := now - min(self._since.values())) > self._join:
            found.append(f"the consumer group gave no assignment for {quiet:.0f} s")
        for topic, lag in self._lag.items():
            if lag and (quiet := now - self._since[topic]) > self._stall:
                found.append(f"{topic}: {lag} records wait and none was handled for {quiet:.0f} s")
        if (unseen := now - self._looked) > self._stall:
            found.append(f"Kafka did not tell the end of its topics for {unseen:.0f} s")
        return found

    async def follow(self) -> None:
        """Looks until cancelled. Raises StalledError."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> None:
        """Measures the lag. Raises StalledError when the consumer has stopped."""
        places = self._places
        if places is not None:
            behind = await self._behind(places)
            if places is not self._places:
                return  # it changed meanwhile
            await self._compare(behind)
            self._lag = dict.fromkeys(self._logs, 0)
            for (topic, _), count in behind.items():
                self._lag[topic] += max(0, count)
            metrics.put("records_behind", sum(self._lag.values()))
            metrics.put("records_behind_worst", max([0, *behind.values()]))
            self._tell_delay()
            if not self._busy:
                idle = [topic for topic, lag in self._lag.items() if not lag]
                self._since |= dict.fromkeys(idle, self._clock())
        self._looked = self._clock()
        problems = self.problems()
        if problems and not self._busy:
            raise StalledError("; ".join(problems))

    def _tell_delay(self) -> None:
        """How old the record handled last is; beyond what is allowed, state expires unread."""
        handled = [self._handled[t] for t, lag in self._lag.items() if lag and t in self._handled]
        delay = max(0.0, self._wall() - min(handled)) if handled else 0.0
        metrics.put("seconds_behind", delay)
        late = delay > self._allowed
        metrics.put("behind_allowance", late)
        if late and not self._late:
            log.error(
                "%.0f s behind, more than AGENTTRUST_ALLOWED_LAG: state may expire before it is read",
                delay,
            )
        self._late = late

    async def _compare(self, behind: Mapping[Place, int]) -> None:
        """Raises StalledError when a log ends before what was read of it: it was made anew, and the
        consumer would leave out whatever has an offset that it has seen.
        """
        for place, count in behind.items():
            topic, partition = place
            read = self._next.get(place, 0)
            if count < 0 and await self._logs[topic].ends_before(partition, read):
                raise StalledError(
                    f"partition {partition} of {topic} has a new log: it ends before {read}"
                )

    async def _behind(self, places: Sequence[Place]) -> dict[Place, int]:
        """By partition, how many records wait; below 0 when the log ends before what was read."""
        behind = {}
        for topic, topic_log in self._logs.items():
            mine = [partition for name, partition in places if name == topic]
            for partition, end in (await topic_log.ends(mine)).items():
                read = self._next.get((topic, partition))
                if read is None:
                    read = await topic_log.committed(partition)
                    start = await topic_log.start(partition)
                    read = start if read is None else max(read, start)
                behind[topic, partition] = end - read
        return behind
