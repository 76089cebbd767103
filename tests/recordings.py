"""Recorded runs of real agents as export requests.

Each is sent under trace ids of its own, so that a recording may be used many times.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.model import Span
from monitor.semconv import normalise
from streams import otlp
from tests.services import ROOT

CAPTURES = ROOT / "tests" / "captures"
HISTORY = {"gen_ai.input.messages", "pydantic_ai.all_messages"}
OUTPUT = "gen_ai.output.messages"


def trace_id(like: str | None = None) -> str:
    """A new trace id, in the partition of another one if given."""
    return (like or os.urandom(8).hex())[:16] + os.urandom(8).hex()


def recording(
    variant: str, scenario: str, service: str | None = None
) -> list[ExportTraceServiceRequest]:
    """The trace requests of a recorded run in order, under a new trace id and, if given, the name
    of another service."""
    new: dict[bytes, bytes] = defaultdict(lambda: bytes.fromhex(trace_id()))
    requests = []
    for path in sorted((CAPTURES / variant / scenario).glob("*.traces.pb")):
        request = ExportTraceServiceRequest.FromString(path.read_bytes())
        for resource in request.resource_spans:
            for attribute in resource.resource.attributes:
                if service is not None and attribute.key == "service.name":
                    attribute.value.string_value = service
            for scope in resource.scope_spans:
                for span in scope.spans:
                    span.trace_id = new[span.trace_id]
        requests.append(request)
    assert len(new) == 1, f"{variant}/{scenario} holds {len(new)} traces"
    return requests


def observed(*requests: ExportTraceServiceRequest) -> list[Span]:
    """The spans as the monitor sees them, in the order of the wire."""
    return [
        normalise(raw)
        for request in requests
        for raw in otlp.decode(request.SerializeToString())
        if not isinstance(raw, otlp.BadSpan)
    ]


def merged(requests: Iterable[ExportTraceServiceRequest]) -> ExportTraceServiceRequest:
    """All their spans, in the same order, as one request."""
    one = ExportTraceServiceRequest()
    for request in requests:
        one.MergeFrom(request)
    return one


def single(requests: Iterable[ExportTraceServiceRequest]) -> list[ExportTraceServiceRequest]:
    """One request for each span, in the same order."""
    found = []
    for request in requests:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    one = ExportTraceServiceRequest()
                    group = one.resource_spans.add(resource=resource.resource)
                    group.scope_spans.add(scope=scope.scope, spans=[span])
                    found.append(one)
    return found


def as_json(request: ExportTraceServiceRequest) -> bytes:
    """OTLP's JSON: ids in hex, enumerations as numbers."""
    document = MessageToDict(request, use_integers_for_enums=True)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for key in ("traceId", "spanId", "parentSpanId"):
                    if key in span:
                        span[key] = b64decode(span[key]).hex()
    return json.dumps(document).encode()


def without_history(request: ExportTraceServiceRequest) -> None:
    """Leaves to model calls what they said, and to agents nothing: no result is quoted."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                agent = span.name.startswith("invoke_")
                kept = [
                    a
                    for a in span.attributes
                    if not (a.key in HISTORY or (agent and a.key == OUTPUT))
                ]
                del span.attributes[:]
                span.attributes.extend(kept)
