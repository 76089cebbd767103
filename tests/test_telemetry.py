"""What the monitor tells of itself: metrics, health, its own traces, logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from typing import get_args

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.counters import Counters
from streams import http_server, logs, metrics, telemetry
from streams.errors import UserError
from streams.gateway import app as gateway_app
from streams.health import Health, offset, serving
from streams.settings import Settings, SettingsError, load

# -- the registry ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "registry"),
    [
        (metrics.Count, metrics.COUNTS),
        (metrics.Gauge, metrics.GAUGES),
        (metrics.Time, metrics.TIMES),
    ],
)
def test_every_name_is_registered_with_a_meaning(names, registry):
    assert set(get_args(names)) == set(registry)
    for name, metric in registry.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)
        assert metric.meaning.endswith(".")
        assert all(values for values in metric.labels.values())


def test_a_value_outside_a_closed_set_counts_as_other():
    before = metrics.value("dead_letters", reason="other")
    metrics.count("dead_letters", reason="a span's own words")
    assert metrics.value("dead_letters", reason="other") == before + 1
    assert b"own words" not in metrics.text()


def test_a_label_that_a_metric_does_not_have_is_refused():
    with pytest.raises(AssertionError, match="labels"):
        metrics.count("fold_errors", reason="x")


def test_what_an_engine_counts_arrives_under_its_names():
    counters = Counters(duplicates=2, derived=3, fold_errors=1)
    counters.arrivals["span"] = 7
    counters.closed["idle"] = 2
    counters.labels["trusted"] = 4
    counters.violations["POLICY_TOOL_FORBIDDEN", "raised"] = 5
    reads = (
        ("spans_repeated", {}, 2),
        ("prefixes_derived", {}, 3),
        ("fold_errors", {}, 1),
        ("arrivals_folded", {"kind": "span"}, 7),
        ("trajectories_closed", {"reason": "idle"}, 2),
        ("labels_published", {"verdict": "trusted"}, 4),
        ("violations_published", {"code": "POLICY_TOOL_FORBIDDEN", "state": "raised"}, 5),
    )
    before = [metrics.value(name, **labels) for name, labels, _ in reads]
    metrics.fold(counters)
    after = [metrics.value(name, **labels) for name, labels, _ in reads]
    assert [b - a for a, b in zip(before, after, strict=True)] == [n for _, _, n in reads]
    counters.clear()
    assert counters == Counters()


# -- health and metrics over HTTP --------------------------------------------------------------


async def get(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as answer,
    ):
        return answer.status, await answer.text()


def test_health_and_metrics_are_served():
    async def scenario():
        wrong: list[str] = []
        health = Health("evaluate", start=60)
        async with serving("127.0.0.1:0", health) as port:
            assert port is not None
            assert (await get(port, "/healthz"))[0] == 200
            health.watch(lambda: wrong)
            assert (await get(port, "/healthz"))[0] == 200
            wrong.append("7 records wait and none was handled for 151 s")
            status, body = await get(port, "/healthz")
            assert (status, json.loads(body)["problems"]) == (503, wrong)
            metrics.count("fold_errors")
            status, body = await get(port, "/metrics")
            assert status == 200
            assert re.search(r"^agenttrust_fold_errors_total [1-9]", body, re.MULTILINE)
            assert "process_resident_memory_bytes" in body
            assert "_created" not in body

    asyncio.run(scenario())


def test_a_process_that_does_not_get_ready_is_unhealthy():
    now = 0.0
    health = Health("ingest", start=60, clock=lambda: now)
    now = 60.0
    assert health.problems() == []
    now = 61.0
    assert health.problems() == ["not ready after 61 s"]


def test_an_address_that_is_taken_is_said_plainly():
    async def scenario():
        async with serving("127.0.0.1:0", Health("a", start=1)) as port:
            with pytest.raises(UserError, match=rf"AGENTTRUST_HTTP_LISTEN=127.0.0.1:{port}"):
                async with serving(f"127.0.0.1:{port}", Health("b", start=1)):
                    pass
        async with serving("", Health("c", start=1)) as port:
            assert port is None

    asyncio.run(scenario())


def test_a_connection_that_never_tells_its_request_is_closed(monkeypatch):
    monkeypatch.setattr(http_server, "FIRST_REQUEST", 0.3)

    async def scenario():
        async with serving("127.0.0.1:0", Health("a", start=60)) as port:
            ends = []
            for sent in (b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(sent)
                ends.append((reader, writer))
            kept, asking = await asyncio.open_connection("127.0.0.1", port)
            request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
            asking.write(request)
            assert await asyncio.wait_for(kept.readuntil(b"}\n"), 20)
            for reader, writer in ends:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 20) == b""
                writer.close()
            asking.write(request)  # one that has asked in time may ask again
            assert await asyncio.wait_for(kept.readuntil(b"}\n"), 20)
            asking.close()

    asyncio.run(scenario())


def test_each_process_of_a_worker_has_a_port():
    assert [offset("0.0.0.0:9100", n) for n in (0, 1)] == ["0.0.0.0:9100", "0.0.0.0:9101"]
    assert offset("127.0.0.1:0", 1) == "127.0.0.1:0"
    assert offset("", 1) == ""


# -- own traces and metrics --------------------------------------------------------------------


class Collector:
    """An OTLP/HTTP endpoint that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list = []
        self.metrics: dict = {}
        self.services: set[str] = set()

    async def _traces(self, request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            self._name(resource.resource)
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        found = ExportMetricsServiceRequest.FromString(await request.read())
        for resource in found.resource_metrics:
            self._name(resource.resource)
            for scope in resource.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}
        return web.Response()

    def _name(self, resource) -> None:
        self.services |= {
            a.value.string_value for a in resource.attributes if a.key == "service.name"
        }

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [web.post("/v1/traces", self._traces), web.post("/v1/metrics", self._metrics)]
        )
        return app


async def start(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


def test_own_traces_and_metrics_reach_a_collector():
    async def scenario():
        collector = Collector()
        runner, url = await start(collector.app())
        async with telemetry.sending(Settings(telemetry_endpoint=url), "evaluate"):
            with telemetry.span("evaluate: batch", messages=3):
                with pytest.raises(ValueError), telemetry.span("state store: save"):
                    raise ValueError("what a span said")
                metrics.count("fold_errors", 2)
                metrics.put("records_behind", 5)
                metrics.observe("batch_seconds", 0.25)
        metrics.count("fold_errors")
        await runner.cleanup()
        return collector

    found = asyncio.run(scenario())
    inner, outer = found.spans
    assert (outer.name, inner.name) == ("evaluate: batch", "state store: save")
    assert inner.parent_span_id == outer.span_id
    assert (inner.status.message, len(inner.events)) == ("ValueError", 0)
    assert b"what a span said" not in inner.SerializeToString()
    [point] = found.metrics["agenttrust.fold_errors"].sum.data_points
    assert point.as_int == 2
    assert found.metrics["agenttrust.records_behind"].gauge.data_points[0].as_int == 5
    assert found.metrics["agenttrust.batch_seconds"].histogram.data_points[0].sum == 0.25
    assert found.services == {telemetry.SERVICE}


def test_without_an_endpoint_a_span_costs_nothing_and_goes_nowhere():
    with telemetry.span("batch", messages=1):
        assert not telemetry.trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    ("endpoint", "listen"),
    [
        ("http://127.0.0.1:4318", "127.0.0.1:4318"),
        ("http://localhost:4318", "0.0.0.0:4318"),
        ("http://collector", "collector:80"),
    ],
)
def test_the_own_gateway_is_refused_by_its_address(endpoint, listen):
    settings = Settings(telemetry_endpoint=endpoint, gateway_listen=listen)
    with pytest.raises(UserError, match="own gateway"):
        asyncio.run(telemetry.refuse_own_gateway(settings))


def test_the_own_gateway_is_refused_when_it_answers_elsewhere():
    async def scenario():
        runner, url = await start(gateway_app(Settings(), None))
        try:
            with pytest.raises(UserError, match="own gateway"):
                await telemetry.refuse_own_gateway(Settings(telemetry_endpoint=url))
        finally:
            await runner.cleanup()
        await telemetry.refuse_own_gateway(Settings(telemetry_endpoint=url))  # gone: no reason

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", ["collector:4318", "ftp://x", "http://", "http://x:99999"])
def test_an_endpoint_that_is_none_is_refused(wrong):
    with pytest.raises(SettingsError, match="AGENTTRUST_TELEMETRY_ENDPOINT"):
        load(telemetry_endpoint=wrong)


@pytest.mark.parametrize(
    ("sent", "lines"),
    [
        (b"GARBAGE\r\n\r\n", 0),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 0),
        (b"GET / HTTP/9.9\r\n\r\n", 1),
        (b"POST / HTTP/1.1\r\nContent-Length: abc\r\n\r\n", 1),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 1),
    ],
)
def test_what_is_no_http_is_a_warning_without_a_traceback(sent, lines, caplog):
    async def scenario():
        async with http_server.listening(
            web.Application(), "http_listen", "127.0.0.1:0", grace=1
        ) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            async with asyncio.timeout(10):
                answer = await reader.read()
            writer.close()
            return answer

    assert b" 400 " in asyncio.run(scenario()).splitlines()[0]
    records = [r for r in caplog.records if r.name == "aiohttp.server"]
    told = [logs.Safe().format(record).partition(" ")[2] for record in records]
    assert told == ["WARNING aiohttp.server: what is no HTTP request came from 127.0.0.1"] * lines


# -- logs --------------------------------------------------------------------------------------


def logged(formatter: logging.Formatter, message: str, *args: object, error=None) -> str:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    return formatter.format(
        logging.LogRecord("streams.x", logging.WARNING, "x.py", 1, message, args, exc_info)
    )


def test_a_json_line_is_an_object_with_what_and_when():
    line = logged(logs.Json((), "ingest"), "dead letter: %s", "bad_id")
    told = json.loads(line)
    assert "\n" not in line
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", told.pop("time"))
    assert told == {
        "level": "warning",
        "logger": "streams.x",
        "message": "dead letter: bad_id",
        "role": "ingest",
    }


@pytest.mark.parametrize("kind", [logs.Safe, logs.Json])
def test_lines_are_bounded_harmless_and_without_secrets(kind):
    settings = Settings(redis_url="redis://user:s3cr%40t-word@host/0")
    formatter = kind(logs.secrets(settings))
    line = logged(formatter, "%s", "x" * 10**6)
    assert len(line) < 3000
    assert "\x1b" not in logged(formatter, "\x1b[2J\nfake line")
    assert "\n" not in logged(formatter, "\x1b[2J\nfake line")
    for text in ("redis://user:s3cr%40t-word@host", "password s3cr@t-word refused"):
        assert "t-word" not in logged(formatter, text)


@pytest.mark.parametrize("kind", [logs.Safe, logs.Json])
def test_an_error_is_told_by_type_and_place_not_by_what_it_failed_on(kind):
    try:
        int("what a span said")
    except ValueError as error:
        line = logged(kind(), "trajectory %s ends", "ab", error=error)
    assert "ValueError" in line
    assert "test_telemetry.py" in line
    assert "what a span said" not in line


def test_a_line_that_cannot_be_put_together_is_logged_all_the_same():
    assert "%d and %d" in logged(logs.Safe(), "%d and %d", "x")


def test_a_line_that_a_library_repeats_is_told_once_in_a_while_with_how_often():
    now = [100.0]
    sparing = logs.Sparing(lambda: now[0])

    def told(name: str, topic: str) -> list[str]:
        record = logging.LogRecord(name, logging.ERROR, "x", 1, "100%% of %s", (topic,), None)
        return [record.getMessage()] if sparing.filter(record) else []

    assert [told("aiokafka.cluster", "x") for _ in range(3)] == [["100% of x"], [], []]
    assert told("aiokafka.cluster", "y") == ["100% of y"]
    assert [told("streams.ingest", "x") for _ in range(2)] == [["100% of x"]] * 2
    now[0] += 15
    assert told("aiokafka.cluster", "x") == ["100% of x (2 times more meanwhile)"]
    now[0] += 15
    assert told("aiokafka.cluster", "x") == ["100% of x"]


def test_lines_that_all_differ_are_told_and_do_not_fill_the_memory():
    sparing = logs.Sparing(lambda: 0.0)
    for n in range(3000):
        record = logging.LogRecord("aiokafka", logging.ERROR, "x", 1, "offset %d", (n,), None)
        assert sparing.filter(record)
    assert len(sparing._told) <= 1000
