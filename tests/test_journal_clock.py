from __future__ import annotations

import asyncio

from streams.journal_clock import JournalClock
from streams.topic_log import Raw

NOW = 1_800_000_000


def raw(partition: int, seconds: int) -> Raw:
    return Raw(partition, 0, seconds * 1000, b"")


class Log:
    """The last records of a topic; partition 3 is empty, of 4 the end is told too high."""

    def __init__(self) -> None:
        self.last = {0: raw(0, NOW - 50), 1: raw(1, NOW), 2: raw(2, NOW - 90)}

    async def ends(self, partitions):
        return {p: 0 if p == 3 else 8 for p in partitions}

    async def at(self, partition, offset):
        assert offset == 7
        return self.last.get(partition, "beyond")


def test_it_goes_by_the_records_seen_and_the_seconds_since():
    passed = [5.0]
    clock = JournalClock(lambda: passed[0])
    assert clock() == 0.0
    clock.saw(NOW * 1000)
    assert clock() == NOW
    passed[0] += 30
    assert clock() == NOW + 30
    clock.saw((NOW + 10) * 1000)  # an older one, read late
    assert clock() == NOW + 30
    clock.saw((NOW + 3600) * 1000)
    assert clock() == NOW + 3600


def test_a_process_whose_clock_is_wrong_goes_by_the_journal(monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW + 3600.0)
    clock = JournalClock()
    clock.saw(NOW * 1000)
    assert NOW <= clock() < NOW + 60


def test_it_is_set_by_the_last_records_and_by_those_that_are_handled():
    async def scenario():
        clock = JournalClock(lambda: 0.0)
        await clock.set_by(Log(), range(5))
        assert clock() == NOW
        seen = []

        async def handle(records):
            seen.append((clock(), records))
            return frozenset({1})

        records = [raw(1, NOW + 7), raw(1, NOW + 6)]
        assert await clock.reading(handle)(records) == frozenset({1})
        assert seen == [(NOW + 7, records)]

    asyncio.run(scenario())
