"""`agenttrust watch`: labels and violations as they are published.

On a terminal a live table, otherwise a line for each event; with `--json` the events in the JSON
format of CloudEvents. Reads without a consumer group, so any number of people may watch.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import stat
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import click
import msgspec
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from rich.console import Console
from rich.live import Live

from monitor.errors import plain
from monitor.label import Event
from streams.board import Board, line
from streams.errors import UserError
from streams.events import SOURCE, NotAnEventError, read, time_text
from streams.processes import until_stopped
from streams.settings import Settings, load
from streams.topics import admin, partition_counts, plan

_LOOK: Final = 0.5
"""Seconds between two looks whether anybody still reads."""


async def subscribe(
    settings: Settings, *, from_start: bool, foreign: Callable[[str], None]
) -> AsyncIterator[Event]:
    """Events of both topics, from now on or from the oldest kept. Raises UserError.

    `foreign` hears of messages that are no events.
    """
    topics = plan(settings)
    names = [topics.labels.name, topics.violations.name]
    async with admin(settings) as client:
        counts = await partition_counts(client, names)
    if missing := [name for name in names if name not in counts]:
        told = ", ".join(missing)
        raise UserError(
            f"no topic {told} at {settings.kafka_bootstrap}; run: agenttrust topics create"
        )
    consumer = AIOKafkaConsumer(
        *names,
        **settings.kafka_args(),
        group_id=None,
        auto_offset_reset="earliest" if from_start else "latest",
    )
    try:
        await consumer.start()
        async for message in consumer:
            try:
                event = read(message.headers, message.value)
            except NotAnEventError as error:
                foreign(f"{message.topic}:{message.partition}:{message.offset}: {error}")
            else:
                yield event
    except KafkaError as error:
        raise UserError(f"cannot read from {settings.kafka_bootstrap}: {error}") from error
    finally:
        await consumer.stop()


def structured(event: Event) -> str:
    """The event in the JSON format of CloudEvents, in ASCII, so that no terminal obeys it."""
    document: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": SOURCE,
        "type": event.type,
        "time": time_text(event.time),
        "subject": event.trajectory,
        "datacontenttype": "application/json",
        "data": msgspec.to_builtins(event.body),
    }
    return json.dumps(document, separators=(",", ":"))


async def _watch(
    settings: Settings, stop: asyncio.Event, *, as_json: bool, from_start: bool
) -> None:
    console = Console()
    board = Board()
    live = (
        Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    )

    def foreign(why: str) -> None:
        click.echo(f"agenttrust: no event of ours: {plain(why)}", err=True)

    async def follow() -> None:
        async for event in subscribe(settings, from_start=from_start, foreign=foreign):
            if as_json:
                click.echo(structured(event))
            elif board.add(event):
                if live:
                    live.update(
                        board.render(max(5, console.height - 10), console.width), refresh=True
                    )
                else:
                    console.print(line(event), soft_wrap=True)

    if live:
        live.start()
    try:
        await first(stop, follow(), unread())
    finally:
        if live:
            live.stop()


async def unread() -> None:
    """Ends when standard output is a pipe that nobody reads any more: a command that waits for events
    would learn it with the next one only."""
    try:
        out = sys.stdout.fileno()
        piped = stat.S_ISFIFO(os.fstat(out).st_mode)
    except (AttributeError, OSError):  # closed beforehand, or no file
        piped = False
    if not piped:
        await asyncio.Event().wait()
    watched = select.poll()
    watched.register(out, 0)  # an error, which is what is told, need not be asked for
    while not watched.poll(0):  # noqa: ASYNC110 - nobody would set an event
        await asyncio.sleep(_LOOK)
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


async def first(stop: asyncio.Event, *works: Any) -> None:
    """Runs `works` until one ends or `stop` is set; lets its error through."""
    tasks = [asyncio.ensure_future(work) for work in (*works, stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One CloudEvent (JSON format) a line.")
@click.option("--from-start", is_flag=True, help="Begin with the oldest event that is kept.")
def watch(*, as_json: bool, from_start: bool) -> None:
    """Show labels and violations as they arrive, until Ctrl-C."""
    settings = load()
    until_stopped(lambda stop: _watch(settings, stop, as_json=as_json, from_start=from_start))
