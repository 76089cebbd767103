"""`agenttrust replay`: a range of the journal through the engine that the workers run.

Prints the events that follow, or with `--verify` compares them with what was published. It joins no
consumer group, commits nothing and touches no live state.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from monitor.errors import plain
from monitor.label import LABEL, Event
from monitor.model import FOLD_VERSION
from streams import topics
from streams.board import line
from streams.errors import UserError, of_output
from streams.events import time_text
from streams.ledger import Difference, Ledger
from streams.part import Part
from streams.patience import words
from streams.range import Asked, asked, ranges
from streams.refold import KnownSets, check_topics
from streams.settings import Settings, load
from streams.topic_log import FAILURES, TopicLog
from streams.verify import Counts, Verify, published

_LISTED: Final = 50
"""Lines for people of each kind; `--json` gives all."""


class Said:
    """What the reader sees: on standard output lines or JSON, on standard error notes."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._json = as_json
        self._listed: dict[str, int] = {}

    def note(self, text: str) -> None:
        click.echo(f"agenttrust: {plain(text, 1000)}", err=True)

    def event(self, event: Event) -> None:
        if not self._json:
            self._line(Text(f"{time_text(event.time)[:10]} ").append_text(line(event)))
            return
        fields = {"id": event.id, "type": event.type, "time": time_text(event.time)}
        self._fields(fields | {"key": event.trajectory, "value": msgspec.to_builtins(event.body)})

    def difference(self, found: Difference) -> None:
        if self._json:
            self._fields({**msgspec.to_builtins(found), "time": time_text(found.time)})
        elif self._room(found.kind):
            what = "label" if found.type == LABEL else "violation"
            text = Text(f"{found.kind:8}", style="red")
            text.append(
                f"{what:10}{plain(found.trajectory_id, 32)} {plain(found.said, 200)},"
                f" {time_text(found.time)}, id {plain(found.id, 64)}",
                style="default",
            )
            self._line(text.append(f" ({found.place})" if found.place else "", style="default"))

    def not_compared(self, trajectory: str, why: str) -> None:
        if self._json:
            self._fields({"kind": "not compared", "trajectory_id": trajectory, "why": why})
        elif self._room("not compared"):
            self._line(Text(f"not compared: {trajectory}: {why}", style="yellow"))

    def counts(self, counts: Counts) -> None:
        """The last word of a comparison."""
        if self._json:
            fields = msgspec.to_builtins(counts) | {"fold_version": FOLD_VERSION}
            self._fields({"kind": "summary", **fields})
            return
        for kind, number in self._listed.items():
            if number > _LISTED:
                self._line(Text(f"{number - _LISTED} more: {kind} (--json lists all)"))
        c = counts
        for number, text in (
            (c.not_compared, f"{_many(c.not_compared, 'trajectory')} not compared"),
            (c.open, f"{_many(c.open, 'trajectory')} open at the end, compared up to there"),
            (c.late, f"{_many(c.late, 'event')} not published yet: the workers are not so far"),
            (c.unkept, f"{_many(c.unkept, 'event')} older than what the topic has kept"),
            (c.older, f"{_many(c.older, 'published event')} older than the journal"),
        ):
            if number:
                self._line(Text(text))
        told = f"{_many(c.alike, 'event')} of {_many(c.compared, 'trajectory')} as published"
        if c.differ:
            told += f"; not so: {c.missing} missing, {c.extra} extra, {c.changed} changed"
        style = "bold red" if counts.differ else "green"
        self._line(Text(f"{told} (fold version {FOLD_VERSION})", style=style))

    def _room(self, kind: str) -> bool:
        self._listed[kind] = self._listed.get(kind, 0) + 1
        return self._listed[kind] <= _LISTED

    def _line(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)

    def _fields(self, fields: dict[str, Any]) -> None:
        click.echo(json.dumps(fields, separators=(",", ":")))  # ASCII: no terminal obeys it


def _many(number: int, what: str) -> str:
    """A number and its noun.

    >>> _many(1, "trajectory"), _many(2, "trajectory")
    ('1 trajectory', '2 trajectories')
    """
    plural = what[:-1] + "ies" if what.endswith("y") else what + "s"
    return f"{number} {what if number == 1 else plural}"


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar over `total` records on standard error when that is a terminal; yields its `advance`."""
    console = Console(stderr=True)
    columns = (TextColumn("records"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # What is printed meanwhile goes above the bar only when it goes to the same terminal.
    same = sys.stdout.isatty()
    bar = Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal,
        redirect_stdout=same,
    )  # fmt: skip
    with bar:
        task = bar.add_task("records", total=total)
        yield lambda count: bar.advance(task, count)


async def replay_range(
    settings: Settings,
    options: tuple[str | None, str | None, str | None, int | None],
    said: Said,
    *,
    verify: bool,
) -> Counts:
    """Does what the command line asks for. Raises UserError."""
    wanted = asked(*options, settings.partitions)
    await check_topics(settings)
    journal = topics.plan(settings).journal.name
    sets = KnownSets(settings)
    async with TopicLog(settings, journal, _group(settings) if verify else "") as log:
        comparison = await _comparison(settings, log, wanted, said) if verify else None
        parts = await ranges(settings, log, wanted)
        await sets.read()
        total = sum(part.stop - part.first for part in parts)
        with (
            tempfile.TemporaryDirectory(prefix="agenttrust-") as folder,
            progress(total) as advance,
        ):
            for part in parts:
                args = (settings, log, sets, part, Path(folder))
                work = Part(*args, only=wanted.trajectory, advance=advance, tell=said.note)
                with closing(work):
                    if comparison is None:
                        await _print(work, said)
                    else:
                        await comparison.compare(work)
                        _report(work.ledger, comparison.counts, said)
                    if wanted.trajectory is not None and not work.ledger.count("arrived"):
                        raise UserError(
                            f"no arrival of trajectory {wanted.trajectory} in the range"
                        )
    return Counts() if comparison is None else comparison.counts


def _group(settings: Settings) -> str:
    from streams.app import app_id  # noqa: PLC0415 - Faust is slow to load

    return app_id(settings, "evaluate")


async def _comparison(settings: Settings, log: TopicLog, wanted: Asked, said: Said) -> Verify:
    one = wanted.partition
    numbers = list(range(settings.partitions)) if one is None else [one]
    found = await published(settings, log, numbers)
    return Verify(settings, found, wanted.trajectory, said.note)


async def _print(part: Part, said: Said) -> None:
    if await part.begin():
        async for _, events in part.events():
            for event in events:
                said.event(event)
    for trajectory, why in part.ledger.not_compared():
        said.note(f"left out: trajectory {trajectory}: {why}")


def _report(ledger: Ledger, counts: Counts, said: Said) -> None:
    for trajectory, why in ledger.not_compared():
        counts.not_compared += 1
        said.not_compared(trajectory, why)
    for found in ledger.differences():
        setattr(counts, found.kind, getattr(counts, found.kind) + 1)
        said.difference(found)


@click.command()
@click.option("--from", "begin", metavar="TIME|OFFSET", help="First record; default: the oldest.")
@click.option("--to", "stop", metavar="TIME|OFFSET", help="Record to stop before; default: none.")
@click.option("--trajectory", metavar="ID", help="Only this trajectory.")
@click.option("--partition", type=int, help="Only this partition; an offset needs it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@click.option(
    "--verify", is_flag=True, help="Compare with what was published; exit 1 if it differs."
)
def replay(
    begin: str | None,
    stop: str | None,
    trajectory: str | None,
    partition: int | None,
    *,
    as_json: bool,
    verify: bool,
) -> None:
    """Judge a range of the journal again: print its events, or compare them with the published.

    Times are as in 2026-01-31T08:00:00Z. Needs room in the temporary folder (TMPDIR).
    """
    settings = load()
    said = Said(Console(highlight=False), as_json=as_json)
    options = (begin, stop, trajectory, partition)
    try:
        counts = asyncio.run(replay_range(settings, options, said, verify=verify))
    except sqlite3.Error as error:
        raise UserError(f"temporary folder {tempfile.gettempdir()}: {words(error)}") from None
    except FAILURES as error:
        if of_output(error):  # nothing was verified
            raise
        raise UserError(f"Kafka at {settings.kafka_bootstrap}: {words(error)}") from None
    if verify:
        said.counts(counts)
        click.get_current_context().exit(1 if counts.differ else 0)
