from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from importlib.metadata import entry_points

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from streams import exporter as e
from streams import otlp
from streams.settings import load
from streams.topics import admin
from tests.services import ROOT, broker, free_port, start_broker, wait_for  # noqa: F401


@contextlib.contextmanager
def exporting(bootstrap, topic="otlp_spans", *, batches=True, sampler=None, **limits):
    """An exporter and the tracer of a provider that uses it."""
    exporter = e.KafkaSpanExporter(load(kafka_bootstrap=bootstrap, spans_topic=topic), **limits)
    provider = TracerProvider(sampler, shutdown_on_exit=False)
    processor = BatchSpanProcessor if batches else SimpleSpanProcessor
    provider.add_span_processor(processor(exporter))
    try:
        yield exporter, provider.get_tracer("t")
    finally:
        provider.shutdown()


def with_topic(bootstrap):
    """A new topic."""
    topic = f"spans-{time.time_ns()}"

    async def main():
        async with admin(load(kafka_bootstrap=bootstrap)) as client:
            await client.create_topics([NewTopic(topic, 3, 1)])

    asyncio.run(main())
    return topic


def read(bootstrap, topic, spans):
    """(key, span names) of the messages that hold `spans` spans in all."""

    async def main():
        found = []
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
        ) as consumer:
            async with asyncio.timeout(30):
                while sum(len(names) for _, names in found) < spans:
                    message = await consumer.getone()
                    request = ExportTraceServiceRequest.FromString(message.value)
                    names = [
                        s.name
                        for r in request.resource_spans
                        for c in r.scope_spans
                        for s in c.spans
                    ]
                    ids = {s.trace_id for s in otlp.decode(message.value)}
                    assert ids == {message.key.decode()}
                    found.append((message.key.decode(), names))
        return found

    return asyncio.run(main())


def spans(tracer, *names):
    """The trace id of a trace of these spans."""
    with tracer.start_as_current_span(names[0]) as root:
        for name in names[1:]:
            with tracer.start_as_current_span(name):
                pass
    return trace.format_trace_id(root.get_span_context().trace_id)


def away():
    """An address where nobody listens."""
    return f"127.0.0.1:{free_port()}"


def test_it_is_registered_by_name():
    [entry] = entry_points(group="opentelemetry_traces_exporter", name="agenttrust_kafka")
    assert entry.load() is e.KafkaSpanExporter


def test_what_the_agent_loads_is_light():
    code = "import sys, streams.exporter; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = {
        "faust",
        "mode",
        "aiohttp",
        "redis",
        "openai",
        "rich",
        "streams.app",
        "streams.store",
        "yaml",
    }
    assert not heavy & set(done.stdout.split())


@pytest.mark.services
def test_a_batch_is_one_message_a_trace_keyed_by_trace_id(broker):  # noqa: F811
    topic = with_topic(broker)
    with exporting(broker, topic) as (exporter, tracer):
        first, second = spans(tracer, "a", "b", "c"), spans(tracer, "d", "e")
    assert sorted(read(broker, topic, 5)) == sorted(
        [(first, ["b", "c", "a"]), (second, ["e", "d"])]
    )
    assert exporter.dropped == 0


@pytest.mark.services
def test_flush_returns_once_everything_is_written(broker):  # noqa: F811
    topic = with_topic(broker)
    with exporting(broker, topic, batches=False) as (exporter, tracer):
        spans(tracer, *"abcdef")
        assert exporter.force_flush(30_000)
        assert len(read(broker, topic, 6)) == 6


@pytest.mark.services
def test_a_broker_that_comes_later_gets_everything(tmp_path, caplog):
    port = free_port()
    bootstrap = f"127.0.0.1:{port}"
    caplog.set_level(logging.INFO)
    with exporting(bootstrap, "late", batches=False) as (exporter, tracer):
        began = time.monotonic()
        spans(tracer, "a", "b")
        assert time.monotonic() - began < 1
        wait_for(lambda: "cannot be written to" in caplog.text, "the warning")
        assert not exporter.force_flush(10)
        with start_broker(port, tmp_path / "broker.log"):
            spans(tracer, "c")
            assert exporter.force_flush(30_000)
            assert sorted(n for _, names in read(bootstrap, "late", 3) for n in names) == [*"abc"]
    assert exporter.dropped == 0
    assert f"no Kafka broker answers at {bootstrap}" in caplog.text
    assert caplog.text.count("cannot be written to") == 1
    assert "can be written to again" in caplog.text
    assert {r.name for r in caplog.records if r.threadName == e._THREAD} == {"streams.exporter"}


@pytest.mark.services
def test_a_broker_that_is_lost_costs_spans_but_no_time(tmp_path, caplog):
    port = free_port()
    with start_broker(port, tmp_path / "broker.log") as server:
        with exporting(f"127.0.0.1:{port}", "lost", batches=False) as (exporter, tracer):
            spans(tracer, "a")
            assert exporter.force_flush(30_000)
            server.kill()
            began = time.monotonic()
            spans(tracer, "b", "c")
            assert time.monotonic() - began < 1
            wait_for(lambda: "cannot be written to" in caplog.text, "the warning")
            began = time.monotonic()
        assert time.monotonic() - began < 4
    assert exporter.dropped == 2
    assert "2 spans dropped since the start: 2 not written before the end" in caplog.text


@pytest.mark.parametrize("limits", [{"max_spans": 3}, {"max_bytes": 3 * 700}])
def test_beyond_the_queue_new_spans_are_dropped_and_counted(limits, caplog):
    with exporting(away(), batches=False, **limits) as (exporter, tracer):
        for n in range(50):
            with tracer.start_as_current_span(f"s{n}"):
                pass
        held = len(exporter._queue)
        assert 0 < held <= 3 or "max_bytes" in limits
        assert exporter._bytes <= e.MAX_BYTES
        assert exporter.dropped == 50 - held
        kept = [m.number for m in exporter._queue]
        assert kept == list(range(1, held + 1))
    assert exporter.dropped == 50
    assert caplog.text.count("dropped since the start") <= 2
    assert f"{50 - held} the queue is full" in caplog.text


def test_shutdown_is_bounded_and_done_once():
    exporter = e.KafkaSpanExporter(load(kafka_bootstrap=away()))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans(provider.get_tracer("t"), "a")
    began = time.monotonic()
    exporter.shutdown()
    exporter.shutdown()
    assert time.monotonic() - began < 8
    assert not exporter._thread.is_alive()
    assert exporter.export([]) is SpanExportResult.SUCCESS
    spans(provider.get_tracer("t"), "b")
    assert exporter._dropped["exported after the end"] == 1
    assert exporter.force_flush(10)


def test_with_nothing_to_write_shutdown_takes_no_time():
    exporter = e.KafkaSpanExporter(load(kafka_bootstrap=away()))
    began = time.monotonic()
    exporter.shutdown()
    assert time.monotonic() - began < 2


def test_settings_that_cannot_be_used_are_told_and_break_nothing(monkeypatch, caplog):
    monkeypatch.setenv("AGENTTRUST_KAFKA_BOOTSTRAP", "kafka")
    exporter = e.KafkaSpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans(provider.get_tracer("t"), "a")
    assert exporter._thread is None
    assert exporter.force_flush(10)
    provider.shutdown()
    assert "AGENTTRUST_KAFKA_BOOTSTRAP=kafka: not a list of host:port" in caplog.text


@pytest.mark.services
def test_spans_about_its_own_writing_are_not_exported(broker, monkeypatch):  # noqa: F811
    """As an instrumentation of the Kafka client would record them."""
    topic = with_topic(broker)
    traced = threading.Event()
    with exporting(broker, topic, batches=False, sampler=ALWAYS_ON) as (exporter, tracer):
        whole = e.AIOKafkaProducer.send

        async def send(self, *args, **kwargs):
            with tracer.start_as_current_span("send") as span:
                assert span.is_recording()
                result = await whole(self, *args, **kwargs)
            traced.set()
            return result

        monkeypatch.setattr(e.AIOKafkaProducer, "send", send)
        spans(tracer, "a")
        assert traced.wait(30)
        assert exporter.force_flush(30_000)
    assert [names for _, names in read(broker, topic, 1)] == [["a"]]
    assert exporter._last == 1


SHORT_RUN = """
import os, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from streams.exporter import KafkaSpanExporter

exporter = KafkaSpanExporter()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
tracer = provider.get_tracer("t")
with tracer.start_as_current_span("parent"):
    pass
if "fork" in sys.argv:
    pid = os.fork()
    if not pid:
        with tracer.start_as_current_span("child"):
            pass
        provider.shutdown()
        os._exit(exporter.dropped)
    assert os.waitpid(pid, 0)[1] == 0
"""
NAMED_RUN = """
from opentelemetry import trace
from opentelemetry.sdk._configuration import _OTelSDKConfigurator  # what opentelemetry-distro calls

_OTelSDKConfigurator().configure()
with trace.get_tracer("t").start_as_current_span("parent"):
    pass
"""


@pytest.mark.services
@pytest.mark.parametrize("how", ["end", "fork", "by name"])
def test_a_short_run_and_a_forked_child_write_all_their_spans(broker, how):  # noqa: F811
    topic = with_topic(broker)
    subprocess.run(
        [sys.executable, "-c", NAMED_RUN if how == "by name" else SHORT_RUN, how],
        cwd=ROOT,
        env=os.environ
        | {
            "AGENTTRUST_KAFKA_BOOTSTRAP": broker.replace("127.0.0.1", "localhost"),
            "AGENTTRUST_SPANS_TOPIC": topic,
            "OTEL_TRACES_EXPORTER": "agenttrust_kafka",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        },
        check=True,
        timeout=60,
    )
    wanted = ["child", "parent"] if how == "fork" else ["parent"]
    found = read(broker, topic, len(wanted))
    assert sorted(name for _, names in found for name in names) == wanted
