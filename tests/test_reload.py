"""Contracts that change while a run goes on, through real workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Record
from streams.events import EventWriter
from tests.deployment import otlp_trace
from tests.recordings import trace_id
from tests.services import broker, redis_url  # noqa: F401
from tests.stream import Stream, started

pytestmark = [pytest.mark.services, pytest.mark.slow]

VERSION_3 = """
contract: desk
version: 3
applies_to: {service: desk}
grounding: "off"
forbidden_tools: [ticket.get]
"""
VERSION_4 = VERSION_3.replace("version: 3", "version: 4").replace("ticket.get", "ticket.search")


@pytest.fixture
def stream(broker, redis_url, tmp_path_factory) -> Iterator[Stream]:  # noqa: F811
    contracts = {"desk": VERSION_3}
    with started(broker, redis_url, tmp_path_factory.mktemp("reload"), contracts) as stream:
        yield stream


def test_a_run_is_judged_by_the_contracts_that_it_began_under(stream):
    tools = ["ticket.search", "ticket.get"]
    old, new = trace_id(), trace_id()
    first, *rest = requests_of(old, tools)
    stream.send(first)
    stream.wait(lambda: stream.labels(old), "the first label")
    before = stream.policy_sets[-1]
    contracts = stream.deployment.settings.contracts
    (contracts / "new").write_text(VERSION_4)
    (contracts / "new").replace(contracts / "desk.yaml")
    stream.wait(lambda: stream.policy_sets[-1].digest != before.digest, "the new policy set")
    after = stream.policy_sets[-1]
    stream.send(*rest, *requests_of(new, tools))
    stream.judged(old, new)
    for trajectory, version, policy_set, tool in (
        (old, 3, before, "ticket.get"),
        (new, 4, after, "ticket.search"),
    ):
        labels, violations = stream.labels(trajectory), stream.violations(trajectory)
        assert labels[-1].violations == ("POLICY_TOOL_FORBIDDEN",)
        assert {label.contract.version for label in labels} == {version}
        assert {label.policy_set for label in labels} == {policy_set.digest}
        assert [(v.tool, v.contract.version) for v in violations] == [(tool, version)]
    stamps = {
        decoded.policy_set
        for _, decoded in stream.journal()
        for arrival in decoded.arrivals
        if arrival.trajectory == old
    }
    assert stamps == {before.digest, after.digest}
    for trajectory in (old, new):
        assert replayed(stream, trajectory) == {
            event.id: written(record) for record, event in stream.records(trajectory)
        }


def requests_of(trajectory: str, tools: list[str]) -> list[ExportTraceServiceRequest]:
    bodies = otlp_trace(trajectory, tools, service="desk")
    return [ExportTraceServiceRequest.FromString(body) for body in bodies]


def written(record) -> tuple:
    """All that a subscriber sees of a message."""
    return record.topic, record.partition, record.key, record.value, list(record.headers)


def replayed(stream: Stream, trajectory: str) -> dict[str, tuple]:
    """By id, the events of a trajectory from the journal alone, in memory."""
    publisher = MemoryPublisher()
    engine = Engine(MemoryStore(), publisher, MemoryPolicySets(*stream.policy_sets))
    journal = stream.journal()

    async def fold() -> None:
        for raw, decoded in journal:
            record = Record(raw.offset, raw.timestamp, decoded.policy_set, decoded.arrivals)
            await engine.apply(raw.partition, [record], epoch=0)

    asyncio.run(fold())
    writer = EventWriter(
        labels=stream.plan.labels.name,
        violations=stream.plan.violations.name,
        partitions=stream.deployment.settings.partitions,
    )
    events = [event for event in publisher.events if event.trajectory == trajectory]
    messages = {event.id: writer.message(event) for event in events}
    return {
        id_: (m.topic, m.partition, m.key, m.value, list(m.headers)) for id_, m in messages.items()
    }
