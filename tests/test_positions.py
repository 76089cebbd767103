"""What may be committed: what is handled, without a hole, whatever the consumer hands over."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from faust.types import TP
from hypothesis import given
from hypothesis import strategies as st

from streams.positions import Positions
from streams.topic_log import Raw, TopicLog

TOPIC = "spans"


class Log:
    """Offsets of one partition, some of them without a record, as transactions leave them."""

    ends_before = TopicLog.ends_before
    replaced = TopicLog.replaced

    def __init__(self, offsets, committed=None, time=0):
        """`time`: when all of its records were written."""
        self.offsets = sorted(offsets)
        self.commit = committed
        self.time = time

    async def committed(self, partition):
        return self.commit

    async def start(self, partition):
        return self.offsets[0] if self.offsets else 0

    async def ends(self, partitions):
        return dict.fromkeys(partitions, self.offsets[-1] + 1 if self.offsets else 0)

    async def at(self, partition, offset):
        if not self.offsets or offset > self.offsets[-1]:
            return "beyond"
        return raw(next(o for o in self.offsets if o >= offset), time=self.time)

    async def lacks(self, partition, timestamp):
        return not self.offsets or self.time > timestamp

    async def read(self, partition, first, stop):
        found = [raw(o, time=self.time) for o in self.offsets if first <= o < stop]
        for n in range(0, len(found), 2):
            yield found[n : n + 2]


def raw(offset, partition=0, topic=TOPIC, time=0):
    return Raw(partition, offset, time, b"", topic)


def handle(positions, *offsets, topic=TOPIC, time=0):
    """Hands a batch over as a worker does; the offsets that were handled, in order."""

    async def run():
        handled = []
        async for part in positions.parts([raw(o, topic=topic, time=time) for o in offsets]):
            handled += [one.offset for one in part]
            positions.done(part)
        return handled

    return asyncio.run(run())


def test_a_batch_goes_on_at_the_commit():
    positions = Positions({TOPIC: Log(range(10), committed=4)})
    assert handle(positions, 3, 4, 5) == [4, 5]
    assert positions.handled((TOPIC, 0)) == 6
    assert handle(positions, 5, 6) == [6]


def test_what_was_left_out_is_read_beside_the_group():
    positions = Positions({TOPIC: Log(range(10))})
    assert handle(positions, 1, 4) == [0, 1, 2, 3, 4]
    assert handle(positions, 9) == [5, 6, 7, 8, 9]


def test_what_is_not_handled_is_not_committed():
    positions = Positions({TOPIC: Log(range(10), committed=2)})

    async def run():
        async for part in positions.parts([raw(2), raw(3)]):
            assert part  # and the worker loses the partition meanwhile

    asyncio.run(run())
    assert positions.handled((TOPIC, 0)) is None
    assert handle(positions, 4) == [2, 3, 4]


def test_partitions_and_topics_have_positions_of_their_own():
    logs = {TOPIC: Log(range(5)), "again": Log(range(5), committed=3)}
    positions = Positions(logs)
    assert handle(positions, 0) == [0]
    assert handle(positions, 3, topic="again") == [3]
    assert positions.handled((TOPIC, 0)) == 1
    assert positions.handled(("again", 0)) == 4
    assert positions.handled(("again", 1)) is None


def test_a_log_made_anew_is_read_from_its_start():
    log = Log(range(10), committed=0)
    positions = Positions({TOPIC: log})
    assert handle(positions, *range(10)) == list(range(10))
    log.offsets, log.time = [0, 1, 2], 7
    assert handle(positions, 0, 1, time=7) == [0, 1]
    assert positions.handled((TOPIC, 0)) == 2
    positions.forget()
    log.commit = 10  # of the old one
    assert handle(positions, 2, time=7) == [0, 1, 2]


def test_a_log_made_anew_that_has_grown_past_what_was_read_is_read_from_its_start():
    log = Log(range(3), committed=0)
    positions = Positions({TOPIC: log})
    assert handle(positions, 0, 1, 2) == [0, 1, 2]
    log.offsets, log.time = list(range(10)), 7
    assert handle(positions, 1, 2, time=7) == [0, 1, 2]
    assert handle(positions, 1, 3, time=7) == [3]


def test_after_a_rebalance_the_group_s_commit_counts():
    log = Log(range(20), committed=0)
    positions = Positions({TOPIC: log})
    handle(positions, 0, 1)
    positions.forget()
    log.commit = 10  # another worker had the partition
    assert handle(positions, 2, 9, 10) == [10]


@given(
    st.sets(st.integers(0, 30), min_size=1),
    st.lists(st.lists(st.integers(0, 30), max_size=5), max_size=8),
)
def test_whatever_is_handed_over_every_record_is_handled_once_and_in_order(offsets, batches):
    positions = Positions({TOPIC: Log(offsets)})
    seen = []
    for batch in batches:
        seen += handle(positions, *(o for o in batch if o in offsets))
    assert seen == [o for o in sorted(offsets) if o <= max(seen, default=-1)]
    assert positions.handled((TOPIC, 0)) == (seen[-1] + 1 if seen else None)


def test_faust_commits_what_is_handled_and_nothing_that_it_acknowledged_by_itself():
    place = TP(TOPIC, 0)
    consumer = SimpleNamespace(_acked={place: [5, 6, 7]}, _acked_index={place: {5, 6, 7}})
    positions = Positions({TOPIC: Log(range(10))})
    positions.install(consumer)
    assert consumer._new_offset(place) is None
    handle(positions, 0, 1)
    assert consumer._new_offset(place) == 2
    assert consumer._acked[place] == []


def test_faust_drops_nothing_below_what_it_has_read():
    """A group's commit outlives its topic, and what is written to the new one begins at 0 again."""
    consumer = SimpleNamespace(_acked={}, _acked_index={})
    Positions({TOPIC: Log(())}).install(consumer)
    place = TP(TOPIC, 0)
    consumer._read_offset.update({place: 5})
    consumer._read_offset[place] = 6
    assert consumer._read_offset[place] is None
    del consumer._read_offset[place]
