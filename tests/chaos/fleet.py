"""A fleet under test: workers that are started again whenever they end, load, and the verdict.

What must hold whatever breaks (`World.check`):

- every run that was sent has a final label, and it says what was built into the run;
- every copy of an event is the same, byte for byte;
- `agenttrust replay --verify` finds nothing missing, extra or changed;
- the dead letters are the poison that was sent, nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from deploy.local.server import ROOT, Server, free_port
from monitor.label import Label
from streams.events import read
from tests.deployment import CONTRACT, Deployment, otlp_trace, settings
from tests.services import wait_for

WAVE = 100
"""Runs that go on at the same time."""
PER_MESSAGE = 10
"""Spans of a message."""
DEADLINE = 120.0
SETTLED = 240.0
"""Seconds that a fault and everything after it may take on a machine that is busy otherwise."""


class FaultError(AssertionError):
    """Something is lost or contradicts itself. A machine that stalls does not do that, so a test that
    ends with it is not run again."""


@contextlib.contextmanager
def no_matter_of_time() -> Iterator[None]:
    """What is not as it must be in here is a fault."""
    try:
        yield
    except AssertionError as error:
        raise FaultError(str(error)) from error


@dataclass
class Run:
    """One trajectory: what was sent and what must come out."""

    trace: str
    spans: list[bytes]
    verdict: str
    reasons: tuple[str, ...] = ()


@dataclass
class Load:
    """Messages in the order in which they are sent, and what must become of them."""

    runs: list[Run] = field(default_factory=list)
    messages: list[bytes] = field(default_factory=list)
    poison: list[bytes] = field(default_factory=list)

    @property
    def spans(self) -> int:
        return sum(len(run.spans) for run in self.runs)


def trace_id(partition: int | None = None, partitions: int = 4) -> str:
    first = int.from_bytes(os.urandom(8), "big")
    if partition is not None:
        first += (partition - first) % partitions
    return f"{first % 2**64:016x}" + os.urandom(8).hex()


def run(number: int, tools: int, trace: str | None = None) -> Run:
    """Every fifth run calls a tool that is forbidden."""
    names = ["ticket.search", "ticket.get"]
    called = [names[(number + n) % 2] for n in range(tools)]
    bad = number % 5 == 0
    if bad:
        called[tools // 2] = "ticket.purge"
    name = trace or trace_id()
    return Run(name, shown(otlp_trace(name, called)), "violated" if bad else "trusted")


def shown(spans: list[bytes]) -> list[bytes]:
    """The spans with what the model was asked."""
    asked = '[{"role": "user", "parts": [{"type": "text", "content": "Is the printer broken?"}]}]'
    request = ExportTraceServiceRequest.FromString(spans[-2])
    [span] = request.resource_spans[0].scope_spans[0].spans
    span.attributes.add(key="gen_ai.input.messages").value.string_value = asked
    return [*spans[:-2], request.SerializeToString(), spans[-1]]


def load(count: int, tools: int = 8, *, poison: int = 0, seed: int = 1) -> Load:
    """Runs of `tools` + 2 spans, in waves; spans of several runs in a message. Of the `poison`, half
    is no OTLP at all and half spoils a trusted run: its label must say `lost_arrival`.
    """
    made = Load([run(n, tools) for n in range(count)])
    for first in range(0, count, WAVE):
        wave = made.runs[first : first + WAVE]
        rounds = [span for spans in zip(*(r.spans for r in wave), strict=True) for span in spans]
        made.messages += (
            b"".join(rounds[n : n + PER_MESSAGE]) for n in range(0, len(rounds), PER_MESSAGE)
        )
    dice = random.Random(seed)
    good = [r for r in made.runs if r.verdict == "trusted"]
    for number in range(poison):
        if number % 2:
            spoilt = dice.choice(good)
            good.remove(spoilt)
            spoilt.verdict, spoilt.reasons = "unassessed", ("lost_arrival",)
            bad = _without_span_id(spoilt.spans[0])
        else:
            bad = f"poison {seed} {number}".encode()
        made.poison.append(bad)
        made.messages.insert(dice.randrange(len(made.messages)), bad)
    return made


def _without_span_id(request: bytes) -> bytes:
    found = ExportTraceServiceRequest.FromString(request)
    found.resource_spans[0].scope_spans[0].spans[0].span_id = b""
    return found.SerializeToString()


class Worker(Server):
    """A worker process of one role, with its health and metrics on a port of its own."""

    def __init__(self, command: Sequence[str], port: int, log: Path, role: str) -> None:
        super().__init__(command, port, log, ready=lambda _: True)
        self.role = role
        self.name = log.stem
        self.life = 0
        self.exits: list[int] = []
        self.expected = False
        """It is being ended by the test."""

    @property
    def status(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def partitions(self) -> list[int] | None:
        """What its group has given it last in this life; None before the first time."""
        given = re.findall(r"partitions of \S+: \[(.*)\]", self.said())
        return [int(n) for n in given[-1].split(",") if n] if given else None

    @property
    def joined(self) -> bool:
        return self.partitions is not None

    def fetch(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)


class World:
    """A deployment with its fleet. Use as a context manager; `check` is the verdict."""

    def __init__(self, kafka: str, redis_url: str, folder: Path, **more: Any) -> None:
        contracts = folder / "contracts"
        contracts.mkdir()
        (contracts / "desk.yaml").write_text(CONTRACT)
        given = {
            "contracts": contracts,
            "session_timeout": "6s",
            "settle_delay": "1s",
            "idle_timeout": "20s",
        }
        prefix = f"chaos-{os.urandom(3).hex()}"
        self.settings = settings(kafka, redis_url, prefix, **(given | more))
        self.deployment = Deployment(self.settings, folder)
        self.plan = self.deployment.plan
        self.workers: list[Worker] = []
        self.sent = Load()
        self._seen: dict[tuple[str, int], dict[str, float]] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Self:
        self.deployment.create()
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()
        for worker in self.workers:
            with contextlib.suppress(ProcessLookupError):
                worker.thaw()
            worker.kill()

    # -- workers -------------------------------------------------------------------------------

    def command(
        self, role: str, port: int, program: Sequence[str] = ("-m", "streams")
    ) -> list[str]:
        env = {
            k: v for k, v in self.deployment.environment().items() if k.startswith("AGENTTRUST_")
        }
        env["AGENTTRUST_HTTP_LISTEN"] = f"127.0.0.1:{port}"
        given = [f"{name}={value}" for name, value in env.items()]
        return ["env", *given, sys.executable, *program, "worker", "--roles", role]

    def add(self, role: str, *, program: Sequence[str] = ("-m", "streams")) -> Worker:
        """One more worker process of a role, kept alive from now on."""
        port = free_port()
        number = sum(w.role == role for w in self.workers) + 1
        log = self.deployment.folder / f"{role}-{number}.log"
        worker = Worker(self.command(role, port, program), port, log, role)
        worker.launch()
        with self._lock:
            self.workers.append(worker)
        return worker

    def fleet(self, ingest: int = 1, evaluate: int = 2) -> Self:
        """Starts workers and waits until all have joined their groups."""
        for role, count in (("ingest", ingest), ("evaluate", evaluate)):
            for _ in range(count):
                self.add(role)
        self.ready()
        return self

    def ready(self) -> None:
        self.wait(lambda: all(w.joined for w in self.of()), "every worker to join")

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Until it holds; a failure is told with the logs."""
        try:
            wait_for(condition, what, DEADLINE)
        except pytest.fail.Exception as error:
            raise AssertionError(self.told(str(error))) from None

    def under_way(self, labels: int = 50) -> None:
        """Until runs that are being sent have so many labels: a fault now is one under load."""
        seen = self._labelled()
        self.wait(lambda: self._labelled() >= seen + labels, f"{labels} labels")

    def _labelled(self) -> int:
        """Labels that workers have told of; cheaper than to read them."""
        return int(self.metric(r"agenttrust_labels_published_total(\{.*)?"))

    def of(self, role: str | None = None) -> list[Worker]:
        with self._lock:
            return [w for w in self.workers if role in (None, w.role) and not w.expected]

    def kill(self, worker: Worker) -> None:
        """SIGKILL; it is started again at once."""
        with self._lock:
            worker.kill()
            worker.life += 1
            worker.launch()

    def stop(self, worker: Worker) -> int | None:
        """SIGTERM, for good; the exit status."""
        with self._lock:
            worker.expected = True
        worker.stop()
        return worker.status

    def _keep(self) -> None:
        """Starts workers again when they end, as a supervisor does, and reads their metrics."""
        while not self._over.wait(0.4):
            for worker in self.of():
                with self._lock:
                    if not worker.running and not worker.expected:
                        worker.exits.append(worker.status or 0)
                        worker.life += 1
                        worker.launch()
                self._read_metrics(worker)

    def _read_metrics(self, worker: Worker) -> None:
        life = worker.life
        with contextlib.suppress(OSError, ValueError):
            status, body = worker.fetch("/metrics")
            found = {}
            for line in body.splitlines() if status == 200 else ():
                if not line.startswith("#"):
                    name, _, value = line.rpartition(" ")
                    found[name] = float(value)
            if found and life == worker.life:
                self._seen[worker.name, life] = found

    def metric(self, name: str, worker: Worker | None = None) -> float:
        """A counter over all workers, or one of them, and their lives, as far as it was read;
        `name` is a regular expression for the series."""
        pattern = re.compile(name)
        lives = [v for (who, _), v in self._seen.items() if worker is None or who == worker.name]
        return sum(v for life in lives for n, v in life.items() if pattern.fullmatch(n))

    def gauge(self, name: str) -> float:
        """The largest value of a gauge over the workers, as read last."""
        lives = [(w.name, w.life) for w in self.of()]
        return max((self._seen.get(one, {}).get(name, 0.0) for one in lives), default=0.0)

    # -- load ----------------------------------------------------------------------------------

    def send(self, given: Load, *, seconds: float = 0.0) -> None:
        """Sends everything, spread over `seconds`."""
        self._note(given)
        self.deployment.send(given.messages, seconds=seconds)

    @contextlib.contextmanager
    def sending(self, given: Load, *, seconds: float) -> Iterator[None]:
        """Sends meanwhile; returns when all is sent."""
        self._note(given)
        failed: list[BaseException] = []

        def send() -> None:
            try:
                self.deployment.send(given.messages, seconds=seconds)
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            thread.join()
        assert not failed, failed

    def _note(self, given: Load) -> None:
        self.sent.runs += given.runs
        self.sent.poison += given.poison

    # -- what came out -------------------------------------------------------------------------

    def labels(self) -> dict[str, Label]:
        """By trajectory, the label of the highest revision."""
        found: dict[str, Label] = {}
        for record in self.deployment.read(self.plan.labels.name):
            body = read(record.headers, record.value).body
            assert isinstance(body, Label)
            if (
                body.trajectory_id not in found
                or body.revision >= found[body.trajectory_id].revision
            ):
                found[body.trajectory_id] = body
        return found

    def closed(self) -> int:
        return sum(label.phase == "final" for label in self.labels().values())

    @no_matter_of_time()
    def settle(self, seconds: float = SETTLED) -> None:
        """Waits until every run that was sent is closed, and told what it has lost: poison may be
        read long after the run that it belongs to."""
        deadline = time.monotonic() + seconds
        while True:
            labels = self.labels()
            open_ = [run for run in self.sent.runs if not _settled(run, labels.get(run.trace))]
            if not open_:
                return
            assert time.monotonic() < deadline, self.told(
                f"{len(open_)} runs were not closed in {seconds:g} s, the first {open_[0].trace}: "
                f"{labels.get(open_[0].trace)}"
            )
            time.sleep(1.0)

    def told(self, what: str) -> str:
        """A failure's message with the end of every log."""
        ends = []
        for worker in self.workers:
            lines = worker.log.read_text(errors="replace").splitlines()
            loud = [line for line in lines if " INFO " not in line][-12:]
            ends += [f"--- {worker.name} (exits {worker.exits})", *(line[:300] for line in loud)]
        return "\n".join([what, *ends])

    def copies(self) -> dict[str, set[tuple[Any, ...]]]:
        """By event id, every different copy, in every detail that a subscriber sees."""
        found: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
        for topic in (self.plan.labels.name, self.plan.violations.name):
            for r in self.deployment.read(topic):
                event = read(r.headers, r.value)
                found[event.id].add((r.topic, r.partition, r.key, r.value, tuple(r.headers)))
        return found

    @no_matter_of_time()
    def check(self, *, partial: Iterable[str] = (), verify: bool = True) -> None:
        """The module's verdict. `partial` traces may also say that their history is lost."""
        excused = set(partial)
        labels = self.labels()
        for one in self.sent.runs:
            label = labels[one.trace]
            reasons = set(label.coverage.reasons) - {"late"}
            if one.trace in excused and "history_lost" in reasons:
                assert label.verdict in ("unassessed", "violated")
                continue
            assert (label.verdict, reasons) == (one.verdict, set(one.reasons)), self.told(
                str(label)
            )
        different = {name: found for name, found in self.copies().items() if len(found) > 1}
        assert not different, self.told(f"{len(different)} events came in different copies")
        letters = self.deployment.read(self.plan.dead_letters.name)
        assert {letter.value for letter in letters} == {_letter(p) for p in self.sent.poison}
        if verify:
            self.verify()

    def verify(self) -> dict[str, Any]:
        """`agenttrust replay --verify` of the whole journal; its summary."""
        command = [sys.executable, "-m", "streams", "replay", "--verify", "--json"]
        found = subprocess.run(
            command,
            check=False,
            cwd=ROOT,
            env=self.deployment.environment(),
            capture_output=True,
            text=True,
            timeout=240,
        )
        lines = [json.loads(line) for line in found.stdout.splitlines()]
        assert found.returncode == 0, self.told(
            "\n".join(map(str, lines[-20:])) + found.stderr[-2000:]
        )
        summary = lines[-1]
        assert summary["kind"] == "summary"
        assert summary["alike"]
        return dict(summary)


def _settled(run: Run, label: Label | None) -> bool:
    if label is None or label.phase != "final":
        return False
    return set(run.reasons) <= set(label.coverage.reasons)


def _letter(poison: bytes) -> bytes:
    """What of a bad message lies among the dead letters: all of it, or its bad span."""
    if poison.startswith(b"poison"):
        return poison
    from streams import otlp

    [bad] = [found for found in otlp.decode(poison) if isinstance(found, otlp.BadSpan)]
    return bad.data
