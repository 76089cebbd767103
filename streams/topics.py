"""Topics as data: what each holds, how long, and how the broker must treat it.

`plan` names them, `create` makes those that are missing and tells where existing ones differ.
docs/topics.md is generated from here.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    NodeNotReadyError,
    TopicAlreadyExistsError,
    for_code,
)

from streams.errors import UserError
from streams.security import refusal
from streams.setting_values import variable
from streams.settings import Settings

RECORD_BYTES: Final = 1024**2
"""`max.message.bytes` of what the monitor writes: a record of 256 KB, escaped at worst."""

_POLICY_SET: Final = 8 * RECORD_BYTES
"""`max.message.bytes` of the topic of policy sets."""
_ENVELOPE: Final = 64 * 1024
"""Room for headers and batch overhead above the gateway's largest message."""
POLICY_SET_BYTES: Final = _POLICY_SET - _ENVELOPE
"""The largest policy set."""
_APPEAR: Final = 10.0
"""Seconds within which a topic that was made is known to the brokers."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it should be. `retention` is seconds, None for ever."""

    name: str
    holds: str
    key: str
    partitions: int
    cleanup: Literal["delete", "compact"]
    retention: float | None
    max_message_bytes: int
    append_time: bool = False

    def configs(self, replication: int) -> dict[str, str]:
        """Topic configuration as Kafka spells it."""
        retention = -1 if self.retention is None else round(self.retention * 1000)
        return {
            "cleanup.policy": self.cleanup,
            "retention.ms": str(retention),
            "min.insync.replicas": str(max(1, replication - 1)),
            "max.message.bytes": str(self.max_message_bytes),
            "message.timestamp.type": "LogAppendTime" if self.append_time else "CreateTime",
        }


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics of a deployment."""

    spans: Topic
    logs: Topic
    journal: Topic
    parse: Topic
    contracts: Topic
    labels: Topic
    violations: Topic
    dead_letters: Topic

    def __iter__(self) -> Iterator[Topic]:
        return (getattr(self, field.name) for field in fields(self))


def plan(settings: Settings) -> Topics:
    """The topics that these settings ask for."""
    inbound = settings.max_message_bytes + _ENVELOPE
    p = settings.partitions

    def own(name: str, holds: str, key: str, retention: float | None, **other: Any) -> Topic:
        args: dict[str, Any] = {
            "partitions": p,
            "cleanup": "delete",
            "max_message_bytes": RECORD_BYTES,
        }
        args.update(other)
        return Topic(f"{settings.topic_prefix}.{name}", holds, key, retention=retention, **args)

    def otlp(name: str, holds: str) -> Topic:
        return Topic(name, holds, "any or none", p, "delete", 86_400, inbound)

    return Topics(
        spans=otlp(settings.spans_topic, "OTLP trace export requests, protobuf or JSON"),
        logs=otlp(settings.logs_topic, "OTLP log export requests, protobuf or JSON"),
        journal=own(
            "journal",
            "arrivals: everything that a verdict depends on",
            "none; partition = first 8 bytes of the trace id modulo the partition count",
            settings.journal_retention,
            append_time=True,
        ),
        parse=own(
            "parse",
            "requests to read a step with an LLM",
            "trajectory id",
            86_400,
            max_message_bytes=RECORD_BYTES // 4,
        ),
        contracts=own(
            "contracts",
            "policy sets by digest",
            "digest",
            None,
            cleanup="compact",
            partitions=1,
            max_message_bytes=_POLICY_SET,
        ),
        labels=own("labels", "trust labels", "trajectory id", settings.event_retention),
        violations=own(
            "violations", "contract violations", "trajectory id", settings.event_retention
        ),
        dead_letters=own(
            "dead-letters",
            "what could not be read: original bytes, reason and source position",
            "trajectory id where known",
            settings.event_retention,
            max_message_bytes=inbound,
        ),
    )


# -- creation --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `create` found or did. `differences` are sentences; none means as planned."""

    topic: Topic
    created: bool
    differences: tuple[str, ...] = ()


class TopicsError(UserError):
    """The broker refused, or cannot be reached; the text is one sentence."""


@asynccontextmanager
async def admin(settings: Settings) -> AsyncIterator[AIOKafkaAdminClient]:
    """A started admin client. Raises TopicsError when no broker answers, or one refuses."""
    client = AIOKafkaAdminClient(**settings.kafka_args(), request_timeout_ms=15_000)
    try:
        await client.start()
    except (KafkaError, OSError) as error:
        await client.close()
        raise TopicsError(await refusal(settings.kafka_args())) from error
    try:
        yield client
    except NodeNotReadyError as error:
        raise TopicsError(await refusal(settings.kafka_args())) from error
    except KafkaError as error:
        raise TopicsError(f"the broker refused: {_words(error)}") from error
    finally:
        await client.close()


async def partition_counts(client: AIOKafkaAdminClient, names: list[str]) -> dict[str, int]:
    """Partition counts of those of `names` that exist.

    Asks for the list of all topics first: asking for one that is missing may create it.
    """
    existing = set(await client.list_topics())
    present = [name for name in names if name in existing]
    found = await client.describe_topics(present) if present else []
    return {t["topic"]: len(t["partitions"]) for t in found if not t["error_code"]}


async def configs(client: AIOKafkaAdminClient, topics: list[Topic]) -> dict[str, dict[str, str]]:
    """What the broker says of the configuration of existing topics: by topic, name -> value. Empty
    for a topic of which the user may not know it."""
    if not topics:
        return {}
    answers = await client.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, t.name) for t in topics]
    )
    return {
        resource[3]: {entry[0]: entry[1] for entry in resource[4]}
        for answer in answers
        for resource in answer.resources
    }


async def create(settings: Settings) -> list[Outcome]:
    """Makes the topics that are missing; changes none that exists. Raises TopicsError."""
    topics = list(plan(settings))
    async with admin(settings) as client:
        before = await partition_counts(client, [t.name for t in topics])
        missing = [t for t in topics if t.name not in before]
        made = await _create(client, missing, settings.replication)
        await _appear(client, made)
        differences = await _differences(client, topics, before, settings.replication)
    return [Outcome(t, t.name in made, tuple(differences.get(t.name, ()))) for t in topics]


async def _create(client: AIOKafkaAdminClient, topics: list[Topic], replication: int) -> set[str]:
    if not topics:
        return set()
    answer = await client.create_topics(
        [
            NewTopic(t.name, t.partitions, replication, topic_configs=t.configs(replication))
            for t in topics
        ]
    )
    made = set()
    for name, code, *message in answer.topic_errors:
        error = for_code(code)
        if code == 0:
            made.add(name)
        elif error is not TopicAlreadyExistsError:  # another `topics create` at the same time
            raise TopicsError(f"topic {name} was refused: {message[0] or error.description}")
    return made


async def _appear(client: AIOKafkaAdminClient, names: set[str]) -> None:
    """Waits until the broker knows what its controller has made, so that whoever starts next finds
    the topics. A broker that takes longer than that is told nothing new by waiting.
    """
    deadline = time.monotonic() + _APPEAR
    while names - (await partition_counts(client, sorted(names))).keys():
        if time.monotonic() > deadline:
            return
        await asyncio.sleep(0.05)


async def _differences(
    client: AIOKafkaAdminClient,
    topics: list[Topic],
    existing: Mapping[str, int],
    replication: int,
) -> dict[str, list[str]]:
    """Where topics that existed before are not as planned."""
    checked = [t for t in topics if t.name in existing]
    found = await configs(client, checked)
    result: dict[str, list[str]] = {}
    for topic in checked:
        lines = result.setdefault(topic.name, [])
        if existing[topic.name] != topic.partitions:
            lines.append(f"{existing[topic.name]} partitions, planned {topic.partitions}")
        have = found.get(topic.name, {})
        for name, value in topic.configs(replication).items():
            if name in have and have[name] != value:
                lines.append(f"{name}={have[name]}, planned {value}")
    return result


async def keeps_append_time(settings: Settings) -> bool:
    """Whether the broker stamps records with its own time when a topic asks for LogAppendTime.

    Some brokers store the option and ignore it, so one record is written to a topic made for
    this and deleted again. Raises TopicsError when that cannot be done.
    """
    name = f"{settings.topic_prefix}.probe-{secrets.token_hex(4)}"
    probe = Topic(name, "", "", 1, "delete", 3600, RECORD_BYTES, append_time=True)
    async with admin(settings) as client:
        try:
            await _create(client, [probe], 1)
            producer = AIOKafkaProducer(**settings.kafka_args(), acks="all")
            await producer.start()
            try:
                written = await asyncio.wait_for(
                    producer.send_and_wait(name, b"", timestamp_ms=1), timeout=15
                )
            finally:
                await producer.stop()
                await client.delete_topics([name])
        except (KafkaError, OSError, TimeoutError) as error:
            raise TopicsError(
                f"cannot tell whose time the broker keeps: {_words(error)}"
            ) from error
    return bool(written.timestamp_type == 1)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# -- the partition count ---------------------------------------------------------------------


async def journal_partitions(settings: Settings) -> int | None:
    """Partitions that the journal topic has; None when there is no such topic."""
    name = plan(settings).journal.name
    async with admin(settings) as client:
        return (await partition_counts(client, [name])).get(name)


async def check_session(settings: Settings) -> None:
    """Raises TopicsError when the brokers refuse sessions as short or long as SESSION_TIMEOUT.

    Asked beforehand, since a consumer that is refused tries no more and says nothing. A broker
    that does not tell its limits is believed to have none.
    """
    wanted = round(settings.session_timeout * 1000)
    async with admin(settings) as client:
        try:
            node = (await client.describe_cluster())["brokers"][0]["node_id"]
            [answer] = await client.describe_configs(
                [ConfigResource(ConfigResourceType.BROKER, str(node))]
            )
            found = {entry[0]: entry[1] for r in answer.resources for entry in r[4]}
            least, most = (int(found[f"group.{end}.session.timeout.ms"]) for end in ("min", "max"))
        except (KafkaError, LookupError, TypeError, ValueError):
            return
    if not least <= wanted <= most:
        raise TopicsError(
            f"{variable('session_timeout')} is {wanted / 1000:g}s; the brokers allow "
            f"{least / 1000:g}s to {most / 1000:g}s (group.min.session.timeout.ms, "
            "group.max.session.timeout.ms)"
        )


def check_partitions(setting: int, topic: int | None, stored: int | None) -> None:
    """Raises TopicsError unless setting, journal topic and state store agree on the count.

    `stored` is what the store recorded when it was first used, None for an empty one. The count
    decides in which partition a trajectory lives, so a worker must not start on a guess.
    """
    if topic is None:
        raise TopicsError("the journal topic does not exist; run: agenttrust topics create")
    counts = {"AGENTTRUST_PARTITIONS": setting, "the journal topic": topic}
    if stored is not None:
        counts["the state store"] = stored
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{where} says {count}" for where, count in counts.items())
        raise TopicsError(f"the partition counts disagree: {told}")


def markdown() -> str:
    """docs/topics.md, with the default settings."""
    lines = [
        "<!-- Generated by `make docs` from streams/topics.py. -->",
        "",
        "# Topics",
        "",
        "`agenttrust topics create` makes what is missing and changes nothing that exists; it tells",
        "where an existing topic differs from this plan. Names and figures are those of the default",
        "[settings](settings.md). `min.insync.replicas` is one less than AGENTTRUST_REPLICATION, at",
        "least 1. The journal uses the broker's time (`LogAppendTime`); a broker that cannot, such as",
        "the embedded one, keeps the producer's, and `topics create` says so.",
        "",
        "| topic | holds | key | partitions | cleanup | retention | largest message | time |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for t in plan(Settings.model_construct()):
        kept = "for ever" if t.retention is None else f"{t.retention / 86_400:g} d"
        time = "the broker's" if t.append_time else "the producer's"
        lines.append(
            f"| `{t.name}` | {t.holds} | {t.key} | {t.partitions} | {t.cleanup} | {kept} "
            f"| {t.max_message_bytes} B | {time} |"
        )
    return "\n".join(lines) + "\n"
