"""Spans a second of one worker and of two, from the first one sent to the last final label.

Beside them in the same run: the embedded parts under one worker, and Faust reading the same messages
without any work, set up as ingest is. A worker is a process of ingest and one of evaluate; on a
machine of two cores a second one has no core of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from streams import topics
from streams.app import WITHIN, app_id, build, take
from streams.settings import load as read_settings
from streams.settings import variable
from streams.take import hand_over
from tests import services
from tests.benchmarks import bed, load, wire
from tests.deployment import Deployment

_WARM_UP = 2
"""Exporters before the clock runs."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Spans a second."""

    one: float
    two: float
    embedded: float
    reading: float
    """Of Faust without work."""


def measure(parts: bed.Parts, exporters: int) -> Rates:
    """`parts` are real ones; the embedded ones are started here."""
    sent = wire.exporters(exporters)
    with bed.embedded() as other:
        embedded, _ = _judged(other, "embedded", 1, sent)
    one, deployment = _judged(parts, "one", 1, sent)
    two, _ = _judged(parts, "two", 2, sent)
    return Rates(one, two, embedded, _read(deployment, _messages(exporters)))


def _spans(exporters: int) -> int:
    return exporters * wire.RUNS * load.SPANS


def _messages(exporters: int) -> int:
    return exporters * -(-wire.RUNS * load.SPANS // wire.BATCH)


def _judged(
    parts: bed.Parts, name: str, workers: int, sent: list[list[bytes]]
) -> tuple[float, Deployment]:
    deployment = parts.deployment(name)

    async def judge() -> float:
        async with bed.Judged(deployment) as judged:
            await judged.judge(wire.exporters(_WARM_UP, salt=2))
            began = time.monotonic()
            await judged.judge(sent)
            return time.monotonic() - began

    with bed.fleet(deployment, workers):
        return _spans(len(sent)) / asyncio.run(judge()), deployment


# -- Faust without work ----------------------------------------------------------------------


def _read(deployment: Deployment, messages: int) -> float:
    """Spans a second of a process that reads those many messages, which are there already."""
    command = [sys.executable, "-m", "tests.benchmarks.rate", str(messages)]
    environment = deployment.environment() | {variable("topic_prefix"): "reading"}
    done = subprocess.run(
        command, cwd=services.ROOT, env=environment, check=True, capture_output=True, text=True,
        timeout=bed.DEADLINE,
    )  # fmt: skip
    return messages * wire.BATCH / float(done.stdout.split()[-1])


async def _reader(messages: int) -> None:
    """What that process does: prints the seconds from the first record to the last."""
    settings = read_settings()
    spans = topics.plan(settings).spans
    app = build(settings, "ingest", spans.max_message_bytes)
    most = take(settings, "ingest", spans.max_message_bytes)
    raw: Any = {"key_serializer": "raw", "value_serializer": "raw"}
    channel = app.topic(spans.name, key_type=bytes, value_type=bytes, **raw)
    done = asyncio.Event()
    times: list[float] = []

    seen = 0

    async def count(batch: list[Any]) -> None:
        nonlocal seen
        times.append(time.monotonic())
        seen += len(batch)
        for event in batch:
            event.ack()
        if seen >= messages:
            done.set()

    async def agent(stream: Any) -> None:
        await hand_over(stream, count, most=most, within=WITHIN)

    app.agent(channel, name=app_id(settings, "ingest"), concurrency=1)(agent)
    await app.start()
    await done.wait()
    print(times[-1] - times[0], flush=True)
    os._exit(0)  # nothing is worth a commit


if __name__ == "__main__":
    asyncio.run(_reader(int(sys.argv[1])))
