"""`agenttrust dev`: everything on this machine, for a first look and for one's own agents.

Sends recorded runs through the gateway with the timing they had and shows what the monitor
publishes, until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from monitor.errors import plain
from streams.board import Board, line
from streams.connection import Connection
from streams.local import Deployment, port, replay, running
from streams.otlp_files import OtlpFile, read_files
from streams.processes import free_port, until_stopped
from streams.settings import Settings, load, variable
from streams.watch import first, subscribe

DEMO: Final = Path(__file__).parent / "demo"
_DEFAULTS: Final = {"partitions": "4", "settle_delay": "1s", "session_timeout": "6s"}
"""Settings of a small, impatient deployment; the environment overrides them."""
_ELSEWHERE: Final = {variable(name) for name in (*Connection.model_fields, "replication")}
"""What a shell says of a Kafka and a Redis elsewhere. The embedded ones are reached without."""
_ONCE: Final = 120.0
"""Seconds within which the runs must be judged."""
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


class _Show:
    """What the reader sees: a live table on a terminal, a line for each event elsewhere."""

    def __init__(self, names: dict[str, str], *, live: bool) -> None:
        self.console = Console()
        if not self.console.is_terminal:
            self.console.width = max(self.console.width, 120)
        self.board = Board(names)
        self.judged = asyncio.Event()
        self._expected = set(names)
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._live = Live(console=self.console, auto_refresh=False)
        self._is_live = live and self.console.is_terminal

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        with self.console.status(f"starting {name}"):
            yield
        self.console.print(Text(f"started {name} ({time.monotonic() - began:.1f} s)"))

    def note(self, text: str) -> None:
        self._notes.append(text)
        if not self._is_live:
            self.console.print(Text(plain(text, 1000), style="yellow"), soft_wrap=True)

    def advise(self, settings: Settings) -> None:
        gateway = f"http://{settings.gateway_listen}"
        at = f"{variable('kafka_bootstrap')}={settings.kafka_bootstrap}"
        count = f"{variable('partitions')}={settings.partitions}"
        asks = f"by {settings.llm_model}, of what contracts ask for" if settings.llm_url else "none"
        for name, text in (
            ("your own agent", f"OTEL_EXPORTER_OTLP_ENDPOINT={gateway}"),
            ("", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"),
            ("contracts", f"{settings.contracts} (read again when they change)"),
            ("events", f"{at} agenttrust watch --json"),
            ("one run", f"{at} {count} agenttrust show TRAJECTORY"),
            ("readings", asks),
            ("stop", "Ctrl-C"),
        ):
            entry = Text.assemble((f"{name:15}", "bold"), plain(text, 1000))
            self.console.print(entry, soft_wrap=True)

    async def follow(self, settings: Settings) -> None:
        def foreign(why: str) -> None:
            self.note(f"no event of ours: {why}")

        async for event in subscribe(settings, from_start=True, foreign=foreign):
            if self.board.add(event) and not self._is_live:
                self.console.print(line(event), soft_wrap=True)
            if self.board.finals() >= self._expected:
                self.judged.set()

    async def refresh(self) -> None:
        """Draws the live table, when there is one, until cancelled; the last state stays."""
        if not self._is_live:
            return
        with self._live:
            try:
                while True:
                    self._live.update(self._picture(), refresh=True)
                    await asyncio.sleep(_REFRESH)
            finally:
                self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        rows = max(3, self.console.height // 2 - 6)
        waiting = Text(f"waiting for the first label ({time.monotonic() - self._began:.0f} s)")
        shown = self.board.render(rows, self.console.width) if self.board.labels else waiting
        return Group(shown, *(Text(plain(n, 300), style="yellow") for n in self._notes[-3:]))

    def missing(self) -> list[str]:
        """Runs of which no final label was seen."""
        return sorted({self.board.names[t] for t in self._expected - self.board.finals()})


async def _send(recorded: list[Run], gateway: str) -> None:
    async with asyncio.TaskGroup() as group:
        for run in recorded:
            group.create_task(replay(run.files, gateway))
            await asyncio.sleep(_BETWEEN_RUNS)


async def _work(deployment: Deployment, show: _Show, recorded: list[Run], *, once: bool) -> None:
    """Sends, follows and shows: for ever, or until all runs are judged."""
    settings = deployment.settings
    async with asyncio.TaskGroup() as group:
        group.create_task(_send(recorded, settings.gateway_listen))
        endless = [
            group.create_task(work)
            for work in (show.follow(settings), show.refresh(), deployment.lost())
        ]
        if once:
            await show.judged.wait()
            for task in endless:
                task.cancel()


async def _dev(settings: Settings, recorded: list[Run], stop: asyncio.Event, *, once: bool) -> int:
    names = {t: run.name for run in recorded for f in run.files for t in f.trajectories()}
    show = _Show(names, live=not once)
    async with running(settings, show.note, show.step) as deployment:
        show.advise(settings)
        work = first(stop, _work(deployment, show, recorded, once=once))
        try:
            await (asyncio.wait_for(work, _ONCE) if once else work)
        except TimeoutError:
            click.echo(f"not judged within {_ONCE:g} s: {', '.join(show.missing())}", err=True)
            for worker in deployment.workers:
                for text in worker.last_lines():
                    click.echo(f"{worker.name}: {plain(text)}", err=True)
            return 1
        except BaseExceptionGroup as group:
            raise _leaf(group) from None
    if once and show.judged.is_set():
        show.console.print(show.board.table(width=show.console.width))
    return 0


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside a group."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--once", is_flag=True, help="Print the final table once all runs are judged.")
@click.option(
    "--runs",
    "folder",
    type=_FOLDER,
    default=DEMO / "runs",
    help="Folder of recorded runs, a folder each, instead of the demo's.",
)
@click.option("--contracts", type=_FOLDER, help="Directory of contracts instead of the demo's.")
def dev(folder: Path, contracts: Path | None, *, once: bool) -> None:
    """Everything on this machine: recorded runs, your own agents, and a live table.

    Where AGENTTRUST_LLM_URL names an LLM, it reads what contracts ask for.

    With --once the exit status is 1 when a run is not judged in time.
    """
    for name in list(os.environ):
        if name.upper() in _ELSEWHERE:  # settings are read in any case
            del os.environ[name]  # from here, and so from every child
    impatient = {n: v for n, v in _DEFAULTS.items() if variable(n) not in os.environ}
    chosen = load(contracts=contracts, **impatient)
    if chosen.llm_url:  # what the role would refuse is said at once
        chosen.llm_config()
        chosen.llm_budgets()
    recorded = runs(folder)
    host, asked = chosen.gateway_listen.rpartition(":")[0], port(chosen.gateway_listen)
    free = free_port(asked)
    if free != asked:
        click.echo(f"port {asked} is taken; the gateway listens on port {free} instead", err=True)
    settings = load(
        kafka_bootstrap=f"127.0.0.1:{free_port()}",
        redis_url=f"redis://127.0.0.1:{free_port()}/0",
        gateway_listen=f"{host}:{free}",
        contracts=chosen.contracts or DEMO / "contracts",
        **impatient,
    )
    status = until_stopped(lambda stop: _dev(settings, recorded, stop, once=once))
    click.get_current_context().exit(status)
