"""A journal and what the workers published of it, written to a broker with given times."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic

from monitor.contract import Contract, PolicySet
from monitor.engine import Engine
from monitor.label import Event
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Arrival, Close, Message, Observed, Record, RequestedCall, Span
from streams import cli, topics
from streams.app import app_id
from streams.events import EventWriter
from streams.events import Message as KafkaMessage
from streams.journal import decode, encode
from streams.topic_log import Raw
from tests.deployment import settings
from tests.traces import raise_fold_error

P = 2
NOW = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""
MINUTE, HOUR = 60_000, 3_600_000
SECOND = 1_000_000_000
CONTRACT = Contract(
    contract="desk",
    version=1,
    grounding="off",
    allowed_tools=("ticket.search", "ticket.get"),
    forbidden_tools=("ticket.purge",),
)
SET = PolicySet([CONTRACT])
NUMBERS = itertools.count()
GOLDEN = Path(__file__).parent / "golden_output"


def trajectory(number: int, partition: int = 1) -> str:
    return f"{number:08x}{partition:08x}" + "a" * 16


def run_of(owner: str, tool: str = "ticket.search", **more: Any) -> list[Span]:
    """A whole run: request, tool call, answer, root; it began at midnight by its own clock."""
    at = NOW // 1000 * SECOND
    given = {"service": "desk", "agent": "desk", **more}
    call = RequestedCall(tool, "call-1", '{"query":"printer"}')
    asked, said = Message("user", "why does the printer burn?"), Message("assistant", "It is done.")
    return [
        Span(owner, "1" * 16, "llm", "chat", "f" * 16, start=at, end=at + SECOND, inputs=(asked,),
             outputs=(Message("assistant", None, (call,)),), **given),
        Span(owner, "2" * 16, "tool", f"execute_tool {tool}", "f" * 16, start=at + SECOND,
             end=at + 2 * SECOND, tool=tool, call_id="call-1", arguments='{"query":"printer"}',
             result='{"found":3}', **given),
        Span(owner, "3" * 16, "llm", "chat", "f" * 16, start=at + 2 * SECOND, end=at + 3 * SECOND,
             inputs=(asked,), outputs=(said,), **given),
        Span(owner, "f" * 16, "agent", "invoke_agent desk", start=at, end=at + 4 * SECOND, **given),
    ]  # fmt: skip


class Journal:
    """Records of one journal, and the events that the workers make of them."""

    def __init__(self, policy_set: PolicySet = SET) -> None:
        self.policy_set = policy_set
        self.now = NOW
        self.records: dict[int, list[Raw]] = {p: [] for p in range(P)}

    def add(self, *arrivals: Arrival | Span, after: int = 1000) -> int:
        """Appends one record; its offset."""
        self.now += after
        items = [Observed(a) if isinstance(a, Span) else a for a in arrivals]
        [(partition, value)] = encode(self.policy_set.digest, items, P)
        records = self.records[partition]
        records.append(Raw(partition, len(records), self.now, value))
        return len(records) - 1

    def add_run(self, owner: str, tool: str = "ticket.search", *, close: bool = True) -> None:
        """A run, span by span, and its close."""
        last = [self.add(span) for span in run_of(owner, tool)][-1]
        if close:
            self.add(Close(owner, "root_settled", last), after=5000)

    def changed(self, partition: int, change: Callable[[list[Raw]], Iterable[Raw]]) -> Journal:
        """A copy in which `change` was made to one partition; offsets are those of the copy."""
        copy = Journal(self.policy_set)
        copy.records = dict(self.records)
        copy.records[partition] = [
            Raw(partition, offset, raw.timestamp, raw.value)
            for offset, raw in enumerate(change(self.records[partition]))
        ]
        return copy

    def events(self, *, first: int = 0) -> list[Event]:
        """What the workers publish, record by record."""
        out = MemoryPublisher()
        engine = Engine(
            MemoryStore(), out, MemoryPolicySets(self.policy_set), on_fold_error=raise_fold_error
        )

        async def fold() -> None:
            for partition, raws in self.records.items():
                for raw in raws[first:]:
                    found = decode(raw.value, partition, P)
                    record = Record(raw.offset, raw.timestamp, found.policy_set, found.arrivals)
                    await engine.apply(partition, [record], epoch=0)

        asyncio.run(fold())
        return out.events


class Site:
    """Topics with a journal, its policy set and published events; runs commands against them."""

    def __init__(self, broker: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        prefix = f"site{next(NUMBERS)}"
        self.settings = settings(broker, "redis://x", prefix, partitions=P, **more)
        self.plan = topics.plan(self.settings)
        asyncio.run(self._create())
        for name in self.settings.model_fields_set:
            monkeypatch.setenv(f"AGENTTRUST_{name.upper()}", str(getattr(self.settings, name)))
        self.writer = EventWriter(
            labels=self.plan.labels.name, violations=self.plan.violations.name, partitions=P
        )

    async def _create(self) -> None:
        """All topics; the journal keeps the times that it is given, however old they are."""
        name = self.plan.journal.name
        kept = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
        async with topics.admin(self.settings) as client:
            await client.create_topics([NewTopic(name, P, 1, topic_configs=kept)])
        await topics.create(self.settings)

    def messages(self, events: Sequence[Event]) -> list[KafkaMessage]:
        return [self.writer.message(event) for event in events]

    def fill(
        self, journal: Journal, published: Iterable[KafkaMessage] = (), *, sets: bool = True
    ) -> None:
        """Writes all of it; the journal with its own times."""
        rows: list[tuple[KafkaMessage, int | None]] = []
        if sets:
            value = journal.policy_set.encode()
            rows.append((KafkaMessage(self.plan.contracts.name, 0, b"", value), None))
        for partition, raws in journal.records.items():
            name = self.plan.journal.name
            rows += [
                (KafkaMessage(name, partition, None, r.value or b""), r.timestamp) for r in raws
            ]
        rows += [(message, None) for message in published]

        async def write() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.settings.kafka_bootstrap, acks="all")
            await producer.start()
            sent = [
                await producer.send(
                    m.topic, m.value, key=m.key, partition=m.partition, headers=m.headers,
                    timestamp_ms=time,
                )
                for m, time in rows
            ]  # fmt: skip
            await asyncio.gather(*sent)
            await producer.stop()

        asyncio.run(write())

    def commit(self, offsets: dict[int, int]) -> None:
        """Commits the journal as the workers' group."""
        group = app_id(self.settings, "evaluate")
        places = {TopicPartition(self.plan.journal.name, p): o for p, o in offsets.items()}

        async def write() -> None:
            consumer = AIOKafkaConsumer(**self.settings.kafka_args(), group_id=group)
            await consumer.start()
            consumer.assign(list(places))
            await consumer.commit(places)
            await consumer.stop()

        asyncio.run(write())

    def run(self, *args: str) -> int:
        return cli.run(list(args))


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compares what people read with the file of that name; GOLDEN_WRITE=1 writes it instead."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("GOLDEN_WRITE"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8")

    return compare
