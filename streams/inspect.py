"""`agenttrust inspect`: OTLP files judged offline, by the engine that judges the stream.

The files are read in name order as one input, folded as they would be from the journal, and every
trajectory is closed at the end of the input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
from rich.console import Console
from rich.text import Text

from monitor.contract import PolicySet, load_contracts
from monitor.engine import Engine
from monitor.errors import plain
from monitor.label import Event, Label, Violation
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Arrival, Close, Lost, Observed, Record
from monitor.prefix import Prefix
from monitor.semconv import RawLog, RawSpan, normalise
from monitor.semconv.logs import normalise_logs
from monitor.story import final_answer, steps, user_request
from streams import otlp
from streams.board import Board
from streams.errors import UserError
from streams.otlp_files import OtlpFile, read_files

PARTITION = 0


class Judged(NamedTuple):
    """One trajectory: what it did, the last label of each contract, the violations that stand."""

    trajectory: str
    prefix: Prefix
    labels: list[Label]
    violations: list[Violation]

    def report(self) -> dict[str, Any]:
        """The line of `--json`."""
        label = self.labels[0]
        return {
            "trajectory_id": self.trajectory,
            "agent": label.agent,
            "service": label.service,
            "user_request": user_request(self.prefix),
            "steps": [_all_fields(step) for step in steps(self.prefix)],
            "final_answer": final_answer(self.prefix),
            "labels": [self._label(label) for label in self.labels],
        }

    def _label(self, label: Label) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(label)
        fields["violations"] = [
            msgspec.to_builtins(violation)
            for violation in self.violations
            if violation.contract == label.contract
        ]
        return fields


class Inspection(NamedTuple):
    """What came of a set of files."""

    trajectories: list[Judged]
    warnings: list[str]
    events: list[Event]


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--contracts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of contracts. Without one every label is unassessed (no_contract).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a trajectory.")
@click.option(
    "--fail-on",
    type=click.Choice(["violated", "unassessed"]),
    help="Exit 1 when a trajectory has this verdict (unassessed: or a worse one).",
)
def inspect(
    paths: tuple[Path, ...], contracts: Path | None, *, as_json: bool, fail_on: str | None
) -> None:
    """Judge OTLP files (.pb, .json, or folders of them) offline."""
    policy_set = PolicySet(() if contracts is None else load_contracts(contracts))
    found = asyncio.run(judge(read_files(paths), policy_set))
    for warning in found.warnings:
        click.echo(f"agenttrust: {warning}", err=True)
    if as_json:
        for judged in found.trajectories:
            told = msgspec.to_builtins(judged.report())
            click.echo(json.dumps(told, separators=(",", ":")))  # ASCII: no terminal obeys it
    else:
        _show(found)
    failing = {"violated": {"violated"}, "unassessed": {"violated", "unassessed"}}
    if fail_on is not None and any(
        label.verdict in failing[fail_on] for j in found.trajectories for label in j.labels
    ):
        sys.exit(1)


async def judge(files: Sequence[OtlpFile], policy_set: PolicySet) -> Inspection:
    """Folds what the files hold and closes it. Raises UserError for a file that is not OTLP."""
    store, publisher = MemoryStore(), MemoryPublisher()
    engine = Engine(store, publisher, MemoryPolicySets(policy_set), on_fold_error=_broken)
    warnings: Counter[str] = Counter()
    seen: dict[str, int] = {}
    offset, clock = -1, 0
    for file in files:
        arrivals = tuple(_arrivals(file, warnings))
        offset += 1
        clock = max(clock, (file.newest() or 0) // 1_000_000)
        seen |= dict.fromkeys((arrival.trajectory for arrival in arrivals), offset)
        record = Record(offset, clock, policy_set.digest, arrivals)
        await engine.apply(PARTITION, [record], epoch=1)
    closes = tuple(Close(name, "end_of_input", after) for name, after in seen.items())
    await engine.apply(PARTITION, [Record(offset + 1, clock, policy_set.digest, closes)], epoch=1)
    judged = [await _judged(name, engine, publisher) for name in seen]
    whole = [found for found in judged if found is not None]
    if len(whole) < len(judged):
        warnings[f"{len(judged) - len(whole)} traces hold no agent, LLM or tool span"] += 1
    return Inspection(whole, list(warnings), publisher.events)


def _broken(trajectory: str, error: Exception) -> None:
    raise UserError(f"trajectory {trajectory} cannot be folded: {error!r}") from error


def _arrivals(file: OtlpFile, warnings: Counter[str]) -> Iterable[Arrival]:
    records: list[RawLog] = []
    decode = otlp.decode if file.signal == "traces" else otlp.decode_logs
    for number, found in enumerate(decode(file.body)):
        if isinstance(found, RawSpan):
            yield Observed(normalise(found))
            continue
        if isinstance(found, RawLog):
            records.append(found)
            continue
        what = plain(f"{found.reason}: {found.detail}".rstrip(": "))
        if not found.place:
            raise UserError(f"{file.path}: not an OTLP {file.signal} request ({what})")
        warnings[f"{file.path}: {found.place}: {what}"] += 1
        if found.trace_id is not None:
            yield Lost(found.trace_id, found.reason, f"{file.path.name}:{number}")
    yield from map(Observed, normalise_logs(records))


async def _judged(name: str, engine: Engine, publisher: MemoryPublisher) -> Judged | None:
    labels: dict[str, Label] = {}
    standing: dict[str, Violation] = {}
    for event in publisher.events:
        if event.trajectory != name:
            continue
        body = event.body
        if isinstance(body, Label):
            labels["" if body.contract is None else body.contract.digest] = body
        elif body.state == "raised":
            standing[body.id] = body
        else:
            standing.pop(body.id, None)
    if not labels:
        return None
    if len(labels) > 1:  # a contract bound only after the label without one was out
        labels.pop("", None)
    prefix = await engine.prefix(PARTITION, name)
    return Judged(name, prefix, list(labels.values()), list(standing.values()))


def _all_fields(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


def _show(found: Inspection) -> None:
    """A table of the labels, and below it each violation that stands."""
    console = Console(highlight=False)
    if not found.trajectories:
        console.print("no trajectory of an agent in this input")
        return
    board = Board()
    for event in found.events:
        if isinstance(event.body, Label):
            board.add(event)
    console.print(board.table(width=console.width))
    for judged in found.trajectories:
        for violation in judged.violations:
            text = Text(f"{plain(violation.trajectory_id[:8], 8)} {violation.code}", style="red")
            text.append(f" {plain(violation.message, 300)}", style="default")
            if violation.evidence:
                text.append(f" [{plain(violation.evidence)}]", style="dim")
            console.print(text)
