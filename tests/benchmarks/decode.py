"""Decode + normalise against what its libraries need for the same bytes.

Ratios of times measured in one process, the contenders taking turns: the best of three runs each,
the median of many rounds, so that neither the machine nor its load is in the result.

over_parse   the generated protobuf classes parse the same bytes and read nothing
over_needed  they parse, read what a span is made of (ids, times, status, resource, the attributes
             and events that the dialects read, each value by its type), and `orjson` parses every
             value that is JSON, once: whichever key it stands under, since each dialect has its own
             (`input.value`, `ai.prompt.messages`, an event's `content`) and a worker has to read
             them all. What is JSON within JSON stays text, and a value in Python's dialect too.

No content is known beforehand: what the monitor remembers of texts that it has read is forgotten
before each run. What it remembers of keys stays, as it would in a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from monitor.semconv import EXACT, PREFIXES, normalise
from monitor.semconv.events import EVENT_KEYS
from streams.otlp import BadSpan, decode

CAPTURES = Path(__file__).parent.parent / "captures"
ROUNDS = 40


def messages(folder: Path = CAPTURES) -> list[bytes]:
    """Every recorded trace request, in the order of its arrival."""
    return [path.read_bytes() for path in sorted(folder.glob("*/*/*.traces.pb"))]


def parse(data: Sequence[bytes]) -> None:
    for message in data:
        ExportTraceServiceRequest.FromString(message)


def needed(data: Sequence[bytes]) -> None:
    for message in data:
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            {pair.key: _scalar(pair.value) for pair in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    _needed_of(span, scope.scope.name)


def _scalar(value: AnyValue) -> object:
    return value.string_value or _typed(value)


def _typed(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_typed(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _typed(pair.value) for pair in value.kvlist_value.values}
    return getattr(value, kind) if kind else None


def _parsed(value: AnyValue) -> object:
    """The value, its JSON parsed."""
    text = value.string_value
    if not text:
        return _typed(value)
    if text[0] in "{[":
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
    return text


def _needed_of(span: Span, scope: str) -> tuple[object, ...]:
    found = {}
    for pair in span.attributes:
        key = pair.key
        if key in EXACT or key.startswith(PREFIXES):
            found[key] = _parsed(pair.value)
    events = []
    for event in span.events:
        told = {}
        for pair in event.attributes:
            key = pair.key
            if key in EVENT_KEYS or key in EXACT or key.startswith(PREFIXES):
                told[key] = _parsed(pair.value)
        events.append((event.name, told))
    return (
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.flags,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        span.status.message,
        span.dropped_attributes_count,
        events,
        found,
        scope,
    )


def ours(data: Sequence[bytes]) -> None:
    for message in data:
        for raw in decode(message):
            assert not isinstance(raw, BadSpan)
            normalise(raw)


def decode_only(data: Sequence[bytes]) -> None:
    for message in data:
        for _ in decode(message):
            pass


def ratios(data: Sequence[bytes] | None = None, rounds: int = ROUNDS) -> dict[str, float]:
    """`over_parse` and `over_needed` as above, that of decoding alone, and µs a span."""
    data = messages() if data is None else data
    contenders = (parse, needed, decode_only, ours)
    times: dict[Callable[[Sequence[bytes]], None], list[float]] = {c: [] for c in contenders}
    for _ in range(rounds):
        for contender in contenders:
            times[contender].append(min(_time(contender, data) for _ in range(3)))
    spans = sum(1 for message in data for _ in decode(message))
    return {
        "over_parse": _ratio(times[ours], times[parse]),
        "over_needed": _ratio(times[ours], times[needed]),
        "decode_over_needed": _ratio(times[decode_only], times[needed]),
        "us_per_span": min(times[ours]) / spans * 1e6,
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over the rounds: within one, a machine that changes its speed does it to both."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def _time(run: Callable[[Sequence[bytes]], None], data: Sequence[bytes]) -> float:
    start = time.perf_counter()
    run(data)
    return time.perf_counter() - start


def by_variant(rounds: int = 5) -> dict[str, dict[str, float]]:
    """`ratios` of each recorded variant, which is each dialect by itself."""
    return {
        folder.name: ratios([p.read_bytes() for p in sorted(folder.glob("*/*.traces.pb"))], rounds)
        for folder in sorted(CAPTURES.iterdir())
        if folder.is_dir()
    }


def main() -> None:
    data = messages()
    for title, input_ in (("as recorded", data), ("one message", [b"".join(data)])):
        print(title, {name: round(value, 2) for name, value in ratios(input_).items()})
    for variant, found in by_variant().items():
        print(f"{variant:52}", {name: round(value, 2) for name, value in found.items()})


if __name__ == "__main__":
    main()
