"""A worker that is alive and reads nothing is worse than a dead one: nobody restarts it.

Consumers can stop without an error, after a rebalance or a refused join. The sign is lag without
progress; an idle topic is none, and neither is a batch in hand, whose own waits are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from streams.topic_log import TopicLog

log = logging.getLogger(__name__)

STALL: Final = 150.0
"""Seconds without progress after which lag is a stall; longer than any outage is waited for."""
_EVERY: Final = 10.0


class StalledError(Exception):
    """The worker must be restarted; the text says what it waited for in vain."""


class Watchdog:
    """Watches one consumer. Times are seconds of `clock`, which never goes back."""

    def __init__(
        self,
        topic_log: TopicLog,
        *,
        join: float,
        stall: float = STALL,
        every: float = _EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = topic_log
        self._join = join
        self._stall = stall
        self._every = every
        self._clock = clock
        self._partitions: Sequence[int] | None = None
        self._since = clock()
        self._busy = False

    def assign(self, partitions: Sequence[int] | None) -> None:
        """What the consumer owns; None while it belongs to no group."""
        self._partitions = partitions
        self._since = self._clock()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """A batch is in hand."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
            self._since = self._clock()

    async def follow(self) -> None:
        """Looks until cancelled. Raises StalledError."""
        while True:
            await asyncio.sleep(self._every)
            await self.look()

    async def look(self) -> None:
        """Raises StalledError when the consumer has stopped."""
        quiet = self._clock() - self._since
        if self._partitions is None:
            if quiet > self._join:
                raise StalledError(f"the consumer group gave no assignment for {quiet:.0f} s")
        elif not self._busy and quiet > self._stall:
            lag = await self._lag(self._partitions)
            if lag:
                raise StalledError(f"{lag} records wait and none was read for {quiet:.0f} s")
            self._since = self._clock()

    async def _lag(self, partitions: Sequence[int]) -> int:
        total = 0
        for partition, end in (await self._log.ends(partitions)).items():
            read = await self._log.committed(partition)
            if read is None:
                read = await self._log.start(partition)
            total += max(0, end - read)
        return total
