"""The two roles as processes, on a broker and a state store: spans in, events out."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import defaultdict

import pytest
import redis

from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Record
from streams.events import EventWriter, read
from streams.policy_sets import policy_set
from tests.deployment import CONTRACT, Deployment, otlp_trace, settings
from tests.services import broker, redis_url, wait_for  # noqa: F401

pytestmark = pytest.mark.services
NUMBERS = itertools.count()


@pytest.fixture
def deployment(broker, redis_url, tmp_path) -> Deployment:  # noqa: F811
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "desk.yaml").write_text(CONTRACT)
    prefix = f"workers{next(NUMBERS)}"
    made = Deployment(settings(broker, redis_url, prefix, contracts=contracts), tmp_path)
    made.create()
    return made


def traces(count: int, *, tools: int = 3) -> list[list[bytes]]:
    names = ["ticket.search", "ticket.get", "ticket.purge"]
    return [
        otlp_trace(
            os.urandom(16).hex(), [names[(n + i) % (2 + (n % 5 == 0))] for i in range(tools)]
        )
        for n in range(count)
    ]


def interleaved(runs: list[list[bytes]]) -> list[bytes]:
    return [value for values in zip(*runs, strict=True) for value in values]


def events(deployment: Deployment) -> dict[str, list[tuple[bytes, ...]]]:
    """By id, every copy of an event, in every detail that a subscriber sees."""
    found = defaultdict(list)
    plan = deployment.plan
    for topic in (plan.labels.name, plan.violations.name):
        for record in deployment.read(topic):
            event = read(record.headers, record.value)
            headers = tuple(f"{name}={value!r}".encode() for name, value in record.headers)
            found[event.id].append(
                (
                    record.topic.encode(),
                    b"%d" % record.partition,
                    record.key,
                    record.value,
                    *headers,
                )
            )
    return found


def closed(deployment: Deployment) -> set[str]:
    labels = (read(r.headers, r.value) for r in deployment.read(deployment.plan.labels.name))
    return {event.trajectory for event in labels if event.body.phase == "final"}


def replayed(deployment: Deployment) -> dict[str, tuple[bytes, ...]]:
    """The journal through the same engine, in memory, without a crash."""
    chosen = deployment.settings
    store, publisher = MemoryStore(), MemoryPublisher()
    engine = Engine(
        store,
        publisher,
        MemoryPolicySets(policy_set(chosen)),
        settle_delay=round(chosen.settle_delay * 1000),
        idle_timeout=round(chosen.idle_timeout * 1000),
    )

    journal = deployment.journal()

    async def fold() -> None:
        for raw, decoded in journal:
            record = Record(raw.offset, raw.timestamp, decoded.policy_set, decoded.arrivals)
            await engine.apply(raw.partition, [record], epoch=0)

    asyncio.run(fold())
    writer = EventWriter(
        labels=deployment.plan.labels.name,
        violations=deployment.plan.violations.name,
        partitions=chosen.partitions,
    )
    messages = {event.id: writer.message(event) for event in publisher.events}
    return {
        name: (
            *(m.topic.encode(), b"%d" % m.partition, m.key, m.value),
            *(f"{header}={value!r}".encode() for header, value in m.headers),
        )
        for name, m in messages.items()
    }


def test_spans_become_events_and_bad_bytes_dead_letters(deployment):
    [good, bad] = otlp_trace("1" * 32, ["ticket.search"]), otlp_trace("2" * 32, ["ticket.purge"])
    headless = otlp_trace("3" * 32, [])[0].replace(bytes.fromhex("3" * 32), b"\0" * 16)
    with deployment.worker("ingest,evaluate") as worker:
        deployment.send([b"junk", *good, b"", headless, *bad])
        wait_for(lambda: len(closed(deployment)) == 2, "two final labels", 60)
        assert worker.stop() == 0
    final = {}
    for record in deployment.read(deployment.plan.labels.name):
        event = read(record.headers, record.value)
        final[event.trajectory] = event.body
    assert {t: (b.verdict, b.violations, b.closed) for t, b in final.items()} == {
        "1" * 32: ("trusted", (), "root_settled"),
        "2" * 32: ("violated", final["2" * 32].violations, "root_settled"),
    }
    assert "POLICY_TOOL_FORBIDDEN" in final["2" * 32].violations
    letters = deployment.read(deployment.plan.dead_letters.name)
    assert {letter.value for letter in letters} > {b"junk"}
    assert {dict(letter.headers)["reason"].split(b":")[0] for letter in letters} == {
        b"not_otlp",
        b"bad_id",
    }
    [policy] = deployment.read(deployment.plan.contracts.name)
    assert policy.key.decode() == policy_set(deployment.settings).digest
    assert {d.policy_set for _, d in deployment.journal()} == {policy.key.decode()}


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_worker_whose_clock_is_wrong_closes_what_has_settled_and_nothing_that_lives(
    deployment, monkeypatch, tmp_path, ahead
):
    deployment.settings = deployment.settings.model_copy(update={"idle_timeout": 120.0})
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "sitecustomize.py").write_text(
        f"import time\nright = time.time\ntime.time = lambda: right() + {ahead}\n"
    )
    living, whole = (otlp_trace(digit * 32, ["ticket.search"] * 3) for digit in "12")
    with deployment.worker("ingest"):
        monkeypatch.setenv("PYTHONPATH", str(wrong))
        with deployment.worker("evaluate") as worker:
            deployment.send([living[0], *whole])
            wait_for(lambda: closed(deployment), "a final label", 60)
            assert closed(deployment) == {"2" * 32}
            deployment.send(living[1:])
            wait_for(lambda: len(closed(deployment)) == 2, "the other one", 60)
            assert worker.stop() == 0
    for record in deployment.read(deployment.plan.labels.name):
        label = read(record.headers, record.value).body
        assert label.closed in {None, "root_settled"}
        assert "late" not in label.coverage.reasons


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_workers_lose_no_event_and_repeat_them_byte_for_byte(deployment):
    runs = traces(150)
    values = interleaved(runs)
    values[100:100] = [b"poison"]
    with (
        deployment.worker("ingest") as ingest,
        deployment.worker("evaluate", "a") as a,
        deployment.worker("evaluate", "b") as b,
    ):
        for worker in (ingest, a, b):
            wait_for(lambda w=worker: "partitions of" in w.said, "a worker to join", 60)
        for part, victim in enumerate((a, ingest, b)):
            third = len(values) // 3 + 1
            deployment.send(values[part * third : (part + 1) * third], seconds=3)
            victim.signal(signal.SIGKILL)
            victim.kill()
            victim.start()
        wait_for(lambda: len(closed(deployment)) == len(runs), "every run to be closed", 120)
        # A span that a kill has delayed may come after its run's close, and revises the label.
        wait_for(lambda: set(replayed(deployment)) <= set(events(deployment)), "every event", 60)
        assert [worker.stop() for worker in (ingest, a, b)] == [0, 0, 0]
    expected, found = replayed(deployment), events(deployment)
    assert set(found) == set(expected)
    for name, copies in found.items():
        assert set(copies) == {expected[name]}
    letters = {letter.value for letter in deployment.read(deployment.plan.dead_letters.name)}
    assert letters == {b"poison"}
    assert len(found) >= len(runs)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_flushed_store_ends_the_worker_and_is_rebuilt_by_the_next(deployment):
    runs = traces(20)
    values = interleaved(runs)
    half = len(values) // 2
    with deployment.worker("ingest"), deployment.worker("evaluate") as evaluate:
        wait_for(lambda: "partitions of" in evaluate.said, "the worker to join", 60)
        deployment.send(values[:half])
        wait_for(lambda: len(deployment.journal()) >= 4, "the first half in the journal", 60)
        with redis.Redis.from_url(deployment.settings.redis_url) as client:
            wait_for(
                lambda: client.keys(f"{{{deployment.settings.topic_prefix}:*:w"),
                "state in the store",
                60,
            )
            # At once, as a flush does: keys deleted one by one would leave a state that no
            # failure of a Redis leaves, some of it newer than the rest.
            client.eval(
                "for _, key in ipairs(redis.call('KEYS', ARGV[1])) do redis.call('DEL', key) end",
                0,
                f"{{{deployment.settings.topic_prefix}:*",
            )
        deployment.send(values[half:])
        wait_for(lambda: evaluate.status is not None, "the worker to end", 60)
        assert evaluate.status == 1
        assert "StoreBehind" in evaluate.said
        evaluate.start()
        wait_for(lambda: len(closed(deployment)) == len(runs), "every run to be closed", 60)
        assert evaluate.stop() == 0
    expected, found = replayed(deployment), events(deployment)
    assert set(found) == set(expected)
    for name, copies in found.items():
        assert set(copies) == {expected[name]}
