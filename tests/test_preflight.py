from __future__ import annotations

import asyncio
import itertools

import pytest
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams import preflight, topics
from tests.deployment import settings
from tests.services import broker  # noqa: F401

pytestmark = pytest.mark.services
NUMBERS = itertools.count()


@pytest.fixture
def chosen(broker):  # noqa: F811
    found = settings(broker, "redis://x", f"preflight{next(NUMBERS)}")
    asyncio.run(topics.create(found))
    return found


def remade(chosen, name, partitions):
    """A topic of the plan with another number of partitions, 0 for none at all."""
    topic = getattr(topics.plan(chosen), name).name

    async def run():
        async with topics.admin(chosen) as client:
            await client.delete_topics([topic])
            deadline = asyncio.get_running_loop().time() + 20
            while await topics.partition_counts(client, [topic]):
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)
            if partitions:
                await client.create_topics([NewTopic(topic, partitions, 1)])
                await topics._appear(client, {topic})

    asyncio.run(run())
    return topic


def altered(chosen, name, **options):
    topic = getattr(topics.plan(chosen), name).name
    given = {option.replace("_", "."): value for option, value in options.items()}

    async def run():
        async with topics.admin(chosen) as client:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=given)
            await client.alter_configs([resource])
            deadline = asyncio.get_running_loop().time() + 20
            planned = getattr(topics.plan(chosen), name)
            while not given.items() <= (await topics.configs(client, [planned]))[topic].items():
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)

    asyncio.run(run())
    return topic


@pytest.mark.parametrize("role", ["ingest", "evaluate", "parse"])
def test_topics_as_planned_are_passed_in_silence(chosen, role, caplog):
    asyncio.run(preflight.check(chosen, role))
    assert [r for r in caplog.records if r.name == "streams.preflight"] == []


def test_the_embedded_broker_passes_in_silence(embedded_broker, caplog):
    chosen = settings(embedded_broker, "redis://x", f"preflight{next(NUMBERS)}")
    asyncio.run(topics.create(chosen))
    for role in preflight.USES:
        asyncio.run(preflight.check(chosen, role))
    assert caplog.messages == []


def test_every_topic_is_used_by_a_role():
    used = {name for names in preflight.USES.values() for name in names}
    assert used == set(topics.Topics.__slots__)


@pytest.mark.parametrize(
    ("role", "name", "setting"),
    [
        (role, name, f"{name}_topic" if name in {"spans", "logs"} else "topic_prefix")
        for role, names in preflight.USES.items()
        for name in names
        if role != "parse"
    ],
)
def test_a_missing_topic_is_refused_by_name(chosen, role, name, setting):
    topic = remade(chosen, name, 0)
    with pytest.raises(topics.TopicsError) as refused:
        asyncio.run(preflight.check(chosen, role))
    [line] = refused.value.lines
    assert line.startswith(f"no topic {topic} at {chosen.kafka_bootstrap}; ")
    assert line.endswith(f"agenttrust topics create, or correct AGENTTRUST_{setting.upper()}")


@pytest.mark.parametrize("name", ["labels", "violations", "parse", "dead_letters"])
def test_a_topic_with_too_few_partitions_is_refused(chosen, name):
    topic = remade(chosen, name, 3)
    with pytest.raises(topics.TopicsError) as refused:
        asyncio.run(preflight.check(chosen, "evaluate"))
    assert refused.value.lines == (
        f"topic {topic} has 3 partitions; allowed: AGENTTRUST_PARTITIONS=4 or more",
    )


def test_all_faults_are_told_at_once(chosen):
    missing, few = remade(chosen, "violations", 0), remade(chosen, "labels", 1)
    with pytest.raises(topics.TopicsError) as refused:
        asyncio.run(preflight.check(chosen, "evaluate"))
    first, second = refused.value.lines
    assert missing in first
    assert few in second


def test_more_partitions_than_needed_are_fine(chosen):
    remade(chosen, "labels", 6)
    remade(chosen, "spans", 2)
    for role in ("ingest", "evaluate"):
        asyncio.run(preflight.check(chosen, role))


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_journal_is_refused(chosen, policy):
    topic = altered(chosen, "journal", cleanup_policy=policy)
    with pytest.raises(topics.TopicsError) as refused:
        asyncio.run(preflight.check(chosen, "ingest"))
    assert refused.value.lines == (f"topic {topic} has cleanup.policy={policy}; allowed: delete",)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("labels", {"cleanup_policy": "compact"}, "cleanup.policy=compact, planned delete"),
        ("contracts", {"cleanup_policy": "delete"}, "cleanup.policy=delete, planned compact"),
        ("journal", {"max_message_bytes": "300"}, "max.message.bytes=300, planned 1048576"),
        ("journal", {"retention_ms": "60000"}, "retention.ms=60000, planned 604800000"),
        ("contracts", {"retention_ms": "60000"}, "retention.ms=60000, planned -1"),
        (
            "journal",
            {"message_timestamp_type": "CreateTime"},
            "message.timestamp.type=CreateTime, planned LogAppendTime",
        ),
    ],
)
def test_what_hurts_later_is_told(chosen, name, options, told, caplog):
    planned = getattr(topics.plan(chosen), name).configs(1)
    rest = {k.replace(".", "_"): v for k, v in planned.items()}
    topic = altered(chosen, name, **rest | options)
    asyncio.run(preflight.check(chosen, "evaluate"))
    assert [line.partition(": ")[0] for line in caplog.messages] == [f"topic {topic} has {told}"]


@pytest.mark.parametrize("retention", ["-1", "1209600000"])
def test_a_journal_that_is_kept_longer_is_fine(chosen, retention, caplog):
    planned = topics.plan(chosen).journal.configs(1)
    rest = {k.replace(".", "_"): v for k, v in planned.items()}
    altered(chosen, "journal", **rest | {"retention_ms": retention})
    asyncio.run(preflight.check(chosen, "evaluate"))
    assert caplog.messages == []
