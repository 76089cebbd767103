"""The commands as a user runs them, against a broker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.label import LABEL, VIOLATION
from streams.events import EventWriter
from streams.settings import load
from streams.topics import create, plan
from tests.services import broker, free_port  # noqa: F401
from tests.test_board import label, violation

pytestmark = pytest.mark.services


@pytest.fixture
def deployment(broker):  # noqa: F811
    prefix = f"w{time.time_ns()}"
    settings = load(
        kafka_bootstrap=broker, topic_prefix=prefix, spans_topic=f"{prefix}.s", partitions=2
    )
    asyncio.run(create(settings))
    return settings


def environment(settings) -> dict[str, str]:
    return dict(os.environ) | {
        "AGENTTRUST_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
        "AGENTTRUST_TOPIC_PREFIX": settings.topic_prefix,
        "AGENTTRUST_SPANS_TOPIC": settings.spans_topic,
    }


def agenttrust(settings, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streams", *args],
        env=environment(settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def publish(settings, *events, junk: bytes | None = None) -> None:
    topics = plan(settings)
    writer = EventWriter(labels=topics.labels.name, violations=topics.violations.name, partitions=2)

    async def main():
        producer = AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap, acks="all")
        await producer.start()
        try:
            if junk is not None:
                await producer.send_and_wait(topics.labels.name, junk)
            for event in events:
                m = writer.message(event)
                await producer.send_and_wait(
                    m.topic, m.value, key=m.key, partition=m.partition, headers=m.headers
                )
        finally:
            await producer.stop()

    asyncio.run(main())


def received(settings, count: int) -> list[bytes]:
    async def main():
        consumer = AIOKafkaConsumer(
            settings.spans_topic,
            bootstrap_servers=settings.kafka_bootstrap,
            auto_offset_reset="earliest",
            group_id=None,
        )
        await consumer.start()
        try:
            async with asyncio.timeout(20):
                return [(await consumer.getone()).value for _ in range(count)]
        finally:
            await consumer.stop()

    return asyncio.run(main())


def watching(settings, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streams", "watch", *args],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_watch_prints_events_and_passes_over_what_is_none(deployment):
    publish(
        deployment,
        label(verdict="violated", violations=("POLICY_TOOL_FORBIDDEN",)),
        violation(),
        junk=b"\x1b[2J",
    )
    process = watching(deployment, "--json", "--from-start")
    assert process.stdout is not None
    found = [json.loads(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=30)
    assert process.returncode == 0
    assert {event["type"] for event in found} == {LABEL, VIOLATION}
    assert all(event["specversion"] == "1.0" for event in found)
    assert {event["data"]["trajectory_id"] for event in found} == {"a" * 32}
    assert complaints.count("no event of ours") == 1
    assert "\x1b" not in complaints


def test_watch_without_a_terminal_prints_lines(deployment):
    publish(deployment, violation())
    process = watching(deployment, "--from-start")
    assert process.stdout is not None
    assert "raised POLICY_TOOL_FORBIDDEN: issue_refund is forbidden" in process.stdout.readline()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_watch_ends_when_nobody_reads_although_nothing_happens(deployment):
    publish(deployment, violation())
    process = watching(deployment, "--from-start", "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "POLICY_TOOL_FORBIDDEN" in process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_send_writes_files_as_they_are_and_cuts_what_is_too_large(deployment, tmp_path):
    small, large = ExportTraceServiceRequest(), ExportTraceServiceRequest()
    small.resource_spans.add().scope_spans.add().spans.add(name="small")
    spans = large.resource_spans.add().scope_spans.add().spans
    for _ in range(3):
        spans.add().attributes.add(key="k").value.string_value = "x" * 400_000
    (tmp_path / "0.traces.pb").write_bytes(small.SerializeToString())
    (tmp_path / "1.traces.pb").write_bytes(large.SerializeToString())
    done = agenttrust(deployment, "send", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "2 files sent as 3 messages\n")
    values = received(deployment, 3)
    assert small.SerializeToString() in values
    assert max(map(len, values)) <= deployment.max_message_bytes


def test_a_bad_file_stops_everything_before_anything_is_sent(deployment, tmp_path):
    (tmp_path / "0.pb").write_bytes(b"")
    (tmp_path / "1.pb").write_bytes(b"hello")
    done = agenttrust(deployment, "send", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith(f"agenttrust: {tmp_path}/1.pb: not an OTLP traces request")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["watch"], ["send", __file__.replace(".py", ".json")]])
def test_mistakes_are_one_line_and_status_2(deployment, command):
    broken = deployment.model_copy(update={"kafka_bootstrap": f"127.0.0.1:{free_port()}"})
    done = agenttrust(broken, *command)
    assert done.returncode == 2
    assert done.stderr.startswith("agenttrust: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [["watch"], ["send", "{file}"]])
def test_missing_topics_are_told_and_not_created(deployment, tmp_path, command):
    file = tmp_path / "0.pb"
    file.write_bytes(b"")
    other = deployment.model_copy(update={"topic_prefix": "none", "spans_topic": "none.spans"})
    for _ in range(2):
        done = agenttrust(other, *(part.format(file=file) for part in command))
        assert done.returncode == 2
        assert "run: agenttrust topics create" in done.stderr
