"""What a worker asks of its topics before it reads one.

Refused is what cannot work, all at once; told is what works until it hurts. Brokers make a topic
that is missing when a client names it, unless they are told not to: with one partition, and with
policy sets that vanish after a week. So nothing is read or written before this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from aiokafka.errors import KafkaError

from streams import topics
from streams.setting_values import variable
from streams.settings import Settings
from streams.topics import Topic, TopicsError

log = logging.getLogger(__name__)

USES: Final[Mapping[str, tuple[str, ...]]] = {
    "ingest": ("journal", "spans", "logs", "contracts", "dead_letters"),
    "evaluate": ("journal", "contracts", "labels", "violations", "parse", "dead_letters"),
    "parse": ("journal", "parse", "contracts", "dead_letters"),
}
"""The topics of `streams.topics.Topics` that a role reads or writes."""
_BY_NUMBER: Final = frozenset({"labels", "violations", "parse", "dead_letters"})
"""Topics of whose partitions a writer chooses one by itself."""
_NEEDED: Final = frozenset({"journal", "contracts"})
"""Topics that are read again long after they were written."""


async def check(settings: Settings, role: str) -> None:
    """Raises TopicsError, a line for each fault that stops a worker; warns of the others.

    A broker, or a right, that does not let a topic's configuration be read is no fault.
    """
    plan = topics.plan(settings)
    used = {name: getattr(plan, name) for name in USES[role]}
    async with topics.admin(settings) as client:
        counts = await topics.partition_counts(client, [topic.name for topic in used.values()])
        try:
            found = await topics.configs(client, [t for t in used.values() if t.name in counts])
        except KafkaError:
            found = {}
    if lines := [*_missing(settings, used, counts), *_unusable(settings, used, counts, found)]:
        raise TopicsError(*lines)
    topics.check_partitions(settings.partitions, counts[plan.journal.name], None)
    for name, topic in used.items():
        for line in _hurtful(name, topic, found.get(topic.name, {})):
            log.warning("topic %s has %s", topic.name, line)


def _missing(
    settings: Settings, used: Mapping[str, Topic], counts: Mapping[str, int]
) -> Iterator[str]:
    missing = {name: topic.name for name, topic in used.items() if topic.name not in counts}
    if missing:
        named = {
            variable(f"{n}_topic" if n in {"spans", "logs"} else "topic_prefix") for n in missing
        }
        yield (
            f"no topic {', '.join(missing.values())} at {settings.kafka_bootstrap}; run: agenttrust "
            f"topics create, or correct {' or '.join(sorted(named))}"
        )


def _unusable(
    settings: Settings,
    used: Mapping[str, Topic],
    counts: Mapping[str, int],
    found: Mapping[str, Mapping[str, str]],
) -> Iterator[str]:
    for name, topic in used.items():
        count = counts.get(topic.name)
        if name in _BY_NUMBER and count is not None and count < settings.partitions:
            yield (
                f"topic {topic.name} has {count} partitions; allowed: "
                f"{variable('partitions')}={settings.partitions} or more"
            )
        if name == "journal" and "compact" in found.get(topic.name, {}).get("cleanup.policy", ""):
            yield (
                f"topic {topic.name} has cleanup.policy={found[topic.name]['cleanup.policy']}; "
                "allowed: delete"
            )


def _hurtful(name: str, topic: Topic, found: Mapping[str, str]) -> Iterator[str]:
    """What of a topic's configuration loses something sooner or later, in words."""
    planned = topic.configs(1)

    def differs(option: str, then: str) -> str:
        return f"{option}={found[option]}, planned {planned[option]}: {then}"

    if found.get("cleanup.policy", topic.cleanup) != topic.cleanup:
        yield differs("cleanup.policy", "records that are needed are removed")
    if int(found.get("max.message.bytes", topic.max_message_bytes)) < topic.max_message_bytes:
        yield differs("max.message.bytes", "whoever writes a larger message waits in vain")
    if topic.append_time and found.get("message.timestamp.type") == "CreateTime":
        yield differs("message.timestamp.type", "the journal has the time of its writers")
    kept = int(found.get("retention.ms", -1))
    least = int(planned["retention.ms"])
    if name in _NEEDED and kept >= 0 and (least < 0 or kept < least):
        yield differs("retention.ms", "records that are needed are removed")
