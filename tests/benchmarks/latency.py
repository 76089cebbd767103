"""Milliseconds from producing a span to its violation at a subscriber, at a steady rate.

Every tenth span calls a tool that is not allowed,
which is published at once; beside each of those a message goes to a topic that the same subscriber
reads: the echo, what Kafka and this machine take at that moment without a monitor.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import NewTopic

from monitor.model import Span
from streams import topics
from streams.events import read
from tests.benchmarks import bed, wire
from tests.deployment import Deployment
from tests.traces import SECOND

ECHO = "latency.echo"
_RUN = 10
"""Spans of a run; the sixth is the violation."""
_WIDTH = 20
"""Runs under way at a time."""
_WARM_UP = 3.0
"""Seconds that do not count."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds, by the violation and by its echo, in the order in which they were produced."""

    rate: int
    violations: list[float]
    echoes: list[float]

    @property
    def count(self) -> int:
        return len(self.violations)

    @property
    def middle(self) -> float:
        return _at(self.violations, 0.5)

    @property
    def worst(self) -> float:
        return _at(self.violations, 0.99)

    @property
    def queues(self) -> bool:
        """Whether the last come far later than the first: the worker does not keep up."""
        tenth = max(1, self.count // 10)
        return _at(self.violations[-tenth:], 0.5) > 3 * _at(self.violations[:tenth], 0.5)

    @property
    def echo_middle(self) -> float:
        return _at(self.echoes, 0.5)

    @property
    def echo_worst(self) -> float:
        return _at(self.echoes, 0.99)


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(
    parts: bed.Parts, rates: Sequence[int], seconds: float, together: int = 1
) -> list[Latency]:
    """One worker, at each of these spans a second, `together` of them in a message."""
    deployment = parts.deployment("latency", settle_delay="1s")
    with bed.fleet(deployment):
        return asyncio.run(_measure(deployment, rates, seconds, together))


async def _measure(
    deployment: Deployment, rates: Sequence[int], seconds: float, together: int
) -> list[Latency]:
    async with topics.admin(deployment.settings) as admin:
        await admin.create_topics([NewTopic(ECHO, 1, 1)])
    found = []
    for number, rate in enumerate(rates):
        async with _Stopwatch(deployment) as watch:
            spans = _spans(round(rate * (_WARM_UP + seconds)), number + 1, together)
            await watch.run(spans, rate, together)
            skip = round(rate * _WARM_UP) // _RUN
            found.append(Latency(rate, watch.times("span")[skip:], watch.times("echo")[skip:]))
    return found


class _Stopwatch:
    """Produces spans at a rate and notes when each violation, and its echo, arrive."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._sent: dict[str, float] = {}
        self._came: dict[str, dict[str, float]] = {"span": {}, "echo": {}}

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        await self._stack.__aenter__()
        broker: Any = {"bootstrap_servers": self._deployment.settings.kafka_bootstrap}
        self._producer = AIOKafkaProducer(**broker, acks="all")
        violations = self._deployment.plan.violations.name
        self._subscriber = AIOKafkaConsumer(violations, ECHO, **broker, auto_offset_reset="latest")
        for client in (self._producer, self._subscriber):
            await client.start()
            self._stack.push_async_callback(client.stop)
        await self._subscriber.seek_to_end()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def times(self, what: str) -> list[float]:
        """Milliseconds of each, in the order of sending."""
        came = self._came[what]
        return [(came[name] - sent) * 1000 for name, sent in self._sent.items()]

    async def run(self, spans: list[Span], rate: int, together: int) -> None:
        listening = asyncio.create_task(self._listen())
        pending = await self._produce(spans, rate, together)
        await asyncio.gather(*pending)
        deadline = time.monotonic() + bed.DEADLINE
        while any(len(came) < len(self._sent) for came in self._came.values()):
            if listening.done() or time.monotonic() > deadline:
                missing = len(self._sent) - len(self._came["span"])
                raise SystemExit(f"{missing} of {len(self._sent)} violations did not come")
            await asyncio.sleep(0.05)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)

    async def _produce(self, spans: list[Span], rate: int, together: int) -> list[Any]:
        topic, pending = self._deployment.plan.spans.name, []
        groups = [spans[n : n + together] for n in range(0, len(spans), together)]
        messages = [wire.request(group) for group in groups]
        began = time.monotonic()
        for number, (group, message) in enumerate(zip(groups, messages, strict=True)):
            ahead = number * together / rate - (time.monotonic() - began)
            if ahead > 0:
                await asyncio.sleep(ahead)
            for span in group:
                if span.tool == "drop_ticket":
                    self._sent[span.trajectory] = time.monotonic()
                    pending.append(await self._producer.send(ECHO, span.trajectory.encode()))
            partition = int(group[0].trajectory[:8], 16) % bed.PARTITIONS
            pending.append(await self._producer.send(topic, message, partition=partition))
        return pending

    async def _listen(self) -> None:
        async for record in self._subscriber:
            now = time.monotonic()
            if record.topic == ECHO:
                self._came["echo"].setdefault(record.value.decode(), now)
            else:
                self._came["span"].setdefault(read(record.headers, record.value).trajectory, now)


def _spans(count: int, salt: int, together: int) -> list[Span]:
    """Spans of runs of which some are under way at a time, `together` of one run in a row."""
    found: list[Span] = []
    first = 0
    while len(found) < count:
        group = [_run(number, salt) for number in range(first, first + _WIDTH)]
        for index in range(0, _RUN, together):
            for spans in group:
                found += spans[index : index + together]
        first += _WIDTH
    return found


def _run(number: int, salt: int) -> list[Span]:
    trajectory = f"{(number + 1) * 0x9E3779B97F4A7C15 % 2**64:016x}{salt:08x}{number:08x}"
    spans = []
    for index in range(_RUN):
        tool = "drop_ticket" if index == 5 else "get_ticket"
        at = 1_700_000_000 * SECOND + index * SECOND
        spans.append(
            Span(
                trajectory, f"{number:08x}{index:08x}", "tool", f"execute_tool {tool}",
                f"{number:08x}ffffffff", start=at, end=at + SECOND, agent="desk", service="desk",
                tool=tool, call_id=f"call-{number}-{index}", arguments='{"ticket_id":"T-1"}',
                result='{"ticket_id":"T-1","status":"open"}',
            )
        )  # fmt: skip
    return spans
