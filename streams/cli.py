"""The command `agenttrust`.

A subcommand's module is imported only when it is used, so that `--help` is quick and a command
without Kafka (`inspect`, `check`) never loads Kafka. Every mistake of the user is one line on
standard error and exit status 2.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import io
import logging
import os
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from monitor.errors import InputError, plain
from streams.errors import UserError

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "dev": ("streams.dev", "dev", "Everything on this machine, with demo runs and a live table."),
    "worker": ("streams.cli", "worker", "Run a worker: ingest, evaluate, parse, or several."),
    "gateway": ("streams.gateway", "gateway", "Accept OTLP/HTTP and write it to Kafka."),
    "topics": ("streams.cli", "topics", "Create the Kafka topics."),
    "send": ("streams.send", "send", "Send OTLP files to the spans topic."),
    "watch": ("streams.watch", "watch", "Show labels and violations as they arrive."),
    "show": ("streams.show", "show", "Tell the story of one trajectory."),
    "replay": ("streams.replay", "replay", "Judge the journal again; compare with the published."),
    "reparse": ("streams.reparse", "command", "Ask for answers to be read once more by the LLM."),
    "judge": ("streams.judge", "judge", "Tell how the LLM that reads steps does."),
    "inspect": ("streams.inspect", "inspect", "Judge OTLP files offline."),
    "check": ("streams.check", "check", "Judge golden cases."),
}
"""Name → module, attribute, one line of help."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [name for name, (module, _, _) in COMMANDS.items() if exists(module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


def exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(version("agenttrust-monitor"), prog_name="agenttrust")
def cli() -> None:
    """Judges LLM agents while they run: spans in, trust labels and contract violations out.

    Settings are environment variables AGENTTRUST_*; see docs/settings.md.
    """


@click.command()
@click.option("--roles", default="ingest,evaluate", show_default=True, help="Separated by commas.")
@click.option(
    "--contracts",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory of contracts; overrides AGENTTRUST_CONTRACTS.",
)
def worker(roles: str, contracts: Path | None) -> None:
    """Run a worker until it is told to stop. Each role is a consumer group of its own."""
    known = ("ingest", "evaluate", "parse")
    wanted = tuple(dict.fromkeys(part.strip() for part in roles.split(",") if part.strip()))
    if not wanted or not set(wanted) <= set(known):
        raise click.UsageError(f"--roles {roles!r}: allowed are {', '.join(known)}")
    from streams.settings import load  # noqa: PLC0415 - see the module's docstring

    settings = load(contracts=contracts)
    from streams.roles import run_worker  # noqa: PLC0415

    run_worker(settings, wanted)


@click.group()
def topics() -> None:
    """Create the Kafka topics."""


@topics.command()
def create() -> None:
    """Make the topics that are missing; tell where existing ones differ. Changes none of those."""
    from streams.settings import load  # noqa: PLC0415
    from streams.topics import create as make  # noqa: PLC0415
    from streams.topics import keeps_append_time  # noqa: PLC0415

    settings = load()
    outcomes = asyncio.run(make(settings))
    for outcome in outcomes:
        state = "created" if outcome.created else "differs" if outcome.differences else "exists"
        click.echo(f"{state:8} {outcome.topic.name} ({outcome.topic.partitions} partitions)")
        for difference in outcome.differences:
            click.echo(f"         {difference}")
    if not asyncio.run(keeps_append_time(settings)):
        click.echo(
            "This broker does not stamp records with its own time (LogAppendTime): the journal "
            "keeps the time of the worker that wrote a record.",
            err=True,
        )


_PIPE_CLOSED: Final = 141
"""Exit status of what a closed pipe ended, as shells tell it. Click's own, 1, is that of a verdict."""


def main() -> None:
    """Entry point: turns whatever goes wrong into one clear message and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None where it was closed
            stream.reconfigure(errors="backslashreplace")  # a locale may lack characters
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Runs a command line; its exit status."""
    from streams.settings import misspelt  # noqa: PLC0415

    # Clients tell of failures by exception; what they also log is for a worker's operator.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        for line in misspelt():
            click.echo(f"agenttrust: {line}", err=True)
        status = cli.main(args, prog_name="agenttrust", standalone_mode=False)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # Click's: whoever read has gone
            return _PIPE_CLOSED
        raise
    except UserError as error:
        return _complain(*error.lines)
    except InputError as error:
        return _complain(str(error))
    except click.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        hint = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else None
        help_ = f"; try: {hint} --help" if hint else ""
        return _complain(error.format_message().rstrip(".") + help_)
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a full disk, a folder that may not be written
        if os.environ.get("AGENTTRUST_LOG_LEVEL") == "debug":
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - nobody above could tell the user
        if os.environ.get("AGENTTRUST_LOG_LEVEL") == "debug":
            traceback.print_exc()
        hint = "this is a defect; AGENTTRUST_LOG_LEVEL=debug shows where"
        _complain(f"{type(error).__name__}: {error} ({hint})")
        return 70
    return status if isinstance(status, int) else 0


def _complain(*lines: str) -> int:
    for line in lines:
        click.echo(f"agenttrust: {plain(' '.join(line.split()), 2000)}", err=True)
    return 2
