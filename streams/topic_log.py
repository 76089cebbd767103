"""Reading a topic beside its consumer group: checks at take-over, rebuilds, replays, lag.

Works on brokers that report end offsets too low or answer `not found` with offset 0, as the
embedded one does: an end is only believed when a read at that place stays empty as well.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final, Literal, Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    OffsetOutOfRangeError,
)

from streams.patience import patiently
from streams.settings import Settings

FAILURES: Final = (KafkaError, OSError, TimeoutError)
_WAIT: Final = 3.0
"""Seconds that a read of an existing record takes at most on a broker that answers at all."""


class Raw(msgspec.Struct, frozen=True, gc=False):
    """A record as Kafka has it; `timestamp` in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    value: bytes | None
    topic: str = ""
    """Where a consumer of several topics must know it."""


class TopicLog:
    """One topic's log, read by partition and offset. Use as `async with TopicLog(…) as log`.

    Reads one partition at a time; outages are waited for, then raised.
    """

    def __init__(self, settings: Settings, topic: str, group: str) -> None:
        self._settings = settings
        self._topic = topic
        self._group = group
        self._consumer: AIOKafkaConsumer | None = None
        self._admin = AIOKafkaAdminClient(**settings.kafka_args(), request_timeout_ms=30_000)

    async def __aenter__(self) -> Self:
        await patiently("Kafka", self._admin.start, FAILURES)
        self._ends = self._client()
        await patiently("Kafka", self._ends.start, FAILURES)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.stop()
        await self._admin.close()

    def _client(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self._settings.kafka_args(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=100,
        )

    async def committed(self, partition: int) -> int | None:
        """The next offset that the consumer group would read; None when it never committed."""
        place = TopicPartition(self._topic, partition)

        async def ask() -> int:
            found = await self._admin.list_consumer_group_offsets(self._group, partitions=[place])
            if place not in found:  # the client drops an error of the whole answer
                raise GroupCoordinatorNotAvailableError("no answer about the group")
            return int(found[place].offset)

        offset = await patiently("Kafka: committed offset", ask, FAILURES)
        return None if offset < 0 else offset

    async def start(self, partition: int) -> int:
        """The first offset that retention has left."""
        place = TopicPartition(self._topic, partition)

        async def ask() -> Any:
            return await self._ends.beginning_offsets([place])

        return int((await patiently("Kafka: start of the log", ask, FAILURES))[place])

    async def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """By partition, the offset after its last record; the embedded broker's may be too low."""
        places = [TopicPartition(self._topic, partition) for partition in partitions]

        async def ask() -> Any:
            return await self._ends.end_offsets(places)

        found = await patiently("Kafka: end of the log", ask, FAILURES)
        return {place.partition: int(offset) for place, offset in found.items()}

    async def since(self, partition: int, timestamp: int) -> int | None:
        """The first offset at or after a time (ms), or an earlier one; None when there is none."""
        found = await self._by_time(partition, timestamp)
        return None if found is None else int(found.offset)

    async def lacks(self, partition: int, timestamp: int) -> bool:
        """Whether all records are of another time (ms) than this one, all that follow it later: it
        was removed, or the log is another one. One request, unlike `at`."""
        found = await self._by_time(partition, timestamp)
        return found is None or found.timestamp > timestamp

    async def _by_time(self, partition: int, timestamp: int) -> Any:
        """Offset and time of the first record at or after a time; None when there is none."""
        place = TopicPartition(self._topic, partition)

        async def ask() -> Any:
            return await self._ends.offsets_for_times({place: max(timestamp, 0)})

        found = (await patiently("Kafka: offset by time", ask, FAILURES))[place]
        return None if found is None or found.timestamp < 0 else found

    async def at(self, partition: int, offset: int) -> Raw | Literal["before", "beyond"]:
        """The record at an offset, or on which side of the log the offset lies."""
        async with aclosing(self.read(partition, offset, offset + 1)) as reading:
            async for records in reading:
                return records[0]
        if offset < await self.start(partition):
            return "before"
        return "beyond"

    async def ends_before(self, partition: int, offset: int) -> bool:
        """Whether the record before an offset lies beyond the log's end: a log that has been read up
        to there was made anew. One request in the usual case, where it does not."""
        if offset <= (await self.ends([partition])).get(partition, 0):
            return False
        return offset > 0 and await self.at(partition, offset - 1) == "beyond"

    async def replaced(self, partition: int, offset: int, timestamp: int) -> bool:
        """Whether another log stands where one held a record of this time (ms) at this offset. One
        request in the usual case, where it does not; what retention has removed says nothing."""
        if not await self.lacks(partition, timestamp):
            return False
        found = await self.at(partition, offset)
        return found.timestamp != timestamp if isinstance(found, Raw) else found == "beyond"

    async def read(
        self, partition: int, first: int, stop: int, *, most: int = 16
    ) -> AsyncGenerator[list[Raw], None]:
        """Records `first` to `stop` - 1 in order, up to `most` at a time.

        Ends early at the end of the log. An offset outside the log yields nothing.
        """
        place = TopicPartition(self._topic, partition)
        consumer = self._client()
        await patiently("Kafka", consumer.start, FAILURES)
        try:
            consumer.assign([place])
            consumer.seek(place, first)
            position = first
            while position < stop:

                async def fetch() -> Any:
                    try:
                        wait = int(_WAIT * 1000)
                        found = await consumer.getmany(place, timeout_ms=wait, max_records=most)
                    except OffsetOutOfRangeError:
                        return None
                    return found.get(place, [])

                found = await patiently("Kafka: records", fetch, FAILURES)
                if found is None:
                    return
                if not found and (await self.ends([partition]))[partition] <= position:
                    return
                records = [
                    Raw(partition, r.offset, r.timestamp, r.value, self._topic)
                    for r in found
                    if first <= r.offset < stop
                ]
                if found:
                    position = found[-1].offset + 1
                if records:
                    yield records
        finally:
            await consumer.stop()
