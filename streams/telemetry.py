"""The monitor's own traces and metrics over OTLP, when AGENTTRUST_TELEMETRY_ENDPOINT names a place.

A trace is a batch: reading, store, Kafka. It carries counts and sizes, nothing of what was read and
no error's text. Samplers and headers are those of the SDK (`OTEL_TRACES_SAMPLER`,
`OTEL_EXPORTER_OTLP_HEADERS`).

What is sent must never come back as input, where each batch would give rise to the next: an endpoint
that is the own gateway is refused, by its address and by asking it who it is. A Collector that
forwards everything to the spans topic cannot be told from here: give the monitor a pipeline of its
own there.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from streams import metrics
from streams.errors import UserError
from streams.setting_values import redacted
from streams.settings import Settings

log = logging.getLogger(__name__)

SERVICE: Final = "agenttrust-monitor"
GREETING: Final = "AgentTrust Monitor, OTLP/HTTP gateway."
"""What the own gateway answers to `GET /`."""
_ASK: Final = 3.0
_EVERY: Final = 15.0
_FLUSH: Final = 5.0

_tracer: trace.Tracer = trace.NoOpTracer()


@contextmanager
def span(name: str, **attributes: int | str) -> Iterator[None]:
    """A step of a batch. An error is told by its type alone."""
    with _tracer.start_as_current_span(
        name, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as error:
            current.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


class _Meters:
    """The registry's metrics as instruments of the SDK: a `streams.metrics.Mirror`."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SERVICE, version(SERVICE))
        self._counts = {
            name: meter.create_counter(f"agenttrust.{name}", m.unit, m.meaning)
            for name, m in metrics.COUNTS.items()
        }
        self._gauges = {
            name: meter.create_gauge(f"agenttrust.{name}", m.unit, m.meaning)
            for name, m in metrics.GAUGES.items()
        }
        self._times = {
            name: meter.create_histogram(
                f"agenttrust.{name}",
                "s",
                m.meaning,
                explicit_bucket_boundaries_advisory=metrics.BUCKETS,
            )
            for name, m in metrics.TIMES.items()
        }

    def count(self, name: metrics.Count, amount: float, labels: Mapping[str, str]) -> None:
        self._counts[name].add(amount, labels)

    def put(self, name: metrics.Gauge, value: float, labels: Mapping[str, str]) -> None:
        self._gauges[name].set(value, labels)

    def observe(self, name: metrics.Time, value: float, labels: Mapping[str, str]) -> None:
        self._times[name].record(value, labels)


@asynccontextmanager
async def sending(settings: Settings, role: str) -> AsyncIterator[None]:
    """Sends while the body runs, if the settings say so, and the rest at its end.

    Raises UserError for an endpoint that is the own gateway. An endpoint that does not answer is no
    reason to stop.
    """
    global _tracer  # noqa: PLW0603 - one process, one tracer, as in the API itself
    endpoint = settings.telemetry_endpoint
    if not endpoint:
        yield
        return
    await refuse_own_gateway(settings)
    resource = Resource.create(
        {
            "service.name": SERVICE,
            "service.version": version(SERVICE),
            "service.instance.id": str(uuid.uuid4()),
            "agenttrust.role": role,
        }
    )
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{endpoint}/v1/metrics"), export_interval_millis=_EVERY * 1000
    )
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    _tracer = traces.get_tracer(SERVICE, version(SERVICE))
    metrics.mirror(_Meters(meters))
    log.info("own traces and metrics go to %s", redacted(endpoint))
    try:
        yield
    finally:
        metrics.mirror(None)
        _tracer = trace.NoOpTracer()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * _FLUSH):
                await asyncio.to_thread(_shut, traces, meters)


def _shut(traces: TracerProvider, meters: MeterProvider) -> None:
    traces.force_flush(int(_FLUSH * 1000))
    meters.shutdown(timeout_millis=_FLUSH * 1000)
    traces.shutdown()


async def refuse_own_gateway(settings: Settings) -> None:
    """Raises UserError when the endpoint is this deployment's gateway, or another one of its kind."""
    endpoint = settings.telemetry_endpoint
    refusal = UserError(
        f"AGENTTRUST_TELEMETRY_ENDPOINT={redacted(endpoint)} is the monitor's own gateway: what it "
        "sends would be what it monitors; name a Collector"
    )
    parts = urlsplit(endpoint)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host, _, listened = settings.gateway_listen.rpartition(":")
    if port == int(listened) and _same_host(parts.hostname or "", host.strip("[]")):
        raise refusal
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ASK)) as session,
            session.get(f"{endpoint}/", allow_redirects=False) as answer,
        ):
            said = await answer.content.read(len(GREETING))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return
    if said == GREETING.encode():
        raise refusal


def _same_host(one: str, other: str) -> bool:
    return one == other or (_is_here(one) and _is_here(other))


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return False
