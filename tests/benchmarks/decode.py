"""Decode + normalise against what its libraries need for the same bytes.

Ratios of times measured in one process, the contenders taking turns: the best of three runs each,
the median of many rounds, so that neither the machine nor its load is in the result.

over_parse   the generated protobuf classes parse the same bytes and read nothing
over_needed  they parse, read what a span is made of (ids, times, status, resource, the attributes
             and exception events that the dialects read), and `orjson` parses the JSON among them
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import orjson
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from monitor.semconv import normalise, wanted
from streams.otlp import BadSpan, decode

CAPTURES = Path(__file__).parent.parent / "captures"
ROUNDS = 40

_JSON = ("messages", "instructions", "arguments", "result")


def messages(folder: Path = CAPTURES) -> list[bytes]:
    """Every recorded trace request, in the order of its arrival."""
    return [path.read_bytes() for path in sorted(folder.glob("*/*/*.traces.pb"))]


def parse(data: Sequence[bytes]) -> None:
    for message in data:
        ExportTraceServiceRequest.FromString(message)


def needed(data: Sequence[bytes]) -> None:
    for message in data:
        for resource in ExportTraceServiceRequest.FromString(message).resource_spans:
            _strings(resource.resource.attributes)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    _needed_of(span)


def _strings(attributes) -> dict[str, str]:  # type: ignore[no-untyped-def]
    return {attribute.key: attribute.value.string_value for attribute in attributes}


def _needed_of(span) -> tuple:  # type: ignore[no-untyped-def, type-arg]
    found = {}
    for attribute in span.attributes:
        key = attribute.key
        if wanted(key):
            value = attribute.value.string_value
            if key.endswith(_JSON) and value[:1] in ("{", "["):
                value = orjson.loads(value)
            found[key] = value
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
        [(event.name, _strings(event.attributes)) for event in span.events],
        found,
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
