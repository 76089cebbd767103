"""The runs of `load` as OTLP export requests, written as an agent's exporter would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from msgspec import structs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.model import Message, Span
from tests.benchmarks import load

BATCH: Final = 50
"""Spans of an export request: a busy agent's exporter sends a few dozen at a time."""


RUNS: Final = 20
"""Runs of an exporter, all under way at a time."""

CONTRACT: Final = """
contract: desk
version: 1
applies_to: {service: desk}
grounding: paper
allowed_tools: [get_ticket]
parameter_rules:
  get_ticket: {required: [ticket_id]}
expected_trajectory: [get_ticket]
trajectory_mode: relaxed
"""
"""What the runs keep to."""


def exporters(count: int, *, history: bool = False, salt: int = 1) -> list[list[bytes]]:
    """What each of several agent processes exports, in order. Another salt gives other runs.

    With `history` a model call repeats all that was said before, as most agents do; without, it
    shows only what is new.
    """
    spans = load.interleaved(count * RUNS, width=RUNS)
    return [
        _requests(islice(spans, RUNS * load.SPANS), {} if history else None, salt)
        for _ in range(count)
    ]


def _requests(
    spans: Iterator[Span], said: dict[str, list[Message]] | None, salt: int
) -> list[bytes]:
    requests = []
    while batch := list(islice(spans, BATCH)):
        requests.append(request([salted(span, salt) for span in batch], said))
    return requests


def salted(span: Span, salt: int) -> Span:
    """The span as one of another run, of those that are numbered alike."""
    trajectory = f"{span.trajectory[:16]}{salt:08x}{span.trajectory[-8:]}"
    return structs.replace(span, trajectory=trajectory)


def request(spans: Sequence[Span], said: dict[str, list[Message]] | None = None) -> bytes:
    """An export request. `said` collects what a run's model calls have shown; with it, they repeat
    it all."""
    made = ExportTraceServiceRequest()
    out = _begin(made)
    for span in spans:
        _write(out.add(), span, said)
    return made.SerializeToString()


def _begin(request: ExportTraceServiceRequest) -> Any:
    """The resource and scope of the exporter; the list of its spans, still empty."""
    group = request.resource_spans.add()
    for key, value in (
        ("service.name", "desk"),
        ("deployment.environment.name", "production"),
        ("telemetry.sdk.language", "python"),
        ("telemetry.sdk.name", "opentelemetry"),
        ("telemetry.sdk.version", "1.38.0"),
    ):
        group.resource.attributes.add(key=key).value.string_value = value
    scope = group.scope_spans.add()
    scope.scope.name = "agent-sdk"
    return scope.spans


def _write(out: Any, span: Span, said: dict[str, list[Message]] | None) -> None:
    """An observed span as an OTLP one."""
    out.trace_id, out.span_id = bytes.fromhex(span.trajectory), _id(span.span_id)
    out.parent_span_id = _id(span.parent) if span.parent else b""
    out.name, out.kind, out.flags = span.name, 1, 0x101
    out.start_time_unix_nano, out.end_time_unix_nano = span.start, span.end
    found: dict[str, str | int] = {"gen_ai.agent.name": span.agent or ""}
    if span.kind == "llm":
        inputs = list(span.inputs)
        if said is not None:
            known = said.setdefault(span.trajectory, [])
            known += inputs[1:] if known else inputs
            inputs = known
        found |= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4.1-mini",
            "gen_ai.response.model": "gpt-4.1-mini",
            "gen_ai.response.id": f"chatcmpl-{span.span_id}",
            "gen_ai.usage.input_tokens": 812,
            "gen_ai.usage.output_tokens": 64,
            "server.address": "api.openai.com",
            "gen_ai.input.messages": _messages(inputs),
            "gen_ai.output.messages": _messages(span.outputs),
        }
    elif span.kind == "tool":
        found |= {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": span.tool or "",
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": span.call_id or "",
            "gen_ai.tool.call.arguments": span.arguments or "",
            "gen_ai.tool.call.result": span.result or "",
        }
    else:
        found["gen_ai.operation.name"] = "invoke_agent"
    for key, value in found.items():
        attribute = out.attributes.add(key=key)
        if isinstance(value, int):
            attribute.value.int_value = value
        else:
            attribute.value.string_value = value


def _id(span_id: str) -> bytes:
    """A span id as bytes, never all zero, which OTLP forbids."""
    return b"\xa0" + bytes.fromhex(span_id)[1:]


def _messages(messages: Sequence[Message]) -> str:
    return json.dumps([{"role": m.role, "parts": [*_parts(m)]} for m in messages])


def _parts(message: Message) -> Iterator[dict[str, Any]]:
    if message.text is not None:
        yield {"type": "text", "content": message.text}
    for call in message.calls:
        arguments = json.loads(call.arguments or "{}")
        yield {"type": "tool_call", "id": call.call_id, "name": call.tool, "arguments": arguments}
    for result in message.results:
        yield {"type": "tool_call_response", "id": result.call_id, "response": result.result}


def packed(requests: Sequence[bytes]) -> bytes:
    """Several requests as one file's content."""
    return b"".join(len(r).to_bytes(4, "big") + r for r in requests)


def unpacked(data: bytes) -> list[bytes]:
    """The requests of `packed`."""
    found, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : end])
        at = end
    return found
