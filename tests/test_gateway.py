from __future__ import annotations

import asyncio
import gzip
import io
import json
import time

import pytest
from aiohttp.test_utils import TestClient, TestServer
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from streams import gateway as g
from streams import metrics
from streams.health import Health
from streams.settings import load
from streams.topics import admin
from tests.services import broker, free_port, listening, wait_for  # noqa: F401

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


class Memory:
    def __init__(self, error: Exception | None = None) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.error = error

    async def write(self, topic, messages):
        if self.error:
            raise self.error
        self.written += [(topic, m) for m in messages]


def request(*sizes: int) -> ExportTraceServiceRequest:
    result = ExportTraceServiceRequest()
    spans = result.resource_spans.add().scope_spans.add().spans
    for size in sizes:
        span = spans.add(name="s", span_id=b"12345678", trace_id=b"1234567812345678")
        span.attributes.add(key="k").value.string_value = "x" * size
    return result


BODY = request(10).SerializeToString()
AS_JSON = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"s"}]}]}]}'


def post(body, headers, *, path="/v1/traces", sink=None, method="POST", **settings):
    """Status, headers, body of the answer, and what was written."""
    sink = sink or Memory()

    async def main():
        server = TestServer(g.app(load(**settings), sink))
        await server.start_server(auto_decompress=False)
        async with (
            TestClient(server) as client,
            client.request(
                method, path, data=body, headers=headers, skip_auto_headers=["Content-Type"]
            ) as answer,
        ):
            return answer.status, answer.headers, await answer.read()

    status, answered, raw = asyncio.run(main())
    return status, answered, raw, sink.written


def test_protobuf_is_written_as_it_came():
    status, headers, raw, written = post(BODY, PROTOBUF)
    assert (status, raw, headers["Content-Type"]) == (200, b"", "application/x-protobuf")
    assert written == [("otlp_spans", BODY)]


def test_json_is_written_as_it_came_and_answered_in_json():
    status, headers, raw, written = post(
        AS_JSON, JSON | {"Content-Type": "application/json; charset=utf-8"}
    )
    assert (status, json.loads(raw), headers.getall("Content-Type")[0].split(";")[0]) == (
        200,
        {},
        "application/json",
    )
    assert written == [("otlp_spans", AS_JSON)]


def test_logs_go_to_their_topic():
    body = b'{"resourceLogs":[{"scopeLogs":[]}]}'
    assert post(body, JSON, path="/v1/logs")[3] == [("otlp_logs", body)]


def test_gzip_is_unpacked():
    written = post(gzip.compress(BODY), PROTOBUF | {"Content-Encoding": "gzip"})[3]
    assert written == [("otlp_spans", BODY)]


@pytest.mark.parametrize(("body", "kind"), [(b"", PROTOBUF), (b"{}", JSON)])
def test_an_empty_request_is_accepted_and_nothing_is_written(body, kind):
    status, _, _, written = post(body, kind)
    assert (status, written) == (200, [])


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "status"),
    [
        (b"hello, world", PROTOBUF, None, 400),
        (b"\x0a\x03\x12\x01\xff", PROTOBUF, None, 400),
        (AS_JSON, PROTOBUF, None, 400),
        (BODY, JSON, None, 400),
        (b"[]", JSON, None, 400),
        (b'{"resourceSpans": 3}', JSON, None, 400),
        (b"[" * 100_000, JSON, None, 400),
        (b'{"resourceSpans":' + b"[" * 100_000, JSON, None, 400),
        (b"\xff\xfe", JSON, None, 400),
        (BODY, PROTOBUF, "gzip", 400),
        (gzip.compress(BODY)[:-9], PROTOBUF, "gzip", 400),
        (gzip.compress(BODY) + b"more", PROTOBUF, "gzip", 400),
        (BODY, PROTOBUF, "br", 415),
        (BODY, {"Content-Type": "text/plain"}, None, 415),
        (BODY, {}, None, 415),
        (gzip.compress(b"\0" * 50_000_000), PROTOBUF, "gzip", 413),
        (b"\0" * 300_000, PROTOBUF, None, 413),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(body, kind, encoding, status):
    headers = dict(kind) | ({"Content-Encoding": encoding} if encoding else {})
    answer, told, raw, written = post(body, headers, gateway_max_request="200KiB")
    assert (answer, written) == (status, [])
    if kind == PROTOBUF:
        assert told["Content-Type"] == "application/x-protobuf"
        assert Status.FromString(raw).message
    else:
        assert json.loads(raw)["message"]


def test_a_bad_span_does_not_keep_its_neighbours_out():
    body = BODY + request(1).SerializeToString().replace(b"\x0a\x01s", b"\x0a\x01\xff")
    assert post(body, PROTOBUF)[3] == [("otlp_spans", body)]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_a_request_larger_than_a_message_is_cut(kind):
    if kind is PROTOBUF:
        body = request(*[40_000] * 5).SerializeToString()
    else:
        span = {"name": "s", "attributes": [{"key": "k", "value": {"stringValue": "x" * 40_000}}]}
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span] * 5}]}]}).encode()
    status, _, raw, written = post(body, kind, max_message_bytes="64KiB")
    assert (status, raw) == (200, b"" if kind is PROTOBUF else b"{}")
    assert len(written) == 5
    assert all(len(m) <= 65_536 for _, m in written)


def test_what_fits_into_no_message_is_told_as_partial_success():
    whole = request(1, 1)
    whole.resource_spans[0].scope_spans[0].spans[0].name = "n" * 100_000
    status, _, raw, written = post(whole.SerializeToString(), PROTOBUF, max_message_bytes="64KiB")
    assert (status, len(written)) == (200, 1)
    assert ExportTraceServiceResponse.FromString(raw).partial_success.rejected_spans == 1


@pytest.mark.parametrize("error", [KafkaConnectionError("gone"), OSError("gone"), TimeoutError()])
def test_without_an_acknowledgement_the_client_is_told_to_come_back(error):
    status, headers, raw, _ = post(BODY, PROTOBUF, sink=Memory(error))
    assert (status, headers["Retry-After"]) == (503, "5")
    assert Status.FromString(raw).code == 14


def test_a_message_that_the_topic_never_takes_is_not_sent_again():
    assert post(BODY, PROTOBUF, sink=Memory(MessageSizeTooLargeError("no")))[0] == 413


def test_above_its_allowance_the_gateway_tells_clients_to_come_back():
    """Whether the length is told, is not, or hides in a compressed body."""

    class Slow(Memory):
        def __init__(self):
            super().__init__()
            self.go = asyncio.Event()

        async def write(self, topic, messages):
            await self.go.wait()
            await super().write(topic, messages)

    async def main():
        sink = Slow()
        server = TestServer(g.app(load(in_flight="4MiB", gateway_max_request="8MiB"), sink))
        await server.start_server(auto_decompress=False)
        large, small = (request(*[10_000] * count).SerializeToString() for count in (300, 200))

        async def in_chunks(body):
            for n in range(0, len(body), 100_000):
                yield body[n : n + 100_000]

        async with TestClient(server) as client:
            holding = client.post("/v1/traces", data=io.BytesIO(large), headers=PROTOBUF)
            first = asyncio.create_task(holding)
            async with asyncio.timeout(10):
                while metrics.value("gateway_bytes_held") < len(large):
                    await asyncio.sleep(0.01)
            zipped = PROTOBUF | {"Content-Encoding": "gzip"}
            for body, headers in (
                (io.BytesIO(small), PROTOBUF),
                (in_chunks(small), PROTOBUF),
                (gzip.compress(small), zipped),
            ):
                answer = await client.post("/v1/traces", data=body, headers=headers)
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            sink.go.set()
            assert (await first).status == 200
            for body, headers in ((in_chunks(small), PROTOBUF), (gzip.compress(small), zipped)):
                assert (await client.post("/v1/traces", data=body, headers=headers)).status == 200
        assert metrics.value("gateway_bytes_held") == 0
        assert metrics.value("gateway_requests", signal="traces", status="503") >= 3

    asyncio.run(main())


def test_what_is_announced_but_not_sent_takes_nothing_from_the_allowance():
    """Clients that announce most of it and then send ten bytes keep nobody out."""

    async def main():
        server = TestServer(g.app(load(in_flight="4MiB"), Memory()))
        await server.start_server(auto_decompress=False)
        head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
        slow = []
        for _ in range(3):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(head + b"Content-Length: 3000000\r\n\r\n0123456789")
            slow.append(writer)
        async with asyncio.timeout(10):
            while metrics.value("gateway_bytes_held") < 30:
                await asyncio.sleep(0.01)
        body = request(*[10_000] * 300).SerializeToString()
        async with TestClient(server) as client:
            answer = await client.post("/v1/traces", data=io.BytesIO(body), headers=PROTOBUF)
            for writer in slow:
                writer.close()
        return answer.status

    assert asyncio.run(main()) == 200


def test_why_kafka_did_not_take_a_message_is_logged_even_if_the_error_is_mute(caplog):
    post(BODY, PROTOBUF, sink=Memory(TimeoutError()))
    assert caplog.messages == ["not written to otlp_spans: TimeoutError"]


def test_a_gateway_whose_writes_fail_is_unwell_after_a_while(monkeypatch):
    health = Health("gateway", start=1)
    sink = Memory(KafkaConnectionError())

    async def main():
        server = TestServer(g.app(load(), sink, health))
        await server.start_server(auto_decompress=False)
        async with TestClient(server) as client:
            await client.post("/v1/traces", data=BODY, headers=PROTOBUF)
            assert health.problems() == []
            monkeypatch.setattr(g, "_UNWELL", 0.0)
            [problem] = health.problems()
            assert problem.startswith("Kafka has acknowledged nothing")
            sink.error = None
            await client.post("/v1/traces", data=BODY, headers=PROTOBUF)
            assert health.problems() == []

    asyncio.run(main())


def test_the_root_says_what_to_do():
    status, _, raw, _ = post(None, {}, path="/", method="GET")
    assert status == 200
    assert b"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:" in raw
    assert raw.count(b"\n") == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/v1/traces", 405, "POST"),
        ("PUT", "/v1/logs", 405, "POST"),
        ("POST", "/v1/metrics", 404, None),
    ],
)
@pytest.mark.parametrize("kind", [PROTOBUF, JSON, {}])
def test_other_methods_and_paths_are_answered_with_a_status(method, path, status, allow, kind):
    answer, headers, raw, written = post(BODY, kind, method=method, path=path)
    assert (answer, headers.get("Allow"), written) == (status, allow, [])
    if kind is PROTOBUF:
        assert headers["Content-Type"] == "application/x-protobuf"
        assert Status.FromString(raw).message
    else:
        assert json.loads(raw)["message"]


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_a_failure_of_the_gateway_itself_is_answered_with_a_status(kind, caplog):
    status, headers, raw, _ = post(
        BODY if kind is PROTOBUF else AS_JSON, kind, sink=Memory(KeyError())
    )
    assert (status, headers.get("Retry-After")) == (500, None)
    assert headers["Content-Type"].split(";")[0] == kind["Content-Type"]
    assert b"the gateway failed" in raw
    assert "a request failed" in caplog.text


def logs_request(*sizes: int) -> ExportLogsServiceRequest:
    result = ExportLogsServiceRequest()
    records = result.resource_logs.add().scope_logs.add().log_records
    for size in sizes:
        record = records.add(event_name="e")
        record.attributes.add(key="k").value.string_value = "x" * size
    return result


def test_logs_are_written_cut_and_partly_refused_as_traces_are():
    body = logs_request(10).SerializeToString()
    status, _, raw, written = post(body, PROTOBUF, path="/v1/logs")
    assert (status, raw, written) == (200, b"", [("otlp_logs", body)])
    large = logs_request(*[40_000] * 3)
    large.resource_logs[0].scope_logs[0].log_records[0].body.string_value = "x" * 100_000
    status, _, raw, written = post(
        gzip.compress(large.SerializeToString()),
        PROTOBUF | {"Content-Encoding": "gzip"},
        path="/v1/logs",
        max_message_bytes="64KiB",
    )
    told = ExportLogsServiceResponse.FromString(raw).partial_success
    assert (status, told.rejected_log_records, len(written)) == (200, 1, 2)
    assert told.error_message


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"3", ""),
        (b'{"resourceSpans": {}}', "resourceSpans"),
        (b'{"resourceSpans": [{}, 3]}', "resourceSpans[1]"),
        (b'{"resourceSpans": [{"scopeSpans": "x"}]}', "resourceSpans[0].scopeSpans"),
        (
            b'{"resourceSpans": [{"scopeSpans": [{"spans": true}]}]}',
            "resourceSpans[0].scopeSpans[0].spans",
        ),
    ],
)
def test_bad_data_is_refused_for_good_and_its_place_told(body, place):
    status, headers, raw, written = post(body, JSON)
    assert (status, headers.get("Retry-After"), written) == (400, None, [])
    [detail] = json.loads(raw)["details"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert detail["fieldViolations"][0].get("field", "") == place


def test_bad_protobuf_carries_a_bad_request():
    status = Status.FromString(post(b"hello, world", PROTOBUF)[2])
    detail = BadRequest()
    assert status.details[0].Unpack(detail)
    assert detail.field_violations[0].description == status.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"resourceSpans": null}',
        b'{"resourceSpans": [], "unknown": 1}',
    ],
)
def test_a_null_is_an_absent_field_and_unknown_fields_are_no_error(body):
    status, _, _, written = post(body, JSON)
    assert (status, written) == (200, [])


def test_a_request_of_the_other_signal_is_warned_about():
    status, _, raw, written = post(b'{"resourceLogs": [{}]}', JSON)
    told = json.loads(raw)["partialSuccess"]
    assert (status, written) == (200, [])
    assert told == {"errorMessage": "nothing was found: the request has no resourceSpans"}


def test_one_bad_span_of_json_stays_for_the_dead_letters():
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[3,{"name":"s"}]}]}]}'
    assert post(body, JSON)[3] == [("otlp_spans", body)]


def test_half_a_surrogate_pair_does_not_keep_a_request_out():
    body = AS_JSON.replace(b'"s"', b'"cut \\ud83d"')
    assert post(body, JSON)[3] == [("otlp_spans", body)]


def test_deep_nesting_in_a_request_to_be_cut_is_refused():
    deep = b"[" * 300 + b"]" * 300
    body = AS_JSON.replace(b'"s"', b'"s","x":' + deep + b',"y":"' + b"y" * 70_000 + b'"')
    assert post(body, JSON, max_message_bytes="64KiB")[0] == 400


def test_gzip_may_have_several_members():
    halves = gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])
    assert post(halves, PROTOBUF | {"Content-Encoding": "gzip"})[3] == [("otlp_spans", BODY)]
    body = gzip.compress(BODY) + gzip.compress(b"") * 1000
    assert post(body, PROTOBUF | {"Content-Encoding": "gzip"})[0] == 400


def test_a_slow_client_may_send_it_again(monkeypatch):
    monkeypatch.setattr(g, "_READ", 0.05)

    async def body():
        yield BODY[:10]
        await asyncio.sleep(30)

    status, headers, raw, _ = post(body(), PROTOBUF)
    assert (status, headers["Retry-After"]) == (503, "1")
    assert Status.FromString(raw).message


@pytest.mark.services
def test_a_real_exporter_through_a_real_broker(broker):  # noqa: F811
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    port, topic = free_port(), f"spans-{time.time_ns()}"
    settings = load(kafka_bootstrap=broker, gateway_listen=f"127.0.0.1:{port}", spans_topic=topic)

    def export() -> None:
        exporter = OTLPSpanExporter(
            f"http://127.0.0.1:{port}/v1/traces", compression=Compression.Gzip
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        with provider.get_tracer("t").start_as_current_span("hello"):
            pass
        provider.shutdown()

    async def main() -> bytes:
        async with admin(settings) as client:
            await client.create_topics([NewTopic(topic, 1, 1)])
        stop = asyncio.Event()
        server = asyncio.create_task(g.serve(settings, stop))
        await asyncio.to_thread(wait_for, lambda: listening(port) or server.done(), "the gateway")
        await asyncio.to_thread(export)
        stop.set()
        await server
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=broker, auto_offset_reset="earliest", group_id=None
        )
        await consumer.start()
        try:
            return (await asyncio.wait_for(consumer.getone(), 20)).value
        finally:
            await consumer.stop()

    message = ExportTraceServiceRequest.FromString(asyncio.run(main()))
    assert message.resource_spans[0].scope_spans[0].spans[0].name == "hello"
