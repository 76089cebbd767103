"""Batches of a stream: everything, in order, handed over when it is there."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.take import hand_over

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


class Hand:
    """Notes the batches that it is given."""

    def __init__(self):
        self.batches = []

    async def __call__(self, batch):
        self.batches.append(batch)
        await asyncio.sleep(0)


def handed(stream, **how):
    hand = Hand()
    asyncio.run(hand_over(stream, hand, **how))
    return hand.batches


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


@given(
    groups=st.lists(st.lists(st.none(), max_size=9), max_size=9),
    most=st.integers(1, 7),
    lanes=st.integers(1, 4),
)
def test_every_event_is_handed_over_once_and_in_order_of_its_lane(groups, most, lanes):
    numbers = iter(range(1000))
    stream = Stream([[next(numbers) for _ in group] for group in groups])
    batches = handed(stream, most=most, within=0.0005, lane=lambda n: n % lanes)
    found = defaultdict(list)
    for batch in batches:
        assert 0 < len(batch) <= most
        assert len({n % lanes for n in batch}) == 1
        found[batch[0] % lanes] += batch
    for lane, given_ in found.items():
        assert given_ == sorted(given_)
        assert {n % lanes for n in given_} == {lane}
    assert sum(map(len, found.values())) == sum(map(len, groups))
    assert stream.enable_acks is False  # they are acknowledged by who handles them


def test_a_full_batch_is_not_waited_for():
    assert handed(Stream([range(6)]), most=3, within=NEVER) == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_that_does_not_fill_is_handed_over_after_its_time():
    async def run():
        hand = Hand()
        stream = Stream([[1, 2]], end=asyncio.Event())
        taking = asyncio.ensure_future(hand_over(stream, hand, most=10, within=SOON))
        await until(lambda: hand.batches)
        taking.cancel()
        return hand.batches

    assert asyncio.run(run()) == [[1, 2]]


def test_what_arrives_while_a_batch_is_handled_makes_up_the_next():
    async def run():
        handling, arrived = asyncio.Event(), asyncio.Event()
        found = []

        class Waits(Stream):
            async def events(self):
                yield 0
                await handling.wait()
                for n in (1, 2, 3):
                    yield n
                arrived.set()

        async def hand(batch):
            found.append(batch)
            handling.set()
            await arrived.wait()

        await asyncio.wait_for(hand_over(Waits([]), hand, most=4, within=0), 10)
        return found

    assert asyncio.run(run()) == [[0], [1, 2, 3]]


def test_a_lane_that_is_held_up_holds_up_no_other():
    async def run():
        free = asyncio.Event()
        found = []

        async def hand(batch):
            if batch[0] == "held":
                await free.wait()
            found.append(batch)
            if len(found) == 3:
                free.set()

        stream = Stream([["held"], ["a"], ["held"], ["b"], ["c"]])
        await asyncio.wait_for(hand_over(stream, hand, most=8, within=0, lane=str), 10)
        return found

    assert asyncio.run(run()) == [["a"], ["b"], ["c"], ["held"], ["held"]]


def test_no_more_is_held_than_two_batches_of_the_largest_size():
    """Whoever takes nothing out takes nothing in: the broker keeps the rest."""

    async def run():
        read = []

        class Counts(Stream):
            async def events(self):
                for n in range(100):
                    read.append(n)
                    yield n

        hold = asyncio.Event()

        async def hand(batch):
            await hold.wait()

        taking = asyncio.ensure_future(
            hand_over(Counts([]), hand, most=4, within=0, lane=lambda n: n % 3)
        )
        for _ in range(200):
            await asyncio.sleep(0)
        held = len(read)
        hold.set()
        await asyncio.wait_for(taking, 10)
        return held, len(read)

    assert asyncio.run(run()) == (9, 100)  # the ninth waits for room


def test_a_stream_that_fails_ends_it_with_what_it_raised():
    with pytest.raises(OSError, match="gone"):
        handed(Stream([[1]], end=OSError("gone")), most=10, within=SOON)


def test_a_batch_that_fails_ends_it_with_what_it_raised():
    async def hand(batch):
        if batch == [2]:
            raise OSError("gone")

    stream = Stream([[1, 2, 3]], end=asyncio.Event())
    with pytest.raises(OSError, match="gone"):
        asyncio.run(hand_over(stream, hand, most=10, within=0, lane=int))


def test_a_lane_whose_cancellation_is_swallowed_ends_all_the_same():
    async def run():
        stuck = asyncio.Event()

        async def hand(batch):
            if batch == ["stuck"]:
                stuck.set()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return
            await stuck.wait()
            raise OSError("gone")

        stream = Stream([["stuck"], ["fails"]], end=asyncio.Event())
        async with asyncio.timeout(10):
            await hand_over(stream, hand, most=10, within=0, lane=str)

    with pytest.raises(OSError, match="gone"):
        asyncio.run(run())


def test_leaving_ends_the_reading():
    async def run():
        hand = Hand()
        stream = Stream([[1]], end=asyncio.Event())
        taking = asyncio.ensure_future(hand_over(stream, hand, most=10, within=0))
        await until(lambda: hand.batches)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(run()) == []
