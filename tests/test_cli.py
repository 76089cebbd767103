from __future__ import annotations

import json
import os
import subprocess
import sys

import click
import pytest

from monitor.errors import InputError
from streams import cli
from streams.errors import UserError
from tests.services import ROOT

SHELL = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def raising(monkeypatch):
    def install(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(cli, "watch", command, raising=False)
        monkeypatch.setitem(cli.COMMANDS, "watch", ("streams.cli", "watch", ""))

    return install


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("one", "two"), 2, "agenttrust: one\nagenttrust: two\n"),
        (InputError("a.yaml", "bad", "good"), 2, "agenttrust: a.yaml: bad; allowed: good\n"),
        (click.UsageError("no\nway"), 2, "agenttrust: no way; try: agenttrust watch --help\n"),
        (OSError(28, "No space left"), 2, "agenttrust: No space left\n"),
        (OSError(30, "Read-only", "/x"), 2, "agenttrust: /x: Read-only\n"),
        (click.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, "\n"),
        (click.exceptions.Exit(1), 1, ""),
    ],
)
def test_every_error_is_a_line_and_a_status(raising, capsys, error, status, line):
    raising(error)
    assert cli.run(["watch"]) == status
    assert capsys.readouterr().err == line


def test_a_defect_says_that_it_is_one_and_shows_where_only_when_asked(raising, capsys, monkeypatch):
    monkeypatch.delenv("AGENTTRUST_LOG_LEVEL", raising=False)
    raising(ZeroDivisionError("oops\x1b[2J"))
    assert cli.run(["watch"]) == 70
    told = capsys.readouterr().err
    assert "this is a defect" in told
    assert "Traceback" not in told
    assert "\x1b" not in told
    monkeypatch.setenv("AGENTTRUST_LOG_LEVEL", "debug")
    assert cli.run(["watch"]) == 70
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nope"], "No such command"),
        (["worker", "--roles", "judge"], "allowed are ingest, evaluate"),
        (["worker", "--roles", ""], "allowed are ingest, evaluate"),
        (["worker", "--contracts", "/no/such"], "/no/such"),
        (["send"], "Missing argument"),
    ],
)
def test_wrong_use(capsys, args, told):
    assert cli.run(args) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1


def test_a_wrong_setting_and_a_misspelt_one(capsys, monkeypatch):
    monkeypatch.setenv("AGENTTRUST_EVIDENCE", "some")
    monkeypatch.setenv("AGENTTRUST_PARTITONS", "3")
    assert cli.run(["topics", "create"]) == 2
    assert capsys.readouterr().err == (
        "agenttrust: AGENTTRUST_PARTITONS is no setting and is ignored; "
        "meant: AGENTTRUST_PARTITIONS?\n"
        "agenttrust: AGENTTRUST_EVIDENCE=some: allowed: plain, hash or off\n"
    )


def test_every_command_has_help(capsys):
    for name in cli.COMMANDS:
        if cli.exists(cli.COMMANDS[name][0]):
            assert cli.run([name, "--help"]) == 0
            assert capsys.readouterr().out.startswith("Usage: agenttrust")


@pytest.mark.parametrize("args", [[], ["topics"], ["judge"]])
def test_a_command_that_lacks_a_subcommand_shows_its_help(capsys, args):
    assert cli.run(args) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(" ".join(["Usage: agenttrust", *args]))
    assert "\n\nCommands:\n" in shown


def test_help_loads_neither_kafka_nor_the_gateway():
    code = (
        "import sys; from streams.cli import run; run(['--help']); "
        "print(sorted({'aiokafka', 'faust', 'aiohttp', 'redis', 'openai'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_silent():
    command = f"{sys.executable} -m streams --help"
    done = subprocess.run(f"{command} | true", shell=True, capture_output=True, check=False)
    assert done.stderr == b""


def test_a_pipe_that_is_closed_early_is_told_as_shells_do_not_as_a_verdict(tmp_path):
    """`inspect --fail-on` says 1 of a violation."""
    (tmp_path / "many.py").write_text(
        "import click\nfrom streams import cli\n@click.command()\ndef watch():\n"
        "    while True: click.echo('x' * 1000)\n"
        "cli.watch = watch\ncli.COMMANDS['watch'] = ('streams.cli', 'watch', '')\n"
        "import sys; sys.argv = ['agenttrust', 'watch']; cli.main()\n"
    )
    command = f"{sys.executable} {tmp_path}/many.py | head -1; echo ${{PIPESTATUS[0]}} >&2"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, check=False, env=SHELL, timeout=60
    )
    assert (done.stdout, done.stderr) == (b"x" * 1000 + b"\n", b"141\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_a_locale_cannot_say_is_escaped(encoding):
    code = "import streams.cli as c; c.run = lambda _: print('Grüße → 世'); c.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        env=SHELL | {"PYTHONIOENCODING": encoding},
    )
    assert done.stderr == b""
    told = "Grüße".encode(encoding, "backslashreplace") + b" \\u2192 \\u4e16\n"
    assert done.stdout == told


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_streams_that_are_closed_beforehand_are_no_error(closed):
    command = f"{sys.executable} -m streams --version {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False, env=SHELL)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("args", [["--json"], []])
def test_no_span_can_command_the_terminal_of_inspect(tmp_path, capsys, args):
    hostile = "x\x1b[2J\x9b2J\x85\u2028\u202e[bold]"
    span = {
        "traceId": "ab" * 16,
        "spanId": "01" * 8,
        "name": hostile,
        "attributes": [
            {"key": key, "value": {"stringValue": value}}
            for key, value in (
                ("gen_ai.operation.name", "invoke_agent"),
                ("gen_ai.agent.name", hostile),
                ("gen_ai.conversation.id", hostile),
            )
        ],
    }
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    (tmp_path / "contracts").mkdir()
    options = [str(tmp_path / "a.json"), "--contracts", str(tmp_path / "contracts"), *args]
    assert cli.run(["inspect", *options]) == 0
    told = capsys.readouterr().out
    assert "abababab" in told
    assert all(c.isprintable() or c == "\n" for c in told)
    if args:
        assert json.loads(told)["agent"] == hostile
