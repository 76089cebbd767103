"""Which part of the journal is meant: a range by time or offset, one partition, one trajectory."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime

import msgspec
from aiokafka import TopicPartition

from monitor.errors import plain
from streams import topics
from streams.errors import UserError
from streams.journal import is_trajectory, partition_of
from streams.refold import Extent, extents, journal_records
from streams.settings import Settings
from streams.topic_log import TopicLog


class Bound(msgspec.Struct, frozen=True):
    """An end of a range: an offset of one partition, or a time in milliseconds."""

    offset: int | None = None
    time: int | None = None


class Range(msgspec.Struct, frozen=True):
    """Records `first` to `stop` - 1 of a partition of which the log holds `log`."""

    partition: int
    first: int
    stop: int
    log: Extent


class Asked(msgspec.Struct, frozen=True):
    """What the command line asks for."""

    begin: Bound | None = None
    stop: Bound | None = None
    trajectory: str | None = None
    partition: int | None = None


def bound(text: str) -> Bound:
    """An offset, or a time as RFC 3339 writes it (UTC unless it says otherwise)."""
    if text.isascii() and text.isdigit():
        return Bound(offset=int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(
            f"{plain(text, 40)!r} is neither an offset nor a time such as 2026-01-31T08:00:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return Bound(time=round(moment.timestamp() * 1000))


def asked(
    begin: str | None, stop: str | None, trajectory: str | None, partition: int | None, count: int
) -> Asked:
    """The command line, checked. `count` is the number of partitions. Raises UserError."""
    if trajectory is not None:
        if not is_trajectory(trajectory):
            raise UserError(
                f"--trajectory {plain(trajectory, 40)!r} is not a trace id of 32 lower-case hex"
                " digits; agenttrust show finds one by its beginning"
            )
        home = partition_of(trajectory, count)
        if partition not in (None, home):
            raise UserError(f"trajectory {trajectory} is in partition {home}, not {partition}")
        partition = home
    if partition is not None and not 0 <= partition < count:
        raise UserError(f"--partition {partition}: allowed are 0 to {count - 1}")
    ends = [None if text is None else bound(text) for text in (begin, stop)]
    if partition is None and any(end is not None and end.offset is not None for end in ends):
        raise UserError("an offset names a place in one partition; add --partition")
    return Asked(ends[0], ends[1], trajectory, partition)


async def ranges(settings: Settings, log: TopicLog, wanted: Asked) -> list[Range]:
    """What is asked for, as offsets. Raises UserError for a range that ends before it begins."""
    journal = topics.plan(settings).journal.name
    numbers = range(settings.partitions) if wanted.partition is None else [wanted.partition]
    held = await extents(settings, [TopicPartition(journal, number) for number in numbers])
    found = []
    for (_, number), extent in sorted(held.items()):
        first = await _offset(log, number, wanted.begin, extent, extent.start)
        stop = await _offset(log, number, wanted.stop, extent, extent.end)
        if stop < first:
            raise UserError("the range ends before it begins")
        found.append(Range(number, first, stop, extent))
    return found


async def _offset(
    log: TopicLog, partition: int, end: Bound | None, extent: Extent, default: int
) -> int:
    if end is None:
        return default
    if end.offset is not None:
        return min(max(end.offset, extent.start), extent.end)
    assert end.time is not None
    near = await log.since(partition, end.time)
    if near is None or extent.start == extent.end:
        return extent.end
    near = max(near, extent.start)
    async with aclosing(journal_records(log, partition, near, extent.end)) as reading:
        async for raws in reading:
            for raw in raws:
                if raw.timestamp >= end.time:
                    return raw.offset
    return extent.end
