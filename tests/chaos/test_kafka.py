"""Kafka fails: it restarts, refuses writes, loses the journal, or goes silent towards one worker."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import UnknownTopicOrPartitionError

from streams import topics
from tests.chaos.fleet import World, load

pytestmark = pytest.mark.timeout(300)

OUTAGES = r'agenttrust_outages_total\{part="kafka"\}'


@pytest.fixture
def world(kafka, redis_server_url, tmp_path):
    with World(kafka.bootstrap, redis_server_url, tmp_path) as world:
        yield world


def test_a_restart_of_kafka_is_waited_for(world, kafka):
    world.fleet()
    with world.sending(load(400), seconds=8):
        world.under_way()
        kafka.kill()
        time.sleep(4)  # so long it is away
        kafka.start()
    world.settle()
    world.check()
    assert world.metric(OUTAGES) > 0


def test_an_output_topic_that_refuses_writes_is_waited_for(world):
    async def largest(size: int) -> None:
        async with topics.admin(world.settings) as admin:
            wanted = {"max.message.bytes": str(size)}
            resource = ConfigResource(ConfigResourceType.TOPIC, world.plan.labels.name, wanted)
            await admin.alter_configs([resource])

    world.fleet()
    asyncio.run(largest(100))
    world.send(load(100))
    world.wait(
        lambda: all(world.metric(OUTAGES, worker) for worker in world.of("evaluate")),
        "both workers to wait",
    )
    assert world.labels() == {}
    assert all(w.exits == [] for w in world.workers)
    asyncio.run(largest(topics.RECORD_BYTES))
    world.settle()
    world.check()
    assert world.metric(r"agenttrust_outage_seconds_total\{.*") > 0


def test_a_journal_made_anew_under_a_living_store_is_a_new_log(world):
    """What was folded is forgotten, and what comes is not skipped as known."""

    async def recreate() -> None:
        plan = world.plan.journal
        async with topics.admin(world.settings) as admin:
            await admin.delete_topics([plan.name])
            new = NewTopic(plan.name, plan.partitions, 1, topic_configs=plan.configs(1))
            for _ in range(100):
                answer = await admin.create_topics([new])
                if answer.topic_errors[0][1] == 0:
                    return
                await asyncio.sleep(0.1)
            raise UnknownTopicOrPartitionError

    world.fleet()
    world.send(load(60))
    world.settle()
    world.check()
    asyncio.run(recreate())
    world.send(load(60))
    world.settle()
    world.check()
    found = world.metric(r'agenttrust_takeovers_total\{found="new_log"\}')
    assert found >= 1
    assert world.gauge("agenttrust_epoch") >= 1


def test_a_consumer_that_stops_reading_is_noticed_and_its_worker_started_again(
    kafka, redis_server_url, tmp_path
):
    with World(kafka.bootstrap, redis_server_url, tmp_path, stall_timeout="6s") as world:
        world.add("ingest")
        deaf = world.add("evaluate", program=("-m", "tests.chaos.deaf"))
        world.ready()
        world.send(load(20))
        world.settle()
        assert deaf.fetch("/healthz")[0] == 200
        deaf.signal(signal.SIGUSR1)
        world.send(load(40))
        world.wait(lambda: deaf.exits, "the worker to end")
        world.settle()
        world.check()
        assert deaf.exits[0] == 1
        assert "records wait and none was handled" in deaf.log.read_text()
        assert world.metric("agenttrust_records_behind") > 0
