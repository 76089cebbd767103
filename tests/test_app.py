"""How a worker is set up: what it holds at once, and what it says of its own end."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import TopicPartition

from monitor.engine import Fenced, StoreBehind
from monitor.ports import StoreCorrupt
from streams import metrics, topics
from streams.app import TAKE, Worker, build, cut, end, take
from streams.dead_letters import NothingReadableError
from streams.health import Health
from streams.metrics import COUNTS
from streams.roles import _halt
from streams.settings import Settings
from streams.store import StoreUnsafe
from streams.topic_log import Raw, TopicLog
from streams.watchdog import StalledError

MB = 1024**2


@pytest.mark.parametrize(
    ("in_flight", "largest", "records"),
    [(256 * MB, MB, TAKE), (64 * MB, 256 * 1024, TAKE), (64 * MB, 4 * MB, 4), (4 * MB, 64 * MB, 1)],
)
def test_what_a_worker_holds_at_once_is_bounded_in_bytes(in_flight, largest, records):
    settings = Settings(in_flight=in_flight)
    assert take(settings, "ingest", largest) == records
    conf = build(settings, "ingest", largest).conf
    held = (2 * records + conf.stream_buffer_maxsize) * largest
    assert held <= max(in_flight, 4 * largest)  # one message of any size must go through
    assert conf.broker_max_poll_records <= 2 * records
    assert conf.consumer_max_fetch_size <= largest


def test_a_worker_makes_no_folders_that_a_kill_would_leave_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    app = build(Settings(), "ingest", MB)
    app._create_directories()
    assert not app.conf.datadir.exists()
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_swallow_a_cancellation_are_cancelled_again():
    async def run():
        async def stubborn():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.Event().wait()

        async def fails():
            raise OSError("gone")

        tasks = [asyncio.ensure_future(one()) for one in (stubborn, fails)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            return await end(tasks)

    cancelled, failed = asyncio.run(run())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert isinstance(failed, OSError)


def test_a_batch_is_cut_by_its_bytes():
    raws = [Raw(0, n, 0, b"x" * size) for n, size in enumerate((10, 2 * MB, MB - 9, 9, 1, 1))]
    batches = [[raw.offset for raw in batch] for batch in cut(raws)]
    assert batches == [[0], [1], [2, 3], [4, 5]]
    assert list(cut([])) == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StalledError(), "stalled"),
        (NothingReadableError("x"), "dead_letters"),
        (StoreBehind(), "store"),
        (StoreCorrupt(), "store"),
        (StoreUnsafe("x"), "store"),
        (Fenced(), "fenced"),
        (ValueError(), "error"),
    ],
)
def test_why_a_worker_ends_is_a_word_of_the_metric(error, reason):
    assert _halt(error) == reason
    assert reason in COUNTS["halts"].labels["reason"]


def test_what_waits_in_every_topic_of_a_role_is_watched(monkeypatch):
    async def ends(log, partitions):
        return dict.fromkeys(partitions, 5 if log._topic == plan.spans.name else 7)

    async def nothing(log, partition):
        return 0

    async def watch() -> list[int]:
        health = Health("ingest", start=1)
        worker = Worker(settings, "ingest", plan.spans, health, [plan.logs])
        mine: list[int] = []
        worker.assignment(mine.extend, mine.clear)
        given = {TopicPartition(t.name, n) for t in (plan.spans, plan.logs) for n in (0, 1)}
        await worker.app.on_partitions_assigned.send(given)
        await worker._watchdog.look()
        return mine

    monkeypatch.setattr(TopicLog, "ends", ends)
    monkeypatch.setattr(TopicLog, "committed", nothing)
    monkeypatch.setattr(TopicLog, "start", nothing)
    settings = Settings()
    plan = topics.plan(settings)
    assert asyncio.run(watch()) == [0, 1]
    assert metrics.value("partitions_owned") == 4
    assert metrics.value("records_behind") == 2 * 5 + 2 * 7
