from __future__ import annotations

import asyncio
import itertools

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from streams import topics
from streams.events import Message
from streams.sender import Sender
from streams.topic_log import Raw, TopicLog
from tests.deployment import settings
from tests.services import broker  # noqa: F401

pytestmark = [pytest.mark.services, pytest.mark.slow]
NUMBERS = itertools.count()


@pytest.fixture
def chosen(broker):  # noqa: F811
    return settings(broker, "redis://x", f"log{next(NUMBERS)}")


def test_a_log_is_read_beside_its_group(chosen):
    name = topics.plan(chosen).journal.name

    async def scenario():
        await topics.create(chosen)
        async with Sender(chosen) as sender, TopicLog(chosen, name, "group") as log:
            assert await log.at(0, 0) == "beyond"
            assert await log.committed(0) is None
            offsets = await sender.send([Message(name, 0, None, b"%d" % n) for n in range(40)])
            assert offsets == list(range(40))
            found = [raw async for records in log.read(0, 10, 30, most=7) for raw in records]
            assert [raw.offset for raw in found] == list(range(10, 30))
            assert [raw.value for raw in found] == [b"%d" % n for n in range(10, 30)]
            raw = await log.at(0, 39)
            assert isinstance(raw, Raw)
            assert raw.value == b"39"
            assert await log.at(0, 40) == "beyond"
            assert await log.at(0, 4000) == "beyond"
            assert await log.start(0) == 0
            assert (await log.ends([0, 1]))[1] == 0
            assert await log.since(0, 0) == 0
            assert (await log.since(0, raw.timestamp)) <= 39
            assert await log.since(1, 0) is None
            assert [r async for records in log.read(0, 38, 90) for r in records][-1] == raw
            await commit(12)
            assert await log.committed(0) == 12
            assert await log.committed(1) is None

    async def commit(offset):
        place = TopicPartition(name, 0)
        consumer = AIOKafkaConsumer(**chosen.kafka_args(), group_id="group")
        await consumer.start()
        consumer.assign([place])
        await consumer.commit({place: offset})
        await consumer.stop()

    asyncio.run(scenario())
