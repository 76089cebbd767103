"""Every metric of the project: its name, what it means, its unit, and the closed set of its labels.

    metrics.count("fold_errors")
    metrics.put("partitions_owned", 4)
    with metrics.timed("store_seconds", call="load"): ...

A misspelt name fails the type check, a misspelt label the first test that comes by. A value outside
a label's set counts as `other`: what is in a span never makes a series. docs/metrics.md is
generated from here.

The numbers are the process's own and begin at zero with it. They are served in the text format of
Prometheus (`streams.health`) and, when asked for, sent over OTLP (`streams.telemetry`).
prometheus_client keeps them: it is small, stable, typed and without dependencies, where the
exporter of opentelemetry-sdk is still a beta and renames what it exports.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal, Protocol, get_args

import prometheus_client as prometheus

from monitor.counters import Counters
from monitor.model import CloseReason, Verdict
from monitor.reading import Reason as Unread
from monitor.rule import CODES
from streams.otlp_span import Reason

PREFIX: Final = "agenttrust_"
OTHER: Final = "other"

Count = Literal[
    "messages_read",
    "message_bytes_read",
    "spans_read",
    "spans_of_other_services",
    "dead_letters",
    "lost_arrivals",
    "arrivals_folded",
    "arrivals_refolded",
    "spans_repeated",
    "spans_conflicting",
    "spans_ignored",
    "spans_extended",
    "prefixes_derived",
    "contents_loaded",
    "trajectories_closed",
    "closes_written",
    "fold_errors",
    "labels_published",
    "violations_published",
    "parse_requests",
    "readings_written",
    "llm_calls",
    "llm_tokens",
    "llm_dollars",
    "llm_oddities",
    "takeovers",
    "partitions_fenced",
    "rebalances",
    "outages",
    "outage_seconds",
    "halts",
    "gateway_requests",
    "gateway_bytes",
]
Gauge = Literal[
    "records_behind",
    "records_behind_worst",
    "seconds_behind",
    "behind_allowance",
    "partitions_owned",
    "epoch",
    "batch_bytes",
    "dead_letters_in_a_row",
    "contracts_refused",
    "gateway_bytes_held",
    "llm_breaker_open",
]
Time = Literal["batch_seconds", "store_seconds", "send_seconds", "delay_seconds"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`labels` maps each label to every value that it may have."""

    meaning: str
    unit: str = ""
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


READINGS: Final = ("assessed", *get_args(Unread))
"""What may become of a request to read a step."""
_OTLP: Final = get_args(Reason)
_JOURNAL: Final = ("not_a_journal_record", "not_an_arrival", "bad_trajectory", "wrong_partition")

COUNTS: Final[Mapping[Count, Metric]] = {
    "messages_read": Metric("Messages and journal records handled and acknowledged."),
    "message_bytes_read": Metric("Bytes of these.", "bytes"),
    "spans_read": Metric("Ingest: spans written to the journal."),
    "spans_of_other_services": Metric(
        "Ingest: spans dropped since AGENTTRUST_SERVICES names other services."
    ),
    "dead_letters": Metric(
        "What could not be read and lies in the dead-letter topic.",
        labels={"reason": (*_OTLP, "arrival_too_large", *_JOURNAL, OTHER)},
    ),
    "lost_arrivals": Metric(
        "Told to a trajectory in the journal: something of it is gone, its label is partial.",
        labels={"reason": (*_OTLP, "arrival_too_large", "history_lost", OTHER)},
    ),
    "arrivals_folded": Metric(
        "Evaluate: arrivals folded into the state, repeats among them.",
        labels={"kind": ("span", "reading", "close", "lost", "pin", "unknown", OTHER)},
    ),
    "arrivals_refolded": Metric(
        "Evaluate: arrivals folded without publishing, to win lost state back."
    ),
    "spans_repeated": Metric("Evaluate: spans that were known byte for byte."),
    "spans_conflicting": Metric("Evaluate: spans under the id of a different one."),
    "spans_ignored": Metric(
        "Evaluate: arrivals after a limit or an error of the fold: counted, not kept."
    ),
    "spans_extended": Metric("Evaluate: spans that extended a prefix at its end, the cheap way."),
    "prefixes_derived": Metric("Evaluate: prefixes derived anew from all spans, the dear way."),
    "contents_loaded": Metric(
        "Evaluate: times that all spans of a trajectory were loaded on demand."
    ),
    "trajectories_closed": Metric(
        "Evaluate: trajectories closed.", labels={"reason": (*get_args(CloseReason), OTHER)}
    ),
    "closes_written": Metric(
        "Evaluate: closes written to the journal.",
        labels={"reason": ("root_settled", "idle", OTHER)},
    ),
    "fold_errors": Metric(
        "Evaluate: trajectories that the fold broke on: a defect. Alarm above 0."
    ),
    "labels_published": Metric(
        "Labels published, repeats among them.", labels={"verdict": (*get_args(Verdict), OTHER)}
    ),
    "violations_published": Metric(
        "Violations published, repeats among them.",
        labels={"code": (*CODES, OTHER), "state": ("raised", "withdrawn")},
    ),
    "parse_requests": Metric("Evaluate: requests to read a step, repeats among them."),
    "readings_written": Metric(
        "Readings written to the journal: by `parse`, and by `evaluate` those that never came.",
        labels={"outcome": (*READINGS, OTHER)},
    ),
    "llm_calls": Metric("Parse: calls of the LLM, each with its retries."),
    "llm_tokens": Metric(
        "Parse: tokens as the server counts them.", labels={"direction": ("input", "output")}
    ),
    "llm_dollars": Metric("Parse: what these cost, where the price is known.", "US dollars"),
    "llm_oddities": Metric(
        "Parse: steps taken from the cache (`cached`), without a valid answer in a call (`invalid_item`) "
        "or asked again (`asked_again`); answers to nothing that was asked (`foreign`); calls that failed "
        "as a whole (`call_failed`) and that were divided (`split`).",
        labels={
            "kind": (
                "cached",
                "invalid_item",
                "asked_again",
                "foreign",
                "call_failed",
                "split",
                OTHER,
            )
        },
    ),
    "takeovers": Metric(
        "Evaluate: partitions taken over, by what the comparison of state and journal found: `agrees`; "
        "`new` (nothing was ever folded); `behind` (the store lost writes); `empty` (the store lost "
        "everything); `new_log` (the journal was made anew: state forgotten, a new epoch); `retention` "
        "(records were removed before they were folded). Alarm on the last four.",
        labels={"found": ("agrees", "new", "behind", "empty", "new_log", "retention")},
    ),
    "partitions_fenced": Metric(
        "Evaluate: batches dropped because another worker owns the partition."
    ),
    "rebalances": Metric("Times that the consumer group gave this worker its partitions."),
    "outages": Metric(
        "Times that a part failed or was slow (5 s) and was waited for.",
        labels={"part": ("kafka", "store")},
    ),
    "outage_seconds": Metric("Time waited.", "seconds", labels={"part": ("kafka", "store")}),
    "halts": Metric(
        "Counted just before the process ends itself, so that OTLP and the log have it: `stalled` (lag "
        "and no progress), `dead_letters` (too many in a row), `store` (the store lost writes or is not "
        "to be trusted), `fenced` (another worker has this worker's partition), `error` (anything else).",
        labels={"reason": ("stalled", "dead_letters", "store", "fenced", "error")},
    ),
    "gateway_requests": Metric(
        "Gateway: requests answered.",
        labels={
            "signal": ("traces", "logs"),
            "status": ("200", "400", "408", "413", "415", "503", OTHER),
        },
    ),
    "gateway_bytes": Metric("Gateway: bytes written to Kafka.", "bytes"),
}
GAUGES: Final[Mapping[Gauge, Metric]] = {
    "records_behind": Metric("Records that wait in the worker's partitions, as of the last look."),
    "records_behind_worst": Metric("Those of the partition with most."),
    "seconds_behind": Metric(
        "Age of the record handled last, while others wait; else 0.", "seconds"
    ),
    "behind_allowance": Metric(
        "1 while seconds_behind exceeds AGENTTRUST_ALLOWED_LAG: state is about to expire unread. Alarm."
    ),
    "partitions_owned": Metric("Partitions that the consumer group has given to this worker."),
    "epoch": Metric(
        "Evaluate: highest epoch of an owned partition: how often its log was begun anew."
    ),
    "batch_bytes": Metric("Bytes of the batches in hand.", "bytes"),
    "dead_letters_in_a_row": Metric("At AGENTTRUST_DEAD_LETTER_HALT the worker stops."),
    "contracts_refused": Metric(
        "Ingest: 1 while the contract files are wrong and the old set is kept. Alarm."
    ),
    "gateway_bytes_held": Metric(
        "Gateway: bytes of the requests in hand; bounded, above it answers 503.", "bytes"
    ),
    "llm_breaker_open": Metric(
        "Parse: 1 while the LLM is not asked because it failed too often. Alarm."
    ),
}
TIMES: Final[Mapping[Time, Metric]] = {
    "batch_seconds": Metric("Handling of a batch, its waits among it.", "seconds"),
    "store_seconds": Metric(
        "A call of the state store, outages among it.",
        "seconds",
        {"call": ("load", "save", "due", "watermark", OTHER)},
    ),
    "send_seconds": Metric("Until Kafka has acknowledged what was written.", "seconds"),
    "delay_seconds": Metric(
        "From the broker's time of a message until its effects were durable.", "seconds"
    ),
}
BUCKETS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
INFO: Final = (
    "What runs: role, version, fold version, and the digest of the policy set last in force."
)


class Mirror(Protocol):
    """Is told of every number as well; see `streams.telemetry`."""

    def count(self, name: Count, amount: float, labels: Mapping[str, str]) -> None: ...
    def put(self, name: Gauge, value: float, labels: Mapping[str, str]) -> None: ...
    def observe(self, name: Time, value: float, labels: Mapping[str, str]) -> None: ...


class _Process:
    """The numbers of this process."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        self.mirror: Mirror | None = None
        self.info = prometheus.Info(f"{PREFIX}worker", INFO, registry=self.registry)
        self.told: dict[str, str] = {}
        self.counts = {
            name: prometheus.Counter(
                PREFIX + name, m.meaning, tuple(m.labels), registry=self.registry
            )
            for name, m in COUNTS.items()
        }
        self.gauges = {
            name: prometheus.Gauge(
                PREFIX + name, m.meaning, tuple(m.labels), registry=self.registry
            )
            for name, m in GAUGES.items()
        }
        self.times = {
            name: prometheus.Histogram(
                PREFIX + name, m.meaning, tuple(m.labels), buckets=BUCKETS, registry=self.registry
            )
            for name, m in TIMES.items()
        }
        for (
            name,
            metric,
        ) in COUNTS.items():  # a series that is there from the start can be alarmed on
            for values in product(*metric.labels.values()) if metric.labels else ():
                self.counts[name].labels(*values)


_process: Final = _Process()


def _values(metric: Metric, labels: Mapping[str, str]) -> dict[str, str]:
    assert labels.keys() == metric.labels.keys(), f"labels {set(labels)} != {set(metric.labels)}"
    return {n: v if v in metric.labels[n] else OTHER for n, v in labels.items()}


def count(name: Count, amount: float = 1, /, **labels: str) -> None:
    """Adds to a counter."""
    values = _values(COUNTS[name], labels)
    counter = _process.counts[name]
    (counter.labels(**values) if values else counter).inc(amount)
    if _process.mirror is not None:
        _process.mirror.count(name, amount, values)


def put(name: Gauge, value: float, /, **labels: str) -> None:
    """Sets a gauge."""
    values = _values(GAUGES[name], labels)
    gauge = _process.gauges[name]
    (gauge.labels(**values) if values else gauge).set(value)
    if _process.mirror is not None:
        _process.mirror.put(name, value, values)


def observe(name: Time, seconds: float, /, **labels: str) -> None:
    """Adds to a histogram."""
    values = _values(TIMES[name], labels)
    histogram = _process.times[name]
    (histogram.labels(**values) if values else histogram).observe(seconds)
    if _process.mirror is not None:
        _process.mirror.observe(name, seconds, values)


@contextmanager
def timed(name: Time, /, **labels: str) -> Iterator[None]:
    """Observes how long the body takes, also when it raises."""
    began = time.perf_counter()
    try:
        yield
    finally:
        observe(name, time.perf_counter() - began, **labels)


def tell(**facts: str) -> None:
    """Adds to `agenttrust_worker_info`: one series a process, whatever is told."""
    _process.told |= facts
    _process.info.info(_process.told)


def fold(counters: Counters) -> None:
    """Takes over what an engine counted."""
    plain: tuple[tuple[Count, int], ...] = (
        ("arrivals_refolded", counters.refolded),
        ("spans_repeated", counters.duplicates),
        ("spans_conflicting", counters.conflicts),
        ("spans_ignored", counters.ignored),
        ("spans_extended", counters.extended),
        ("prefixes_derived", counters.derived),
        ("contents_loaded", counters.contents),
        ("fold_errors", counters.fold_errors),
        ("parse_requests", counters.requests),
    )
    for name, amount in plain:
        if amount:
            count(name, amount)
    for kind, amount in counters.arrivals.items():
        count("arrivals_folded", amount, kind=kind)
    for reason, amount in counters.closed.items():
        count("trajectories_closed", amount, reason=reason)
    for verdict, amount in counters.labels.items():
        count("labels_published", amount, verdict=verdict)
    for (code, state), amount in counters.violations.items():
        count("violations_published", amount, code=code, state=state)


def mirror(to: Mirror | None) -> None:
    """From now on `to` is told as well."""
    _process.mirror = to


def text() -> bytes:
    """All of it in the text format of Prometheus."""
    return prometheus.generate_latest(_process.registry)


CONTENT_TYPE: Final = prometheus.CONTENT_TYPE_LATEST


def value(name: Count | Gauge, /, **labels: str) -> float:
    """What a counter or a gauge says at present."""
    full = PREFIX + name + ("_total" if name in COUNTS else "")
    return _process.registry.get_sample_value(full, labels) or 0.0


def markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "<!-- Generated by `make docs` from streams/metrics.py. -->",
        "",
        "# Metrics",
        "",
        "Each process serves its own on `/metrics` of AGENTTRUST_HTTP_LISTEN, in the text format of",
        "Prometheus, beside those of `process_*`; see [operations](operations.md). A label has no other",
        "values than those listed; nothing that stands in a span becomes one. Counters begin at zero",
        "with the process. A repeat after a crash is counted again.",
        "",
        "`agenttrust_worker_info` has the value 1. " + INFO,
    ]
    kinds: tuple[tuple[str, Sequence[tuple[str, Metric]], str], ...] = (
        ("Counters", tuple(COUNTS.items()), "_total"),
        ("Gauges", tuple(GAUGES.items()), ""),
        ("Histograms", tuple(TIMES.items()), ""),
    )
    for title, metrics, suffix in kinds:
        lines += ["", f"## {title}", "", "| name | meaning | labels |", "| --- | --- | --- |"]
        for name, metric in metrics:
            labels = "; ".join(
                f"`{label}`: {', '.join(f'`{v}`' for v in values)}"
                for label, values in metric.labels.items()
            )
            unit = f" In {metric.unit}." if metric.unit else ""
            lines.append(f"| `{PREFIX}{name}{suffix}` | {metric.meaning}{unit} | {labels} |")
    return "\n".join(lines) + "\n"
