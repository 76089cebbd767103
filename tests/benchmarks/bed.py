"""What benchmarks of whole deployments stand on: parts, worker processes, and who sends and counts.

Everything is started here, on free ports, with its files in a temporary folder, and ended by its
process id.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from deploy.local.kafka import Kafka
from deploy.local.redis import SAFE, RedisServer
from tests import services
from tests.benchmarks import wire
from tests.deployment import Deployment, settings

PARTITIONS: Final = 12
DEADLINE: Final = 180.0
"""Seconds in which what was sent must be judged."""
_GRACE: Final = 60.0
_TICK: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Parts:
    """Addresses of a broker and of a state store."""

    kafka: str
    redis: str
    folder: Path

    def deployment(self, name: str, **more: Any) -> Deployment:
        """Topics of their own, with a contract that the runs of `load` keep to."""
        folder = self.folder / name
        contracts = folder / "contracts"
        contracts.mkdir(parents=True)
        (contracts / "desk.yaml").write_text(wire.CONTRACT)
        given = {
            "contracts": contracts,
            "partitions": PARTITIONS,
            "settle_delay": "100ms",
            "idle_timeout": "60s",
            "session_timeout": "10s",
        }
        made = Deployment(settings(self.kafka, self.redis, name, **(given | more)), folder)
        made.create()
        return made


@contextmanager
def real() -> Iterator[Parts]:
    """Apache Kafka and redis-server, set up as production should be."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agenttrust-")))
        kafka = stack.enter_context(Kafka(folder / "kafka"))
        redis = stack.enter_context(RedisServer(folder / "redis", *SAFE))
        yield Parts(kafka.bootstrap, redis.url, folder)


@contextmanager
def embedded() -> Iterator[Parts]:
    """The broker and the store of `agenttrust dev`."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agenttrust-")))
        kafka, redis = services.free_port(), services.free_port()
        stack.enter_context(services.start_broker(kafka, folder / "broker.log"))
        stack.enter_context(services.start_fake_redis(redis, folder / "redis.log"))
        yield Parts(f"127.0.0.1:{kafka}", f"redis://127.0.0.1:{redis}/0", folder)


# -- processes -------------------------------------------------------------------------------


def python(profile: Path | None) -> list[str]:
    return [sys.executable] if profile is None else [
        sys.executable, "-m", "cProfile", "-o", str(profile)
    ]  # fmt: skip


@contextmanager
def worker(
    deployment: Deployment, role: str, *, number: int = 1, profile: Path | None = None
) -> Iterator[int]:
    """The process of a role; its id."""
    log = deployment.folder / f"{role}-{number}.log"
    command = [*python(profile), "-m", "streams", "worker", "--roles", role]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=services.ROOT, env=deployment.environment()
        )
    try:
        yield process.pid
        if process.poll() is not None:
            raise SystemExit(f"{role} ended:\n{log.read_text()[-2000:]}")
    finally:
        process.terminate()
        try:
            process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def fleet(deployment: Deployment, workers: int = 1) -> Iterator[list[int]]:
    """Workers of ingest and evaluate that share all partitions; their process ids."""
    with ExitStack() as stack:
        pids = [
            stack.enter_context(worker(deployment, role, number=number))
            for role in ("ingest", "evaluate")
            for number in range(workers)
        ]
        services.wait_for(lambda: _shared(deployment, workers), "every worker to join", DEADLINE)
        yield pids


def _shared(deployment: Deployment, workers: int) -> bool:
    """Whether every worker has partitions, and those of a role are all there are."""
    for role in ("ingest", "evaluate"):
        owned = []
        for number in range(workers):
            said = (deployment.folder / f"{role}-{number}.log").read_text(errors="replace")
            given = re.findall(r"partitions of \S+: \[(.*)\]", said)
            owned.append(len(given[-1].split(",")) if given and given[-1] else 0)
        if sum(owned) != PARTITIONS or 0 in owned:
            return False
    return True


def spent(pids: Sequence[int]) -> list[float]:
    """Seconds of CPU that each process has used."""
    found = []
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found.append((int(stat[11]) + int(stat[12])) / _TICK)
    return found


# -- sending and counting --------------------------------------------------------------------


class Judged:
    """Sends export requests and counts the labels that come of them. Use with `async with`."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.labels = self.final = 0

    async def __aenter__(self) -> Self:
        plan, broker = self._deployment.plan, self._deployment.settings.kafka_bootstrap
        self._consumer = AIOKafkaConsumer(
            plan.labels.name, bootstrap_servers=broker, auto_offset_reset="earliest"
        )
        self._producer = AIOKafkaProducer(bootstrap_servers=broker)
        await self._consumer.start()
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()
        await self._consumer.stop()

    async def send(self, exporters: Sequence[Sequence[bytes]]) -> None:
        """An exporter's requests lie in one partition, so that their order is kept, as it is
        between requests that are seconds apart.
        """
        topic = self._deployment.plan.spans.name
        pending = [
            await self._producer.send(topic, request, partition=number % PARTITIONS)
            for number, requests in enumerate(exporters)
            for request in requests
        ]
        await asyncio.gather(*pending)

    async def wait(self, final: int, *, seconds: float = DEADLINE) -> None:
        """Until so many runs have a final label, since the beginning."""
        deadline = time.monotonic() + seconds
        while self.final < final:
            if time.monotonic() > deadline:
                missing = final - self.final
                raise SystemExit(f"{missing} runs have no final label after {seconds:g} s")
            for records in (await self._consumer.getmany(timeout_ms=200)).values():
                self.labels += len(records)
                self.final += sum(b'"phase":"final"' in r.value for r in records)

    async def judge(self, exporters: Sequence[Sequence[bytes]]) -> None:
        """Sends what exporters export and waits until each of their runs has a final label."""
        final = self.final + len(exporters) * wire.RUNS
        await self.send(exporters)
        await self.wait(final)
