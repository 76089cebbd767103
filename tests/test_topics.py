from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka.admin import NewTopic

from streams import topics as t
from streams.settings import load
from tests.services import broker, free_port  # noqa: F401


def settings(broker_: str, **other):
    prefix = f"t{time.time_ns()}"
    return load(
        kafka_bootstrap=broker_,
        topic_prefix=prefix,
        spans_topic=f"{prefix}.spans",
        logs_topic=f"{prefix}.logs",
        partitions=3,
        **other,
    )


def test_the_plan():
    plan = t.plan(load(topic_prefix="x", partitions=5, spans_topic="in"))
    assert plan.spans.name == "in"
    assert plan.dead_letters.name == "x.dead-letters"
    assert plan.journal.partitions == plan.labels.partitions == 5
    journal = plan.journal.configs(replication=3)
    assert journal["cleanup.policy"] == "delete"
    assert journal["message.timestamp.type"] == "LogAppendTime"
    assert journal["min.insync.replicas"] == "2"
    assert plan.contracts.configs(1) == {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "min.insync.replicas": "1",
        "max.message.bytes": str(8 * 1024**2),
        "message.timestamp.type": "CreateTime",
    }
    assert {topic.cleanup for topic in (plan.labels, plan.violations)} == {"delete"}


def test_the_spans_topic_takes_what_the_gateway_writes():
    chosen = load(max_message_bytes="4MiB")
    assert t.plan(chosen).spans.max_message_bytes > chosen.max_message_bytes


@pytest.mark.services
def test_create_makes_what_is_missing_and_tells_what_differs(broker):  # noqa: F811
    chosen = settings(broker)
    plan = t.plan(chosen).labels

    async def main():
        async with t.admin(chosen) as client:
            labels = NewTopic(
                f"{chosen.topic_prefix}.labels",
                7,
                1,
                topic_configs=plan.configs(1) | {"cleanup.policy": "compact"},
            )
            await client.create_topics([labels])
        return await t.create(chosen), await t.create(chosen), await t.journal_partitions(chosen)

    first, second, count = asyncio.run(main())
    assert [o.topic.name for o in first if not o.created] == [f"{chosen.topic_prefix}.labels"]
    assert not any(o.created for o in second)
    told = {o.topic.name: o.differences for o in second if o.differences}
    assert told == {
        f"{chosen.topic_prefix}.labels": (
            "7 partitions, planned 3",
            "cleanup.policy=compact, planned delete",
        )
    }
    assert count == 3


@pytest.mark.services
def test_asking_for_a_topic_does_not_create_it(embedded_broker):
    """There: a Kafka may be told to make topics, this broker always does."""
    chosen = settings(embedded_broker)
    assert asyncio.run(t.journal_partitions(chosen)) is None
    assert asyncio.run(t.journal_partitions(chosen)) is None


async def probed(chosen) -> tuple[bool, list[str]]:
    kept = await t.keeps_append_time(chosen)
    async with t.admin(chosen) as client:
        return kept, [n for n in await client.list_topics() if n.startswith(chosen.topic_prefix)]


@pytest.mark.services
def test_the_embedded_broker_keeps_the_producers_time_and_no_probe_stays(embedded_broker):
    assert asyncio.run(probed(settings(embedded_broker))) == (False, [])


@pytest.mark.services
def test_kafka_stamps_records_with_its_own_time_and_no_probe_stays(kafka):
    chosen = settings(kafka.bootstrap)
    assert asyncio.run(probed(chosen)) == (True, [])


@pytest.mark.services
def test_a_session_that_the_brokers_refuse_stops_the_worker(kafka):
    chosen = settings(kafka.bootstrap, session_timeout="5m")
    asyncio.run(t.check_session(chosen))
    short = chosen.model_copy(update={"session_timeout": 0.5})
    told = r"AGENTTRUST_SESSION_TIMEOUT is 0\.5s; the brokers allow 1s to 1800s"
    with pytest.raises(t.TopicsError, match=told):
        asyncio.run(t.check_session(short))


@pytest.mark.services
def test_a_broker_without_limits_takes_any_session(embedded_broker):
    asyncio.run(t.check_session(settings(embedded_broker, session_timeout="3s")))


def test_no_broker_is_one_sentence():
    port = free_port()
    with pytest.raises(t.TopicsError, match=f"no Kafka broker answers at 127.0.0.1:{port}"):
        asyncio.run(t.create(load(kafka_bootstrap=f"127.0.0.1:{port}")))


@pytest.mark.parametrize(("topic", "stored"), [(12, None), (12, 12)])
def test_partition_counts_that_agree(topic, stored):
    t.check_partitions(12, topic, stored)


@pytest.mark.parametrize(
    ("setting", "topic", "stored", "told"),
    [
        (12, None, None, "the journal topic does not exist; run: agenttrust topics create"),
        (12, 6, None, "AGENTTRUST_PARTITIONS says 12, the journal topic says 6"),
        (6, 6, 12, "the state store says 12"),
        (6, 12, 12, "AGENTTRUST_PARTITIONS says 6"),
    ],
)
def test_partition_counts_that_disagree_stop_the_worker(setting, topic, stored, told):
    with pytest.raises(t.TopicsError, match=told):
        t.check_partitions(setting, topic, stored)
