"""Runs whose content is shown whole, with an answer of one's own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.deployment import otlp_trace


def answered(
    answer: str, tools: Sequence[str] = ("t.get",), trace: str | None = None
) -> Iterator[bytes]:
    """Requests of one run, a span each."""
    said = [{"role": "assistant", "parts": [{"type": "text", "content": answer}]}]
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Where is my order?"}]}]
    for value in otlp_trace(trace or os.urandom(16).hex(), tools):
        request = ExportTraceServiceRequest.FromString(value)
        (span,) = request.resource_spans[0].scope_spans[0].spans
        if span.name.startswith("chat"):
            for one in span.attributes:
                if one.key == "gen_ai.output.messages":
                    one.value.string_value = json.dumps(said)
            span.attributes.add(key="gen_ai.input.messages").value.string_value = json.dumps(asked)
        yield request.SerializeToString()
