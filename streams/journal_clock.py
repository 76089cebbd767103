"""What time it is in the journal, whose records carry the brokers' time.

A run falls silent or settles by the time of its records, so a worker that compared that with its own
clock would close runs that live when its clock is ahead, and none when it is behind. This clock takes
the time of the records that it sees, and from there on counts the seconds that pass. It is never ahead
of the brokers; after a start in silence it is behind, since nothing tells how long the silence has
been: what is due then waits once more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from streams.topic_log import Raw, TopicLog

T = TypeVar("T")
_AT_ONCE: Final = 8
"""Partitions whose last record is read at a time."""


class JournalClock:
    """Unix seconds by the records seen; 0 before the first. Never goes back. `monotonic` gives seconds
    that pass."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ahead: float | None = None

    def __call__(self) -> float:
        return 0.0 if self._ahead is None else self._monotonic() + self._ahead

    def saw(self, timestamp: int) -> None:
        """A record of this time (ms) was read: that moment has passed."""
        ahead = timestamp / 1000 - self._monotonic()
        if self._ahead is None or ahead > self._ahead:
            self._ahead = ahead

    def reading(
        self, handle: Callable[[list[Raw]], Awaitable[T]]
    ) -> Callable[[list[Raw]], Awaitable[T]]:
        """`handle`, with the clock set by the records that it is given."""

        async def seen(records: list[Raw]) -> T:
            self.saw(max(raw.timestamp for raw in records))
            return await handle(records)

        return seen

    async def set_by(self, log: TopicLog, partitions: Iterable[int]) -> None:
        """Sees the last record of each of these partitions."""
        few = asyncio.Semaphore(_AT_ONCE)

        async def last(partition: int, end: int) -> None:
            async with few:
                if end > 0 and isinstance(found := await log.at(partition, end - 1), Raw):
                    self.saw(found.timestamp)

        ends = await log.ends(partitions)
        await asyncio.gather(*(last(partition, end) for partition, end in ends.items()))
