"""`agenttrust judge report`: how the LLM does, from the journal and the labels.

Rates, reasons, tokens, latency and cost come from the readings in the journal; disagreement and
calibration from the labels. Nothing is asked of the LLM.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from aiokafka import TopicPartition

from monitor.label import Label
from monitor.model import LayerState, Reading
from streams import topics
from streams.calibration import Agreement, Estimate, Human, agreement, read_humans
from streams.events import NotAnEventError, read
from streams.journal import decode
from streams.refold import Extent, extents, messages, offsets
from streams.setting_values import parse_duration
from streams.settings import Settings, load

_DISAGREEMENT: Final = "SEMANTIC_DISAGREEMENT"
_UNSUPPORTED: Final[dict[LayerState, bool]] = {"pass": False, "fail": True}


class Report(msgspec.Struct):
    """Figures of the readings in a time range. Rates are shares of readings, 0 to 1."""

    readings: int = 0
    trajectories: int = 0
    unassessed: dict[str, int] = {}
    """By reason."""
    models: dict[str, int] = {}
    from_cache: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """US dollars; readings without a known price count as `unpriced`."""
    unpriced: int = 0
    latency_median: float | None = None
    latency_p99: float | None = None
    labels: int = 0
    """Labels, the last of each trajectory and contract, that have a semantic layer."""
    layers: dict[str, int] = {}
    disagreements: int = 0
    calibration: Agreement | None = None
    deterministic: Agreement | None = None
    """The deterministic grounding against the same people."""

    @property
    def unassessed_rate(self) -> float:
        return sum(self.unassessed.values()) / self.readings if self.readings else 0.0

    @property
    def invalid_rate(self) -> float:
        return self.unassessed.get("invalid", 0) / self.readings if self.readings else 0.0

    @property
    def disagreement_rate(self) -> float:
        return self.disagreements / self.labels if self.labels else 0.0

    @property
    def cost_of_1000(self) -> float:
        """US dollars for a thousand trajectories."""
        return 1000 * self.cost / self.trajectories if self.trajectories else 0.0


def report(
    readings: Iterable[Reading], labels: Iterable[Label], humans: list[Human] | None, seed: int
) -> Report:
    """Repeats of a reading count once; of a trajectory's labels the last revision counts."""
    found = Report()
    seen: set[str] = set()
    of: set[str] = set()
    reasons: Counter[str] = Counter()
    models: Counter[str] = Counter()
    latencies: list[float] = []
    for reading in readings:
        if reading.id in seen:
            continue
        seen.add(reading.id)
        of.add(reading.trajectory)
        if reading.status != "assessed":
            reasons[reading.reason or "unknown"] += 1
        account = reading.account
        if account is None:
            continue
        if account.model:
            models[account.model] += 1
        found.from_cache += reading.status == "assessed" and account.batch == 0
        found.input_tokens += round(account.input_tokens)
        found.output_tokens += round(account.output_tokens)
        found.cost += account.cost or 0.0
        found.unpriced += account.cost is None and account.input_tokens > 0
        if account.batch:
            latencies.append(account.latency)
    found.readings, found.trajectories = len(seen), len(of)
    found.unassessed, found.models = dict(reasons.most_common()), dict(models.most_common())
    if latencies:
        latencies.sort()
        found.latency_median = latencies[len(latencies) // 2]
        found.latency_p99 = latencies[int(0.99 * (len(latencies) - 1))]
    _labels(found, labels, humans, seed)
    return found


def _labels(found: Report, labels: Iterable[Label], humans: list[Human] | None, seed: int) -> None:
    last: dict[tuple[str, str], Label] = {}
    for label in labels:
        if label.contract is None or "semantic" not in label.layers:
            continue
        key = label.trajectory_id, label.contract.name
        if key not in last or last[key].revision <= label.revision:
            last[key] = label
    found.labels = len(last)
    found.layers = dict(Counter(label.layers["semantic"] for label in last.values()).most_common())
    found.disagreements = sum(_DISAGREEMENT in label.violations for label in last.values())
    if humans is not None:
        found.calibration, found.deterministic = (
            agreement(
                {key: _UNSUPPORTED.get(label.layers[layer]) for key, label in last.items()},
                humans,
                seed=seed,
            )
            for layer in ("semantic", "grounding")
        )


# -- where they come from --------------------------------------------------------------------


async def collect(settings: Settings, since: float) -> tuple[list[Reading], list[Label]]:
    """Readings of the journal and labels of the last `since` seconds."""
    plan = topics.plan(settings)
    places = [
        TopicPartition(topic.name, number)
        for topic in (plan.journal, plan.labels)
        for number in range(settings.partitions)
    ]
    bounds = await extents(settings, places)
    first = await offsets(settings, places, round((time.time() - since) * 1000))
    bounds = {
        place: Extent(max(extent.start, first.get(place, extent.start)), extent.end)
        for place, extent in bounds.items()
    }
    readings: list[Reading] = []
    labels: list[Label] = []
    async for found in messages(settings, bounds):
        for message in found:
            if message.topic == plan.journal.name:
                arrivals = decode(message.value, message.partition, settings.partitions).arrivals
                readings += (one for one in arrivals if isinstance(one, Reading))
                continue
            try:
                body = read(message.headers, message.value).body
            except NotAnEventError:
                continue
            if isinstance(body, Label):
                labels.append(body)
    return readings, labels


# -- the command -----------------------------------------------------------------------------


@click.group()
def judge() -> None:
    """Tell how the LLM that reads steps does."""


@judge.command(name="report")
@click.option("--since", default="24h", show_default=True, help="How far back, such as 30m or 7d.")
@click.option(
    "--humans",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON Lines of human labels to calibrate against; see docs/semantic.md.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def report_command(since: str, humans: Path | None, seed: int, as_json: bool) -> None:
    """Rates, cost and calibration of the readings in the journal."""
    try:
        seconds = parse_duration(since)
    except ValueError:
        raise click.UsageError(f"--since {since!r}: allowed is a duration such as 30m") from None
    people = None if humans is None else read_humans(humans)
    readings, labels = asyncio.run(collect(load(), seconds))
    found = report(readings, labels, people, seed)
    click.echo(json.dumps(document(found), indent=2) if as_json else text(found))


def document(found: Report) -> dict[str, Any]:
    """The report as JSON values."""
    figures: dict[str, Any] = msgspec.to_builtins(found)
    return figures | {
        name: getattr(found, name)
        for name in ("unassessed_rate", "invalid_rate", "disagreement_rate", "cost_of_1000")
    }


def text(found: Report) -> str:
    """The report for people."""
    of = ", ".join(f"{reason} {count}" for reason, count in found.unassessed.items())
    models = ", ".join(f"{model} {count}" for model, count in found.models.items())
    trajectories = f"{found.readings} of {found.trajectories} trajectories"
    lines = [
        f"readings        {trajectories} ({found.from_cache} from the cache)",
        f"models          {models or 'none'}",
        f"unassessed      {found.unassessed_rate:.1%}" + (f" ({of})" if of else ""),
        f"invalid         {found.invalid_rate:.1%}",
        f"tokens          {found.input_tokens} in, {found.output_tokens} out",
        f"cost            {found.cost:.4f} USD, {found.cost_of_1000:.2f} USD for 1 000 trajectories"
        + (f" ({found.unpriced} readings without a price)" if found.unpriced else ""),
        f"labels          {found.labels} with a semantic layer"
        + "".join(f", {count} {state}" for state, count in found.layers.items()),
        f"disagreement    {found.disagreement_rate:.1%} with the deterministic grounding",
    ]
    if found.latency_median is not None and found.latency_p99 is not None:
        lines.append(
            f"latency         {found.latency_median:.2f} s median, {found.latency_p99:.2f} s p99"
        )
    for name, one in (("semantic", found.calibration), ("deterministic", found.deterministic)):
        if one is not None:
            lines += ["", *_calibration(name, one)]
    return "\n".join(lines)


def _calibration(name: str, one: Agreement) -> list[str]:
    return [
        f"{name} against {one.cases} human labels ({one.unjudged} more were not judged)",
        f"  precision     {_shown(one.precision)}",
        f"  recall        {_shown(one.recall)}",
        f"  Cohen's kappa {_shown(one.kappa)}",
    ]


def _shown(estimate: Estimate) -> str:
    if estimate.value is None:
        return "not defined"
    interval = "" if estimate.low is None else f" (95%: {estimate.low:.2f} to {estimate.high:.2f})"
    return f"{estimate.value:.2f}{interval}"
