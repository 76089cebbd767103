from __future__ import annotations

import asyncio

import pytest

from streams import metrics
from streams.topic_log import Raw, TopicLog
from streams.watchdog import StalledError, Watchdog


class Log:
    ends_before = TopicLog.ends_before

    def __init__(self, end, read=None):
        self.end = end
        self.read = read

    async def ends(self, partitions):
        return dict.fromkeys(partitions, self.end)

    async def committed(self, partition):
        return self.read

    async def start(self, partition):
        return 3

    async def at(self, partition, offset):
        return "beyond" if offset >= self.real_end else record(offset)

    @property
    def real_end(self):
        return self.end


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def watchdog(log, **more):
    clock = Clock()
    wall = lambda: 1_000_000 + clock.now  # noqa: E731
    logs = {"spans": log} | more
    made = Watchdog(logs, join=60, stall=100, allowed_lag=300, clock=clock, wall=wall)
    return made, clock


def record(offset, timestamp=1_000_000_000, topic="spans"):
    return Raw(0, offset, timestamp, b"", topic)


def own(*partitions, topic="spans"):
    return [(topic, partition) for partition in partitions]


def test_a_consumer_that_stopped_is_noticed():
    dog, clock = watchdog(Log(end=10, read=4))
    dog.assign(own(0, 1))
    clock.now = 100
    asyncio.run(dog.look())
    clock.now = 101
    with pytest.raises(StalledError, match="12 records wait"):
        asyncio.run(dog.look())


@pytest.mark.parametrize("log", [Log(end=10, read=10), Log(end=3), Log(end=2, read=10)])
def test_an_idle_topic_is_no_stall(log):
    dog, clock = watchdog(log)
    dog.assign(own(0))
    for clock.now in range(0, 1000, 50):
        asyncio.run(dog.look())


def test_progress_and_a_batch_in_hand_are_no_stall():
    dog, clock = watchdog(Log(end=10, read=4))
    dog.assign(own(0))
    with dog.batch(["spans"]):
        clock.now = 500
        asyncio.run(dog.look())
        assert dog.problems() == ["spans: 6 records wait and none was handled for 500 s"]
    assert dog.problems() == []
    clock.now = 600
    asyncio.run(dog.look())
    clock.now = 601
    with pytest.raises(StalledError):
        asyncio.run(dog.look())


def test_a_group_that_is_never_joined_is_noticed():
    dog, clock = watchdog(Log(end=0))
    clock.now = 60
    asyncio.run(dog.look())
    clock.now = 61
    with pytest.raises(StalledError, match="no assignment"):
        asyncio.run(dog.look())


def test_a_rebalance_starts_the_wait_anew():
    dog, clock = watchdog(Log(end=10, read=4))
    dog.assign(own(0))
    clock.now = 90
    dog.assign(None)
    clock.now = 150
    asyncio.run(dog.look())
    dog.assign([])
    clock.now = 1000
    asyncio.run(dog.look())


def test_lag_is_measured_against_what_is_handled_not_what_is_committed():
    dog, _ = watchdog(Log(end=10, read=4))
    dog.assign(own(0))
    asyncio.run(dog.look())
    assert metrics.value("records_behind") == 6
    dog.done([record(8), record(7)])
    asyncio.run(dog.look())
    assert metrics.value("records_behind") == 1
    dog.done([record(9)])
    asyncio.run(dog.look())
    assert metrics.value("records_behind") == 0


def test_a_worker_too_far_behind_is_an_alarm(caplog):
    dog, clock = watchdog(Log(end=10, read=4))
    dog.assign(own(0))
    dog.done([record(4)])
    clock.now = 50
    asyncio.run(dog.look())
    assert (metrics.value("seconds_behind"), metrics.value("behind_allowance")) == (50, 0)
    for clock.now in (90, 99):
        dog.done([record(5, timestamp=1_000_000_000 - 250_000)])
        asyncio.run(dog.look())
    assert metrics.value("behind_allowance") == 1
    assert caplog.text.count("AGENTTRUST_ALLOWED_LAG") == 1
    dog.done([record(9)])
    asyncio.run(dog.look())
    assert (metrics.value("seconds_behind"), metrics.value("behind_allowance")) == (0, 0)


def test_a_broker_that_no_longer_answers_is_a_problem():
    dog, clock = watchdog(Log(end=0))
    dog.assign(own(0))
    clock.now = 101
    assert dog.problems() == ["Kafka did not tell the end of its topics for 101 s"]


def test_a_log_that_ends_before_what_was_read_of_it_is_a_new_one():
    log = Log(end=10, read=4)
    dog, _ = watchdog(log)
    dog.assign(own(0))
    dog.done([record(9)])
    asyncio.run(dog.look())
    log.end = 3
    with pytest.raises(StalledError, match="partition 0 of spans has a new log: it ends before 10"):
        asyncio.run(dog.look())


def test_an_end_that_a_broker_reports_too_low_is_no_new_log(monkeypatch):
    monkeypatch.setattr(Log, "real_end", 10)
    log = Log(end=7, read=4)
    dog, _ = watchdog(log)
    dog.assign(own(0))
    dog.done([record(9)])
    asyncio.run(dog.look())


def test_a_busy_topic_hides_no_other_that_stands_still():
    dog, clock = watchdog(Log(end=10, read=4), logs=Log(end=5, read=3))
    dog.assign(own(0) + own(0, topic="logs"))
    for clock.now in (50, 100):
        with dog.batch(["spans"]):
            dog.done([record(5)])
        asyncio.run(dog.look())
    assert metrics.value("records_behind") == 6
    assert metrics.value("records_behind_worst") == 4
    clock.now = 101
    with pytest.raises(StalledError, match="logs: 2 records wait and none was handled for 101 s"):
        asyncio.run(dog.look())


def test_progress_in_one_topic_is_counted_for_it_alone():
    dog, clock = watchdog(Log(end=10, read=4), logs=Log(end=10, read=4))
    dog.assign(own(0) + own(0, topic="logs"))
    dog.done([record(9)])
    clock.now = 90
    with dog.batch(["logs"]):
        dog.done([record(6, topic="logs")])
    clock.now = 150
    asyncio.run(dog.look())
    assert metrics.value("records_behind") == 3


def test_a_new_log_of_any_topic_is_noticed():
    logs = Log(end=10, read=4)
    dog, _ = watchdog(Log(end=10, read=10), logs=logs)
    dog.assign(own(0) + own(0, topic="logs"))
    dog.done([record(9, topic="logs")])
    asyncio.run(dog.look())
    logs.end = 3
    with pytest.raises(StalledError, match="partition 0 of logs has a new log"):
        asyncio.run(dog.look())
