"""`agenttrust dev`: everything on this machine, for a first look and for one's own agents.

Starts an embedded broker and state store, the gateway and the workers as child processes, sends
recorded runs through the gateway with the timing they had, and shows what the monitor publishes.
Ctrl-C ends all of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from monitor.errors import plain
from streams.board import Board, line
from streams.embedded import broker_command, store_command
from streams.errors import UserError
from streams.otlp_files import OtlpFile, gaps, read_files
from streams.processes import Child, free_port, until_stopped
from streams.settings import Settings, load, variable
from streams.topics import create
from streams.watch import first, subscribe

DEMO: Final = Path(__file__).parent / "demo"
_DEFAULTS: Final = {"PARTITIONS": "4", "SETTLE_DELAY": "1s", "SESSION_TIMEOUT": "6s"}
"""Settings of a small, impatient deployment; the environment overrides them."""
_START: Final = 30.0
"""Seconds within which a part must answer."""
_ONCE: Final = 120.0
"""Seconds within which the demo runs must be judged."""
_LONGEST_GAP: Final = 3.0
_BETWEEN_RUNS: Final = 0.7
_REFRESH: Final = 0.25


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run: the name of its folder and its requests in order."""

    name: str
    files: list[OtlpFile]


def runs(folder: Path) -> list[Run]:
    """A run for each folder in `folder`, or one for `folder` itself. Raises UserError."""
    inner = sorted(p for p in folder.iterdir() if p.is_dir())
    return [Run(plain(f.name, 60), read_files([f])) for f in inner or [folder]]


class _Parts:
    """The child processes, the settings with which they find each other, and what they report."""

    def __init__(self, settings: Settings, folder: Path, tell: Callable[[str], None]) -> None:
        self.settings = settings
        self._folder = folder
        self._tell = tell
        environment = {
            variable(name): str(getattr(settings, name))
            for name in ("kafka_bootstrap", "redis_url", "gateway_listen", "contracts")
        }
        agenttrust = [sys.executable, "-m", "streams"]

        def child(name: str, command: list[str]) -> Child:
            return Child(name, command, folder / f"{name}.log", environment)

        self.broker = child("broker", broker_command(_port(settings.kafka_bootstrap)))
        self.store = child(
            "state store", store_command(_port(settings.redis_url.rpartition("/")[0]))
        )
        self.gateway = child("gateway", [*agenttrust, "gateway"])
        self.workers = [
            child(f"worker {role}", [*agenttrust, "worker", "--roles", role])
            for role in ("ingest", "evaluate")
        ]
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self, step: Callable[[str], Any]) -> None:
        with step("broker and state store"):
            for part, address in (
                (self.broker, self.settings.kafka_bootstrap),
                (self.store, self.settings.redis_url.rpartition("/")[0]),
            ):
                await part.start()
                await _answers(part, _port(address))
        with step("topics"):
            await create(self.settings)
        with step("gateway"):
            self._keep(self.gateway)
            await _answers(self.gateway, _port(self.settings.gateway_listen))
        with step("workers"):
            for worker in self.workers:
                self._keep(worker)

    def _keep(self, child: Child) -> None:
        self._keeping.append(asyncio.create_task(child.keep(self._tell)))

    async def lost(self) -> None:
        """Waits for the end of a part that cannot be restarted; raises UserError then."""
        waits = {asyncio.create_task(p.ended()): p for p in (self.broker, self.store)}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            raise UserError(f"the {waits[done.pop()].name} ended, and all state with it")
        finally:
            for task in waits:
                task.cancel()

    async def stop(self) -> None:
        """Ends every child, those that write before those that keep."""
        await asyncio.gather(*(c.stop() for c in (self.gateway, *self.workers)))
        await asyncio.gather(*self._keeping)
        await asyncio.gather(self.broker.stop(), self.store.stop())


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


async def _answers(part: Child, port: int) -> None:
    """Waits until something listens on the port. Raises UserError when it does not."""
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return
    raise UserError(f"the {part.name} does not start", *part.last_lines())


@asynccontextmanager
async def _running(settings: Settings, console: Console) -> AsyncIterator[tuple[_Parts, list[str]]]:
    """The started parts; on the way out all of them are ended and their logs removed."""
    notes: list[str] = []

    def tell(note: str) -> None:
        notes.append(note)
        if not console.is_terminal:
            console.print(Text(note), soft_wrap=True)

    @contextmanager
    def step(name: str) -> Iterator[None]:
        began = time.monotonic()
        with console.status(f"starting {name}"):
            yield
        console.print(Text(f"started {name} ({time.monotonic() - began:.1f} s)"))

    folder = Path(tempfile.mkdtemp(prefix="agenttrust-"))
    parts = _Parts(settings, folder, tell)
    try:
        await parts.start(step)
        yield parts, notes
    finally:
        await parts.stop()
        shutil.rmtree(folder, ignore_errors=True)


async def _send(run: Run, gateway: str) -> None:
    """Posts a run's requests to the gateway, with the time between them that they had."""
    async with aiohttp.ClientSession() as client:
        for wait, file in gaps(run.files, _LONGEST_GAP):
            await asyncio.sleep(wait)
            url = f"http://{gateway}/v1/{file.signal}"
            headers = {"Content-Type": file.media}
            for attempt in range(5):
                async with client.post(url, data=file.body, headers=headers) as answer:
                    if answer.status == 200:
                        break
                    if answer.status != 503 or attempt == 4:
                        raise UserError(f"{file.path}: the gateway says {answer.status}")
                await asyncio.sleep(1)


async def _send_all(recorded: list[Run], gateway: str) -> None:
    async with asyncio.TaskGroup() as group:
        for run in recorded:
            group.create_task(_send(run, gateway))
            await asyncio.sleep(_BETWEEN_RUNS)


def _advice(settings: Settings) -> RenderableType:
    gateway = f"http://{settings.gateway_listen}"
    watch = f"{variable('kafka_bootstrap')}={settings.kafka_bootstrap} agenttrust watch --json"
    rows = [
        (
            "your own agent",
            f"OTEL_EXPORTER_OTLP_ENDPOINT={gateway} OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        ),
        ("contracts", f"{settings.contracts} (read again when they change)"),
        ("events", watch),
        ("stop", "Ctrl-C"),
    ]
    return Group(
        *(
            Text.assemble((f"{name:15}", "bold"), plain(text, 400), overflow="fold")
            for name, text in rows
        )
    )


async def _dev(settings: Settings, recorded: list[Run], stop: asyncio.Event, *, once: bool) -> None:
    console = Console()
    names = {t: run.name for run in recorded for f in run.files for t in f.trajectories()}
    board = Board(names)
    async with _running(settings, console) as (parts, notes):
        console.print(_advice(settings), soft_wrap=True)
        judged = asyncio.Event()
        began = time.monotonic()
        live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")
        shown = live if console.is_terminal and not once else None

        def picture(rows: int | None) -> RenderableType:
            waiting = Text(f"waiting for the first label ({time.monotonic() - began:.0f} s)")
            parts_ = [board.render(rows) if board.labels else waiting]
            return Group(*parts_, *(Text(plain(n, 300), style="yellow") for n in notes[-3:]))

        async def follow() -> None:
            def foreign(why: str) -> None:
                notes.append(f"no event of ours: {why}")

            async for event in subscribe(settings, from_start=True, foreign=foreign):
                if board.add(event) and not shown:
                    console.print(line(event), soft_wrap=True)
                if board.finals() >= names.keys():
                    judged.set()

        async def refresh() -> None:
            while True:
                live.update(picture(max(5, console.height - 16)), refresh=True)
                await asyncio.sleep(_REFRESH)

        async def work() -> None:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(follow()), group.create_task(parts.lost())]
                if shown:
                    tasks.append(group.create_task(refresh()))
                group.create_task(_send_all(recorded, settings.gateway_listen))
                if once:
                    async with asyncio.timeout(_ONCE):
                        await judged.wait()
                    for task in tasks:
                        task.cancel()

        if shown:
            shown.start()
        try:
            await first(stop, work())
        except TimeoutError:
            missing = sorted(names[t] for t in names.keys() - board.finals())
            logs = [f"{w.name}: {text}" for w in parts.workers for text in w.last_lines()]
            raise UserError(f"not judged within {_ONCE:g} s: {', '.join(missing)}", *logs) from None
        except BaseExceptionGroup as group:
            raise _leaf(group) from None
        finally:
            if shown:
                shown.update(picture(None), refresh=True)
                shown.stop()
        if once and judged.is_set():
            console.print(board.render())


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@click.command()
@click.option(
    "--once", is_flag=True, help="Print the final table and exit when all runs are judged."
)
@click.option(
    "--runs",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=DEMO / "runs",
    help="Folder of recorded runs, a folder each, instead of the demo.",
)
@click.option(
    "--contracts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of contracts instead of the demo's.",
)
def dev(folder: Path, contracts: Path | None, *, once: bool) -> None:
    """Everything on this machine: recorded runs, your own agents, and a live table."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(variable(name), value)
    asked = load().gateway_listen
    port = free_port(_port(asked))
    if port != _port(asked):
        click.echo(f"{asked} is taken; the gateway listens on 127.0.0.1:{port} instead", err=True)
    settings = load(
        kafka_bootstrap=f"127.0.0.1:{free_port()}",
        redis_url=f"redis://127.0.0.1:{free_port()}/0",
        gateway_listen=f"127.0.0.1:{port}",
        contracts=contracts or load().contracts or DEMO / "contracts",
    )
    recorded = runs(folder)
    until_stopped(lambda stop: _dev(settings, recorded, stop, once=once))
