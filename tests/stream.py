"""A whole stream for tests: gateway, broker, workers, and everything in the topics as it comes."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import jsonschema
from aiokafka import AIOKafkaConsumer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.contract import PolicySet
from monitor.label import Event, Label, Violation
from monitor.model import Arrival, Observed
from streams.events import read
from streams.journal import Decoded, decode
from tests.deployment import Deployment, Process, otlp_trace, settings
from tests.recordings import merged, observed, trace_id
from tests.services import ROOT, free_port, listening, wait_for

SLOW = 30.0
"""Seconds within which anything must happen."""
FENCE = """
contract: fence
version: 1
applies_to: {service: fence}
grounding: "off"
forbidden_tools: [ticket.purge]
"""


def published_schemas() -> dict[str, Any]:
    """By `ce_type`, a validator of the schema that docs/events.md shows."""
    page = (ROOT / "docs" / "events.md").read_text()
    blocks = re.findall(r"`ce_type: ([\w.]+)`\n\n```json\n(.*?)```", page, re.DOTALL)
    schemas = {kind: json.loads(text) for kind, text in blocks}
    return {kind: jsonschema.Draft202012Validator(schema) for kind, schema in schemas.items()}


class Stream:
    """Topics read from their start, without a break, while the tests go on."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.plan = deployment.plan
        self.letters: list[Any] = []
        self.policy_sets: list[PolicySet] = []
        self._journal: list[tuple[Any, Decoded]] = []
        self._events: dict[str, list[tuple[Any, Event]]] = defaultdict(list)
        self._schemas = published_schemas()
        self._failed: list[BaseException] = []
        self._stopping = threading.Event()
        self.workers: list[Process] = []

    # -- reading -----------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        thread = threading.Thread(target=self._read_until_stopped)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(SLOW)
        assert not self._failed, self._failed

    def _read_until_stopped(self) -> None:
        try:
            asyncio.run(self._read())
        except BaseException as error:  # noqa: BLE001 - told by `wait` to the test that runs
            self._failed.append(error)

    async def _read(self) -> None:
        plan = self.plan
        taken: dict[str, Callable[[Any], None]] = {
            plan.labels.name: self._take_event,
            plan.violations.name: self._take_event,
            plan.dead_letters.name: self.letters.append,
            plan.journal.name: self._take_journal,
            plan.contracts.name: lambda r: self.policy_sets.append(PolicySet.decode(r.value)),
        }
        consumer = AIOKafkaConsumer(
            *taken,
            bootstrap_servers=self.deployment.settings.kafka_bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        try:
            while not self._stopping.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        taken[record.topic](record)
        finally:
            await consumer.stop()

    def _take_event(self, record: Any) -> None:
        event = read(record.headers, record.value)
        headers = dict(record.headers)
        self._schemas[headers["ce_type"].decode()].validate(json.loads(record.value))
        assert headers["ce_specversion"] == b"1.0"
        assert headers["content-type"] == b"application/json"
        assert record.key.decode() == event.trajectory == event.body.trajectory_id
        self._events[event.trajectory].append((record, event))

    def _take_journal(self, record: Any) -> None:
        partitions = self.deployment.settings.partitions
        self._journal.append((record, decode(record.value, record.partition, partitions)))

    # -- what was read -----------------------------------------------------------------------

    def journal(self) -> list[tuple[Any, Decoded]]:
        """Every record read so far, partition by partition."""
        return sorted(self._journal, key=lambda pair: (pair[0].partition, pair[0].offset))

    def arrivals(self, trajectory: str) -> list[Arrival]:
        return [
            arrival
            for _, decoded in self.journal()
            for arrival in decoded.arrivals
            if arrival.trajectory == trajectory
        ]

    def records(self, trajectory: str) -> list[tuple[Any, Event]]:
        """Kafka records of a trajectory with the events in them."""
        return list(self._events[trajectory])

    def labels(self, trajectory: str) -> list[Label]:
        bodies = (event.body for _, event in self.records(trajectory))
        return sorted((b for b in bodies if isinstance(b, Label)), key=lambda b: b.revision)

    def violations(self, trajectory: str) -> list[Violation]:
        return [e.body for _, e in self.records(trajectory) if isinstance(e.body, Violation)]

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Fails when it takes too long, and at once when a worker ends or an event is not valid."""
        wait_for(lambda: self._failed or self._ended() or condition(), what, SLOW)
        assert not self._failed, self._failed
        assert not self._ended(), self._ended()

    def _ended(self) -> list[str]:
        return [worker.said[-3000:] for worker in self.workers if worker.status is not None]

    # -- sending -----------------------------------------------------------------------------

    def post(
        self, body: bytes, media: str = "application/x-protobuf", *, zipped: bool = False
    ) -> None:
        """One export request; returns when the gateway has answered 200."""
        headers = {"Content-Type": media} | ({"Content-Encoding": "gzip"} if zipped else {})
        request = urllib.request.Request(
            f"http://{self.deployment.settings.gateway_listen}/v1/traces",
            gzip.compress(body) if zipped else body,
            headers,
        )
        with urllib.request.urlopen(request, timeout=SLOW) as answer:
            assert answer.status == 200

    def send(self, *requests: ExportTraceServiceRequest) -> None:
        """Exports requests as one, whose order is kept; returns when its spans are in the journal.

        Between requests nobody keeps an order: the spans topic has several partitions.
        """
        request = merged(requests)
        self.post(request.SerializeToString())
        wanted = {(span.trajectory, span.span_id) for span in observed(request)}

        def there() -> bool:
            seen = (a for t in {t for t, _ in wanted} for a in self.arrivals(t))
            return wanted <= {
                (a.trajectory, a.span.span_id) for a in seen if isinstance(a, Observed)
            }

        self.wait(there, "the spans in the journal")

    def fence(self, *trajectories: str) -> None:
        """Returns when all that was published for trajectories is read: after each, a run of the
        same partition has been told of in both topics."""
        others = [trace_id(like=trajectory) for trajectory in trajectories]
        for other in others:
            self.post(otlp_trace(other, ["ticket.purge"], service="fence")[0])
        self.wait(
            lambda: all(self.labels(other) and self.violations(other) for other in others),
            "the events of the fence",
        )

    def judged(self, *trajectories: str, verdict: str | None = None) -> list[Label]:
        """The final labels, those with a given verdict if there may be several. Every event of the
        trajectories is read by then."""

        def found(trajectory: str) -> bool:
            last = self.labels(trajectory)[-1:]
            return any(b.phase == "final" and verdict in {None, b.verdict} for b in last)

        self.wait(lambda: all(map(found, trajectories)), f"final labels of {trajectories}")
        self.fence(*trajectories)
        return [self.labels(trajectory)[-1] for trajectory in trajectories]


@contextmanager
def gateway(deployment: Deployment) -> Iterator[None]:
    """The gateway as a child process on the address that the settings name."""
    with (deployment.folder / "gateway.log").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "streams", "gateway"],
            stdout=out, stderr=out, cwd=ROOT, env=deployment.environment(),
        )  # fmt: skip
    try:
        port = int(deployment.settings.gateway_listen.rpartition(":")[2])
        wait_for(lambda: listening(port) or process.poll() is not None, "the gateway")
        assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def started(
    broker: str, redis_url: str, folder: Path, contracts: dict[str, str], **more: Any
) -> Iterator[Stream]:
    """Gateway and workers as child processes, judging by these contracts; ready when it yields.

    The topics' prefix is the folder's name.
    """
    files = folder / "contracts"
    files.mkdir()
    for name, text in (contracts | {"fence": FENCE}).items():
        (files / f"{name}.yaml").write_text(text)
    address = f"127.0.0.1:{free_port()}"
    chosen = {"settle_delay": "1s", "idle_timeout": "6s", "session_timeout": "6s"} | more
    deployment = Deployment(
        settings(broker, redis_url, folder.name, contracts=files, gateway_listen=address, **chosen),
        folder,
    )
    deployment.create()
    with ExitStack() as stack:
        stack.enter_context(gateway(deployment))
        stream = Stream(deployment)
        stream.workers += (
            stack.enter_context(deployment.worker(r)) for r in ("ingest", "evaluate")
        )
        stack.enter_context(stream.reading())
        stream.fence(trace_id())
        yield stream
        assert [worker.stop() for worker in stream.workers] == [0, 0]
