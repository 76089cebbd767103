"""Batches of a stream: everything, in order, handed over when it is there."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.take import batches

SOON, NEVER = 0.01, 3600.0


class Stream:
    """Gives events in groups, one group a turn of the loop; then ends, fails, or waits for ever."""

    enable_acks = True

    def __init__(self, groups, end=None):
        self.groups = groups
        self.end = end

    async def events(self):
        for group in self.groups:
            for event in group:
                yield event
            await asyncio.sleep(0)
        if isinstance(self.end, Exception):
            raise self.end
        if self.end is not None:
            await self.end.wait()


def taken(stream, most, within):
    async def run():
        return [batch async for batch in batches(stream, most, within)]

    return asyncio.run(run())


@given(groups=st.lists(st.lists(st.none(), max_size=9), max_size=9), most=st.integers(1, 7))
def test_every_event_is_handed_over_once_and_in_order(groups, most):
    numbers = iter(range(1000))
    stream = Stream([[next(numbers) for _ in group] for group in groups])
    found = taken(stream, most, 0.0005)
    assert [n for batch in found for n in batch] == list(range(sum(map(len, groups))))
    assert all(0 < len(batch) <= most for batch in found)
    assert stream.enable_acks is False  # they are acknowledged by who handles them


def test_a_full_batch_is_not_waited_for():
    assert taken(Stream([range(6)]), 3, NEVER) == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_that_does_not_fill_is_handed_over_after_its_time():
    async def run():
        taking = batches(Stream([[1, 2]], end=asyncio.Event()), 10, SOON)
        first = await asyncio.wait_for(anext(taking), 10)
        await taking.aclose()
        return first

    assert asyncio.run(run()) == [1, 2]


def test_what_arrives_while_a_batch_is_handled_makes_up_the_next():
    async def run():
        handling, arrived = asyncio.Event(), asyncio.Event()

        class Waits(Stream):
            async def events(self):
                yield 0
                await handling.wait()
                for n in (1, 2, 3):
                    yield n
                arrived.set()
                await asyncio.Event().wait()

        taking = batches(Waits([]), 4, 0)
        found = [await anext(taking)]
        handling.set()
        await asyncio.wait_for(arrived.wait(), 10)
        found.append(await anext(taking))
        await taking.aclose()
        return found

    assert asyncio.run(run()) == [[0], [1, 2, 3]]


def test_a_stream_that_fails_fails_after_what_it_gave():
    async def run():
        taking = batches(Stream([[1]], end=OSError("gone")), 10, SOON)
        assert await anext(taking) == [1]
        with pytest.raises(OSError, match="gone"):
            await anext(taking)

    asyncio.run(run())


def test_leaving_ends_the_reading():
    async def run():
        stream = Stream([[1]], end=asyncio.Event())
        taking = batches(stream, 10, SOON)
        await anext(taking)
        await taking.aclose()
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(run()) == []
