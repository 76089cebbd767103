"""Decode + normalise against what its libraries need for the same bytes.

Ratios of times measured in one process, the contenders taking turns: the best of three runs each,
the median of many rounds, so that neither the machine nor its load is in the result.

over_parse   the generated protobuf classes parse the same bytes and read nothing
over_needed  they parse, read what a span is made of (ids, times, status, resource, the attributes
             and events that the dialects read, each value by its type), and `orjson` parses every
             value that is JSON, once: whichever key it stands under, since each dialect has its own
             (`input.value`, `ai.prompt.messages`, an event's `content`) and a worker has to read
             them all. What is JSON within JSON stays text, and a value in Python's dialect too.

Before each run of an agent the monitor forgets the texts that it has read, so that it knows only what
the run itself has repeated: recorded runs resemble each other more than real ones do. What it
remembers of keys stays, as it does in a worker.
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

from monitor.semconv import EXACT, PREFIXES, messages, normalise, wrapped
from monitor.semconv.events import EVENT_KEYS
from monitor.semconv.genai import instructions
from streams.otlp import BadSpan, decode

CAPTURES = Path(__file__).parent.parent / "captures"
ROUNDS = 40
OVER_PARSE = 6.0
OVER_NEEDED = 1.3

Contender = Callable[[Sequence[bytes]], None]


Runs = Sequence[Sequence[bytes]]
"""Trace requests of some runs of agents, those of a run in the order of their arrival."""


def recorded(pattern: str = "*/*") -> Runs:
    """The recorded runs, of one variant with `variant/*`."""
    folders = sorted(folder for folder in CAPTURES.glob(pattern) if folder.is_dir())
    runs = [[p.read_bytes() for p in sorted(f.glob("*.traces.pb"))] for f in folders]
    return [run for run in runs if run]


def _forget() -> None:
    messages.forget()
    wrapped.forget()
    instructions.cache_clear()


def parse(run: Sequence[bytes]) -> None:
    for message in run:
        ExportTraceServiceRequest.FromString(message)


def needed(run: Sequence[bytes]) -> None:
    for message in run:
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


def ours(run: Sequence[bytes]) -> None:
    for message in run:
        for raw in decode(message):
            assert not isinstance(raw, BadSpan)
            normalise(raw)


def decode_only(run: Sequence[bytes]) -> None:
    for message in run:
        for _ in decode(message):
            pass


def ratios(runs: Runs | None = None, rounds: int = ROUNDS) -> dict[str, float]:
    """`over_parse` and `over_needed` as above, that of decoding alone, and µs a span."""
    runs = recorded() if runs is None else runs
    contenders = (parse, needed, decode_only, ours)
    times: dict[Contender, list[float]] = {c: [] for c in contenders}
    for _ in range(rounds):
        for contender in contenders:
            times[contender].append(min(_time(contender, runs) for _ in range(3)))
    spans = sum(1 for run in runs for message in run for _ in decode(message))
    return {
        "over_parse": _ratio(times[ours], times[parse]),
        "over_needed": _ratio(times[ours], times[needed]),
        "decode_over_needed": _ratio(times[decode_only], times[needed]),
        "us_per_span": min(times[ours]) / spans * 1e6,
    }


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Median over the rounds: within one, a machine that changes its speed does it to both."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def _time(contender: Contender, runs: Runs) -> float:
    """CPU seconds; what others do meanwhile is not in them."""
    taken = 0.0
    for run in runs:
        _forget()
        start = time.process_time()
        contender(run)
        taken += time.process_time() - start
    return taken


def variants() -> list[str]:
    """Each recorded variant, which is each dialect by itself."""
    return sorted(folder.name for folder in CAPTURES.iterdir() if folder.is_dir())


def report(rounds: int = ROUNDS) -> None:
    """Prints all ratios beside their goal: of all recorded runs, and of each variant."""
    runs = recorded()
    whole = [[b"".join(message for run in runs for message in run)]]
    for title, input_, times in (
        ("all recorded runs", runs, rounds),
        ("all of them in one message", whole, rounds),
        *((variant, recorded(f"{variant}/*"), rounds // 4) for variant in variants()),
    ):
        found = ratios(input_, times)
        parse, needed = found["over_parse"], found["over_needed"]
        met = parse <= OVER_PARSE or needed <= OVER_NEEDED
        print(
            f"{title:51} {found['us_per_span']:5.1f} µs a span  {parse:5.1f} × parse  "
            f"{needed:4.2f} × needed (decode {found['decode_over_needed']:4.2f})  "
            f"{'met' if met else 'MISSED'}"
        )


if __name__ == "__main__":
    print(f"Goal: ≤ {OVER_NEEDED} × what is needed, or ≤ {OVER_PARSE:g} × a bare protobuf parse")
    report()
