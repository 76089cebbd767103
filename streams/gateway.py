"""The OTLP/HTTP gateway: agents export to it, it writes what they sent to Kafka.

A request is answered with 200 only after the brokers have acknowledged it; until then the agent's
exporter keeps it. The request's own bytes are written, undecoded: reading them is ingest's work.
Only a request larger than a Kafka message is taken apart (see `streams.split`).

https://opentelemetry.io/docs/specs/otlp/#otlphttp says which status means "send it again".
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, Protocol

import click
import orjson
from aiohttp import web
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
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

from streams import logs as logging_
from streams import metrics, telemetry
from streams import otlp_wire as wire
from streams.health import Health, serving
from streams.http_server import listening
from streams.otlp_files import JSON, PROTOBUF
from streams.otlp_json import mended
from streams.patience import words
from streams.processes import until_stopped
from streams.settings import Settings, load
from streams.split import LOGS, TRACES, Cut, Signal, cut_json, cut_protobuf
from streams.topics import plan

log = logging.getLogger(__name__)

_DELIVERY: Final = 10.0
"""Seconds within which the brokers acknowledge; exporters give up after 10 by default."""
_READ: Final = 30.0
"""Seconds within which a client sends its request."""
_MEMBERS: Final = 16
"""Members that a gzip body may have; each costs a copy of what is left."""
_UNWELL: Final = 30.0
"""Seconds without a success after a failed write: `/healthz` fails."""

# google.rpc.Code, which an OTLP error body carries.
_UNKNOWN: Final = 2
_INVALID_ARGUMENT: Final = 3
_NOT_FOUND: Final = 5
_RESOURCE_EXHAUSTED: Final = 8
_UNIMPLEMENTED: Final = 12
_UNAVAILABLE: Final = 14


class Sink(Protocol):
    """Where messages go. Returns when they are durable; raises KafkaError, OSError or TimeoutError."""

    async def write(self, topic: str, messages: list[bytes]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Route:
    """One signal: its topic, its messages, and how a request of it is checked and cut."""

    topic: str
    request: type[Any]
    response: type[Any]
    signal: Signal
    rejected: str
    frames: tuple[str, str, str]
    check: Callable[[bytes], Any]


class _Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """`retry_after` is seconds; `field` is where in the request the reason lies."""

    def __init__(
        self,
        status: int,
        code: int,
        message: str,
        retry_after: int | None = None,
        field: str = "",
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after
        self.field = field


def app(settings: Settings, sink: Sink, health: Health | None = None) -> web.Application:
    """The gateway as an aiohttp application. Serve it without aiohttp's own decompression."""
    topics = plan(settings)
    traces = _Route(
        topics.spans.name,
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
        TRACES,
        "rejected_spans",
        ("resourceSpans", "scopeSpans", "spans"),
        _frames,
    )
    logs = _Route(
        topics.logs.name,
        ExportLogsServiceRequest,
        ExportLogsServiceResponse,
        LOGS,
        "rejected_log_records",
        ("resourceLogs", "scopeLogs", "logRecords"),
        ExportLogsServiceRequest.FromString,
    )
    gate = _Gate(settings, sink)
    if health is not None:
        health.watch(gate.problems)
    application = web.Application(middlewares=[_always_a_status])
    application.add_routes(
        [
            web.post("/v1/traces", gate.handler(traces)),
            web.post("/v1/logs", gate.handler(logs)),
            web.get("/", _welcome),
        ]
    )
    return application


@web.middleware
async def _always_a_status(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Other refusals than the gate's have a Status as body, too."""
    try:
        return await handler(request)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        allowed = answer.headers.get("Allow")
        why = {
            404: "there are /v1/traces and /v1/logs; metrics are not read",
            405: f"{request.method} is not allowed here; allowed: {allowed}",
        }.get(answer.status, answer.reason)
        code = _NOT_FOUND if answer.status == 404 else _UNIMPLEMENTED
        refused = _refused(_Refusal(answer.status, code, why), _kind(request) or JSON)
        if allowed:
            refused.headers["Allow"] = allowed
        return refused
    except ConnectionError:
        log.info("a client has left before its request was whole")
        raise
    except Exception:
        log.exception("a request failed")
        return _refused(_Refusal(500, _UNKNOWN, "the gateway failed"), _kind(request) or JSON)


def _kind(request: web.Request) -> str | None:
    """The encoding of the request, None for one that is not OTLP's."""
    kind = request.content_type.lower()
    return kind if kind in {PROTOBUF, JSON} else None


async def _welcome(request: web.Request) -> web.Response:
    return web.Response(
        text=f"{telemetry.GREETING} Point an agent here with "
        f"OTEL_EXPORTER_OTLP_ENDPOINT=http://{request.host} "
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf\n"
    )


class _Allowance:
    """Bytes of requests that are held at once: above, clients are told to come back."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @contextmanager
    def share(self) -> Iterator[_Share]:
        """What one request holds, given back at the end."""
        share = _Share(self)
        try:
            yield share
        finally:
            share.shrink()


class _Share:
    def __init__(self, allowance: _Allowance) -> None:
        self._of = allowance
        self._size = 0

    def fit(self, size: int) -> None:
        """Raises _Refusal when all requests together would hold too much with `size` bytes here; one
        alone is let in however small the allowance is. Takes nothing.
        """
        others = self._of.held - self._size
        if others and others + size > self._of.most:
            raise _Refusal(503, _UNAVAILABLE, "the gateway is busy; send it again", 1)

    def grow(self, size: int) -> None:
        """Takes at least `size` bytes. Raises as `fit` does."""
        more = size - self._size
        if more <= 0:
            return
        self.fit(size)
        self._size = size
        self._of.held += more
        metrics.put("gateway_bytes_held", self._of.held)

    def shrink(self) -> None:
        self._of.held -= self._size
        self._size = 0
        metrics.put("gateway_bytes_held", self._of.held)


class _Gate:
    def __init__(self, settings: Settings, sink: Sink) -> None:
        self._settings = settings
        self._sink = sink
        self._allowance = _Allowance(settings.in_flight)
        self._failing: float | None = None

    def problems(self) -> list[str]:
        """What is wrong with the gateway, a sentence each."""
        if self._failing is None or time.monotonic() - self._failing < _UNWELL:
            return []
        return [f"Kafka has acknowledged nothing for {time.monotonic() - self._failing:.0f} s"]

    def handler(self, route: _Route) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            answer = await answered(request)
            signal = "traces" if route.signal is TRACES else "logs"
            metrics.count("gateway_requests", signal=signal, status=str(answer.status))
            return answer

        async def answered(request: web.Request) -> web.Response:
            kind = _kind(request)
            if kind is None:
                told = request.content_type[:80]
                message = f"Content-Type {told!r} is not accepted; allowed: {PROTOBUF}, {JSON}"
                return _refused(_Refusal(415, _INVALID_ARGUMENT, message), JSON)
            try:
                return await self._accept(request, route, kind)
            except _Refusal as refusal:
                return _refused(refusal, kind)

        return handle

    async def _accept(self, request: web.Request, route: _Route, kind: str) -> web.Response:
        size = request.content_length or 0
        if size > self._settings.gateway_max_request:
            raise self._too_large()
        with self._allowance.share() as share:
            # Told before the body is sent, where its length is known. Taken is only what has come:
            # clients that announce much and send nothing must not keep others out.
            share.fit(size)
            body = await self._body(request, share)
            cut = self._cut(body, route, kind)
            await self._write(route.topic, cut.messages)
        if cut.refused:
            why = "too large for a Kafka message, even without attributes"
        elif not cut.messages and body.strip() not in {b"", b"{}"}:
            why = f"nothing was found: the request has no {route.frames[0]}"
        else:
            why = ""
        return _accepted(route, kind, cut.refused, why)

    async def _body(self, request: web.Request, share: _Share) -> bytes:
        """The request's body, decompressed."""
        encoding = request.headers.get("Content-Encoding", "").strip().lower() or "identity"
        if encoding not in {"identity", "gzip"}:
            raise _Refusal(
                415,
                _INVALID_ARGUMENT,
                f"Content-Encoding {encoding[:40]!r} is not accepted; allowed: gzip, identity",
            )
        try:
            async with asyncio.timeout(_READ):
                body = await self._read(request, share)
        except TimeoutError:
            # Not 408, which exporters must not answer by sending it again.
            message = f"no whole request within {_READ:g} s; send it again"
            raise _Refusal(503, _UNAVAILABLE, message, 1) from None
        if encoding == "gzip":
            body = self._unzipped(body)
            share.grow(len(body))
        return body

    async def _read(self, request: web.Request, share: _Share) -> bytes:
        body = bytearray()
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > self._settings.gateway_max_request:
                raise self._too_large()
            share.grow(len(body))
        return bytes(body)

    def _unzipped(self, body: bytes) -> bytes:
        limit = self._settings.gateway_max_request
        data = bytearray()
        for _ in range(_MEMBERS):
            decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
            try:
                data += decoder.decompress(body, limit + 1 - len(data))
            except zlib.error:
                raise _Refusal(400, _INVALID_ARGUMENT, "the body is not gzip") from None
            if len(data) > limit:
                raise self._too_large()
            if not decoder.eof:
                raise _Refusal(400, _INVALID_ARGUMENT, "the body is not one whole gzip file")
            body = decoder.unused_data
            if not body:
                return bytes(data)
        raise _Refusal(400, _INVALID_ARGUMENT, f"the body has more than {_MEMBERS} gzip members")

    def _too_large(self) -> _Refusal:
        limit = self._settings.gateway_max_request
        return _Refusal(
            413, _RESOURCE_EXHAUSTED, f"a request may have {limit} bytes after decompression"
        )

    def _cut(self, body: bytes, route: _Route, kind: str) -> Cut:
        """The messages to write: the body as it came, unless it is too large for one."""
        limit = self._settings.max_message_bytes
        try:
            if kind == JSON:
                document = _document(body)
                found = _checked(document, route.frames)
                if len(body) > limit:
                    return cut_json(document, route.signal, limit)
                return Cut([body] if found else [])
            route.check(body)
            if len(body) > limit:
                return cut_protobuf(route.request.FromString(body), route.signal, limit)
            return Cut([body] if body else [])
        except (DecodeError, orjson.JSONDecodeError, orjson.JSONEncodeError) as error:
            what = f"{route.request.DESCRIPTOR.name} as {kind}"
            why = " ".join(str(error).split())[:200]
            raise _Refusal(400, _INVALID_ARGUMENT, f"the body is no {what}: {why}") from None

    async def _write(self, topic: str, messages: list[bytes]) -> None:
        if not messages:
            return
        try:
            async with asyncio.timeout(_DELIVERY):
                with metrics.timed("send_seconds"):
                    await self._sink.write(topic, messages)
            metrics.count("gateway_bytes", sum(map(len, messages)))
            self._failing = None
        except MessageSizeTooLargeError as error:
            # Sending it again would fail again: the topic allows less than the settings say.
            log.error("not written to %s: %s", topic, words(error))  # noqa: TRY400 - the text is all
            raise _Refusal(
                413, _RESOURCE_EXHAUSTED, "larger than the topic's max.message.bytes"
            ) from None
        except (KafkaError, OSError, TimeoutError) as error:
            self._failing = self._failing or time.monotonic()
            log.warning("not written to %s: %s", topic, words(error))
            raise _Refusal(
                503, _UNAVAILABLE, "Kafka does not acknowledge; send it again", 5
            ) from None


def _frames(body: bytes) -> None:
    """Raises DecodeError unless the request is whole down to its spans.

    What is wrong inside a span stays: ingest puts that span alone among the dead letters.
    """
    for resource in wire.REQUEST(body).resource_spans:
        for scope in wire.RESOURCE_SPANS(resource).scope_spans:
            wire.SCOPE_SPANS(scope)


def _document(body: bytes) -> Any:
    """The body's JSON; halves of surrogate pairs, which JavaScript writes, are no reason to refuse.

    Raises orjson.JSONDecodeError.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return orjson.loads(mended(body))


def _checked(document: Any, frames: tuple[str, str, str]) -> bool:
    """Whether there is anything in it. Raises _Refusal unless it is whole down to its spans or log
    records; what is wrong inside one stays, for the dead letters. A null is an absent field.
    """
    parents = [("", document)]
    found = False
    for frame in frames:
        below = []
        for at, parent in parents:
            if not isinstance(parent, dict):
                raise _misshapen(at, "a JSON object")
            items = parent.get(frame)
            place = f"{at}.{frame}" if at else frame
            if items is not None and not isinstance(items, list):
                raise _misshapen(place, "a list")
            below += [(f"{place}[{n}]", item) for n, item in enumerate(items or ())]
        parents = below if frame != frames[-1] else []
        found = found or bool(below)
    return found


def _misshapen(place: str, what: str) -> _Refusal:
    return _Refusal(400, _INVALID_ARGUMENT, f"{place or 'the body'} is not {what}", field=place)


def _accepted(route: _Route, kind: str, refused: int, why: str) -> web.Response:
    """Success; `why` is set where entries were refused, or as a warning."""
    response = route.response()
    if why:
        setattr(response.partial_success, route.rejected, refused)
        response.partial_success.error_message = why
    return _answer(200, response, kind)


def _refused(refusal: _Refusal, kind: str) -> web.Response:
    status = Status(code=refusal.code, message=refusal.message)
    if refusal.status == 400:
        violation = BadRequest.FieldViolation(field=refusal.field, description=refusal.message)
        status.details.add().Pack(BadRequest(field_violations=[violation]))
    answer = _answer(refusal.status, status, kind)
    if refusal.retry_after is not None:
        answer.headers["Retry-After"] = str(refusal.retry_after)
    return answer


def _answer(status: int, message: Message, kind: str) -> web.Response:
    """A protobuf message in the encoding of the request."""
    body = orjson.dumps(MessageToDict(message)) if kind == JSON else message.SerializeToString()
    return web.Response(status=status, body=body, content_type=kind)


# -- the real sink ---------------------------------------------------------------------------


class KafkaSink:
    """Writes without a key, so that messages spread over the partitions.

    Connects when first needed and again after a failure, so that the gateway starts, and says
    "send it again", while Kafka is away.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self._producer: AIOKafkaProducer | None = None

    async def write(self, topic: str, messages: list[bytes]) -> None:
        producer = await self._connected()
        # All are awaited even when one fails, so that none is left behind unobserved.
        sent = [await producer.send(topic, message) for message in messages]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _connected(self) -> AIOKafkaProducer:
        async with self._lock:
            if self._producer is None:
                largest = plan(self._settings).spans.max_message_bytes
                producer = AIOKafkaProducer(
                    **self._settings.kafka_args(),
                    acks="all",
                    linger_ms=5,
                    max_batch_size=256 * 1024,
                    max_request_size=largest,
                    request_timeout_ms=int(_DELIVERY * 1000),
                )
                try:
                    await producer.start()
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    async def close(self) -> None:
        """Delivers what was accepted, then disconnects."""
        if self._producer is not None:
            await self._producer.stop()


async def serve(settings: Settings, stop: asyncio.Event) -> None:
    """Serves until `stop` is set; requests under way are finished. Raises UserError."""
    sink = KafkaSink(settings)
    health = Health("gateway", start=_DELIVERY)
    try:
        async with listening(
            app(settings, sink, health),
            "gateway_listen",
            settings.gateway_listen,
            grace=_DELIVERY,
            auto_decompress=False,
        ) as port:
            host = settings.gateway_listen.rpartition(":")[0]
            log.info("listening on %s:%s, writing to %s", host, port, settings.kafka_bootstrap)
            metrics.tell(role="gateway", version=version("agenttrust-monitor"))
            async with (
                serving(settings.http_listen, health),
                telemetry.sending(settings, "gateway"),
            ):
                await stop.wait()
    finally:
        with suppress(KafkaError, OSError, TimeoutError):
            await asyncio.wait_for(sink.close(), _DELIVERY)


@click.command()
@click.option("--listen", metavar="HOST:PORT", help="Overrides AGENTTRUST_GATEWAY_LISTEN.")
def gateway(listen: str | None) -> None:
    """Accept OTLP/HTTP and write it to Kafka, until told to stop."""
    settings = load(gateway_listen=listen)
    logging_.to_stderr(settings, "gateway")
    until_stopped(lambda stop: serve(settings, stop))
