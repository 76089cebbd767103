"""A whole deployment on this machine: broker, state store, gateway and workers as child processes.

Broker and store keep all in memory, so their end is the end; gateway and workers are started again
whenever they end.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
from aiokafka import AIOKafkaConsumer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streams.embedded import broker_command, store_command
from streams.errors import UserError
from streams.health import offset
from streams.otlp_files import PROTOBUF, OtlpFile, gaps
from streams.processes import Child
from streams.settings import Settings, variable
from streams.topics import create, plan

_START: Final = 30.0
"""Seconds within which a part must answer."""
_ATTEMPTS: Final = 10

Step = Callable[[str], AbstractContextManager[None]]
"""Wraps a part's start, by name, to show progress."""


class Deployment:
    """The child processes. `settings` say where they are to listen; `tell` hears of restarts."""

    def __init__(self, settings: Settings, folder: Path, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self._tell = tell
        environment = {
            variable(name): str(getattr(settings, name))
            for name in (
                "kafka_bootstrap",
                "redis_url",
                "gateway_listen",
                "contracts",
                "partitions",
                "settle_delay",
                "session_timeout",
            )
        }

        # A worker that is killed leaves its temporary files; here they go with the folder.
        environment["TMPDIR"] = str(folder)

        def child(name: str, command: list[str], number: int = 0) -> Child:
            listen = {variable("http_listen"): offset(settings.http_listen, number)}
            return Child(name, command, folder / f"{name}.log", environment | listen)

        agenttrust = [sys.executable, "-m", "streams"]
        self._ports = {
            "broker": port(settings.kafka_bootstrap),
            "state store": port(settings.redis_url.removesuffix("/0")),
            "gateway": port(settings.gateway_listen),
        }
        self.broker = child("broker", broker_command(self._ports["broker"]))
        self.store = child("state store", store_command(self._ports["state store"]))
        self.gateway = child("gateway", [*agenttrust, "gateway"])
        roles = ("ingest", "evaluate", *(("parse",) if settings.llm_url else ()))
        self.workers = [
            child(f"worker {role}", [*agenttrust, "worker", "--roles", role], number)
            for number, role in enumerate(roles, 1)
        ]
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self, step: Step) -> None:
        """Starts everything in order; returns when spans are read. Raises UserError."""
        with step("broker and state store"):
            for part in (self.broker, self.store):
                await part.start()
                await self._answers(part)
        with step("topics"):
            await create(self.settings)
        with step("gateway"):
            self._keep(self.gateway)
            await self._answers(self.gateway)
        with step("workers"):
            for worker in self.workers:
                self._keep(worker)
            await _reading(self.settings)

    def _keep(self, child: Child) -> None:
        self._keeping.append(asyncio.create_task(child.keep(self._tell)))

    async def _answers(self, part: Child) -> None:
        """Waits until something listens on the part's port."""
        deadline = time.monotonic() + _START
        while time.monotonic() < deadline:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._ports[part.name])
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
        raise UserError(f"the {part.name} does not start", *part.last_lines())

    async def lost(self) -> None:
        """Waits for the end of a part that cannot be started again; raises UserError then."""
        waits = {asyncio.create_task(p.ended()): p for p in (self.broker, self.store)}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            raise UserError(f"the {waits[done.pop()].name} ended, and all state with it")
        finally:
            for task in waits:
                task.cancel()

    async def stop(self) -> None:
        """Ends every child, those that write before those that keep."""
        await asyncio.gather(*(child.stop() for child in (self.gateway, *self.workers)))
        await asyncio.gather(*self._keeping)
        await asyncio.gather(self.broker.stop(), self.store.stop())


@asynccontextmanager
async def running(
    settings: Settings, tell: Callable[[str], None], step: Step
) -> AsyncIterator[Deployment]:
    """A started deployment; on the way out every process is ended and its log removed."""
    folder = Path(tempfile.mkdtemp(prefix="agenttrust-"))
    deployment = Deployment(settings, folder, tell)
    try:
        await deployment.start(step)
        yield deployment
    finally:
        await deployment.stop()
        shutil.rmtree(folder, ignore_errors=True)


def port(address: str) -> int:
    """Port of `host:port`, whatever stands before."""
    return int(address.rpartition(":")[2])


async def replay(files: list[OtlpFile], gateway: str) -> None:
    """Posts recorded requests to a gateway with the time between them that they had.

    Comes back as often as an exporter would when the gateway says so. Raises UserError.
    """
    async with aiohttp.ClientSession() as client:
        for wait, file in gaps(files):
            await asyncio.sleep(wait)
            url = f"http://{gateway}/v1/{file.signal}"
            headers = {"Content-Type": file.media}
            for _ in range(_ATTEMPTS):
                status = 503
                with suppress(aiohttp.ClientConnectionError):
                    async with client.post(url, data=file.body, headers=headers) as answer:
                        status = answer.status
                if status != 503:
                    break
                await asyncio.sleep(1)
            if status != 200:
                raise UserError(f"{file.path}: the gateway says {status}")


async def _reading(settings: Settings) -> None:
    """Waits until a span has come through the gateway and ingest to the journal.

    A consumer group takes seconds to form; runs sent before would not be judged while they stream.
    The span is no agent's and part of no run, so nothing is published for it.
    """
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    service = settings.services[0] if settings.services else "agenttrust-dev"
    resource.resource.attributes.add(key="service.name").value.string_value = service
    resource.scope_spans.add().spans.add(
        name="probe", trace_id=secrets.token_bytes(16), span_id=secrets.token_bytes(8)
    )
    consumer = AIOKafkaConsumer(
        plan(settings).journal.name,
        **settings.kafka_args(),
        group_id=None,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        probe = OtlpFile(Path("probe"), "traces", PROTOBUF, request.SerializeToString())
        await replay([probe], settings.gateway_listen)
        with suppress(TimeoutError):  # slow; what is sent now is judged later
            await asyncio.wait_for(consumer.getone(), _START)
    finally:
        await consumer.stop()
