"""A deployment for tests: topics of its own on a shared broker, worker processes, what came out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from streams import topics
from streams.journal import Decoded, decode
from streams.settings import Settings
from tests.services import ROOT

CONTRACT = """
contract: desk
version: 1
grounding: "off"
allowed_tools: [ticket.search, ticket.get]
forbidden_tools: [ticket.purge]
"""


def settings(broker: str, redis_url: str, prefix: str, **more: Any) -> Settings:
    given = {
        "kafka_bootstrap": broker,
        "redis_url": redis_url,
        "topic_prefix": prefix,
        "spans_topic": f"{prefix}.spans",
        "logs_topic": f"{prefix}.logs",
        "partitions": 4,
        "settle_delay": "500ms",
        "idle_timeout": "4s",
        "session_timeout": "6s",
    }
    return Settings(**(given | more))


def otlp_trace(trace: str, tools: Iterable[str], *, service: str = "desk") -> list[bytes]:
    """A run as requests of one span each: its tool calls, its answer, then its root."""
    tools = list(tools)
    count = len(tools)
    now = time.time_ns()
    root = (trace[:8] + "0" * 8).encode().hex()[:16]

    def request(number: int, name: str, parent: str | None, **attributes: str) -> bytes:
        found = ExportTraceServiceRequest()
        resource = found.resource_spans.add()
        attribute = resource.resource.attributes.add()
        attribute.key, attribute.value.string_value = "service.name", service
        span: Span = resource.scope_spans.add().spans.add()
        span.trace_id = bytes.fromhex(trace)
        span.span_id = bytes.fromhex(root) if parent is None else number.to_bytes(8, "big")
        span.parent_span_id = b"" if parent is None else bytes.fromhex(parent)
        span.name = name
        span.start_time_unix_nano = now + (0 if parent is None else number * 1000)
        span.end_time_unix_nano = now + number * 1000 + 500
        for key, value in attributes.items():
            one = span.attributes.add()
            one.key, one.value.string_value = "gen_ai." + key.replace("__", "."), value
        return found.SerializeToString()

    requests = [
        request(
            n,
            f"execute_tool {tool}",
            root,
            operation__name="execute_tool",
            tool__name=tool,
            tool__call__id=f"call-{n}",
            tool__call__arguments='{"query": "printer"}',
            tool__call__result='{"found": 3}',
        )
        for n, tool in enumerate(tools, 1)
    ]
    answer = (
        '[{"role": "assistant", "parts": [{"type": "text", "content": "All done, see above."}]}]'
    )
    requests.append(
        request(
            90 + count,
            "chat m",
            root,
            operation__name="chat",
            request__model="m",
            output__messages=answer,
        )
    )
    requests.append(
        request(
            99 + count,
            "invoke_agent desk",
            None,
            operation__name="invoke_agent",
            agent__name="desk",
        )
    )
    return requests


class Deployment:
    """Topics, workers and a view on the topics of one set of settings."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.plan = topics.plan(settings)

    def create(self) -> None:
        asyncio.run(topics.create(self.settings))

    def environment(self) -> dict[str, str]:
        given = {
            f"AGENTTRUST_{name.upper()}": str(getattr(self.settings, name))
            for name in self.settings.model_fields_set
        }
        return {k: v for k, v in os.environ.items() if not k.startswith("AGENTTRUST_")} | given

    @contextmanager
    def worker(self, role: str, name: str = "") -> Iterator[Process]:
        process = Process(self, role, name or role)
        process.start()
        try:
            yield process
        finally:
            process.kill()

    def send(self, values: Iterable[bytes], *, seconds: float = 0) -> None:
        """Writes to the spans topic, spread over `seconds`."""
        values = list(values)

        async def write() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self.settings.kafka_bootstrap)
            await producer.start()
            began = time.monotonic()
            pending = []
            for n, value in enumerate(values):
                pending.append(await producer.send(self.plan.spans.name, value))
                ahead = seconds * n / len(values) - (time.monotonic() - began)
                if ahead > 0.02:
                    await asyncio.sleep(ahead)
            await asyncio.gather(*pending)
            await producer.stop()

        asyncio.run(write())

    def read(self, topic: str) -> list[Any]:
        """Every record of a topic at this moment, partition by partition. A broker's word for the
        end is the least; the embedded one's may be too low."""

        async def all_of_it() -> list[Any]:
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.settings.kafka_bootstrap,
                auto_offset_reset="earliest",
                group_id=None,
                fetch_max_wait_ms=100,
            )
            await consumer.start()
            found: list[Any] = []
            try:
                partitions = await consumer._client._wait_on_metadata(topic)
                places = [TopicPartition(topic, p) for p in partitions]
                consumer.assign(places)
                left = await consumer.end_offsets(places)
                quiet = 0
                while left or quiet < 2:
                    batch = await consumer.getmany(timeout_ms=400)
                    quiet = 0 if batch else quiet + 1
                    found += (record for records in batch.values() for record in records)
                    left = {p: e for p, e in left.items() if await consumer.position(p) < e}
            finally:
                await consumer.stop()
            return sorted(found, key=lambda record: (record.partition, record.offset))

        return asyncio.run(all_of_it())

    def journal(self) -> list[tuple[Any, Decoded]]:
        return [
            (record, decode(record.value, record.partition, self.settings.partitions))
            for record in self.read(self.plan.journal.name)
        ]


class Process:
    """A worker process of one role."""

    def __init__(self, deployment: Deployment, role: str, name: str) -> None:
        self._deployment = deployment
        self._role = role
        self.log = deployment.folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "streams", "worker", "--roles", self._role],
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=self._deployment.environment(),
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def status(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit status."""
        self.signal(signal.SIGTERM)
        assert self._process is not None
        return self._process.wait(seconds)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
