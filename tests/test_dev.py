"""`agenttrust dev` as a newcomer runs it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from streams.dev import DEMO
from tests.llm_server import ServerThread
from tests.services import listening, wait_for

pytestmark = [pytest.mark.services, pytest.mark.slow]

EXPECTED = {
    "01-pydantic-ai-ok-parallel": ("trusted", ""),
    "02-pydantic-ai-bad-forbidden": ("violated", "POLICY_TOOL_FORBIDDEN"),
    "03-agent-framework-bad-invented": ("violated", "SAFETY_"),
    "04-agent-framework-tool-error": ("trusted", ""),
    "05-google-adk-bad-forbidden": ("violated", "POLICY_TOOL_FORBIDDEN"),
    "06-google-adk-same-tool-parallel": ("trusted", ""),
    "07-pydantic-ai-no-content": ("unassessed", "content_hidden"),
}


OK = "01-pydantic-ai-ok-parallel"


@contextlib.contextmanager
def dev(*args: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("AGENTTRUST_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "streams", "dev", *args],
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def marked(mark: str) -> list[int]:
    """Processes that have the text in their environment and are not dead."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    pytest.fail(f"ended without {text!r}:\n{seen}")


def test_once_judges_every_demo_run_and_takes_another_port_when_its_own_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with dev("--once", AGENTTRUST_GATEWAY_LISTEN=address) as process:
            shown, _ = process.communicate(timeout=110)
    assert process.returncode == 0, shown
    assert f"port {address.split(':')[1]} is taken; the gateway listens on port" in shown
    table = shown[shown.rindex("trajectory") :]
    for run, (verdict, code) in EXPECTED.items():
        # A row and the lines below it that continue its codes.
        match = re.search(rf"^.*{run}.*\n(?:[ ]{{20}}.*\n)*", table, re.MULTILINE)
        assert match, (run, shown)
        assert verdict in match[0], shown
        assert "final" in match[0], shown
        assert code in match[0], shown


def test_what_a_shell_says_of_parts_elsewhere_changes_nothing(tmp_path):
    first = next(n for n in range(20_000, 32_000, 3) if not any(map(listening, range(n, n + 3))))
    elsewhere = {
        "KAFKA_BOOTSTRAP": "kafka.example:9093",
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_CA": str(tmp_path / "none.pem"),
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_USERNAME": "alice",
        "KAFKA_PASSWORD_FILE": str(tmp_path / "none"),
        "REDIS_URL": "rediss://redis.example:6380/0",
        "REDIS_USERNAME": "alice",
        "REDIS_PASSWORD": "secret",
        "REPLICATION": "3",
        "HTTP_LISTEN": f"127.0.0.1:{first}",
    }
    given = {f"AGENTTRUST_{name}": value for name, value in elsewhere.items()}
    with dev(agenttrust_redis_client_key=str(tmp_path / "none"), **given) as process:
        read_until(process, "provisional")
        for number, role in enumerate(("gateway", "ingest", "evaluate"), first):
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/healthz", timeout=10) as told:
                assert json.load(told)["role"] == role
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(number):
    mark = f"AGENTTRUST_TOPIC_PREFIX=left-{time.time_ns()}"
    with dev(**dict([mark.split("=")])) as process:
        read_until(process, "started workers")
        assert len(marked(mark)) >= 6  # itself, broker, store, gateway, two workers
        process.send_signal(number)
        process.communicate(timeout=30)
        wait_for(lambda: not marked(mark), "the end of every child", 30)
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGKILL)


def test_a_worker_that_is_killed_starts_again():
    mark = f"AGENTTRUST_TOPIC_PREFIX=again-{time.time_ns()}"
    with dev("--once", **dict([mark.split("=")])) as process:
        read_until(process, "started workers")
        for pid in marked(mark):
            if b"evaluate" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        read_until(process, "worker evaluate ended (status -9), starts again")
        shown, _ = process.communicate(timeout=110)
    assert process.returncode == 0, shown


def test_a_lost_broker_is_told_and_ends_everything():
    mark = f"AGENTTRUST_TOPIC_PREFIX=lost-{time.time_ns()}"
    with dev(**dict([mark.split("=")])) as process:
        read_until(process, "provisional")
        for pid in marked(mark):
            if b"tansu" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)
        shown, _ = process.communicate(timeout=40)
        wait_for(lambda: not marked(mark), "the end of every child", 30)
    assert process.returncode == 2
    assert "agenttrust: the broker ended, and all state with it" in shown


GATED = """
contract: gated
version: 1
grounding: "off"
semantic: {mode: gate}
"""


def test_an_llm_that_is_named_reads_what_contracts_ask_for(tmp_path):
    (tmp_path / "gated.yaml").write_text(GATED)
    with (
        ServerThread() as llm,
        dev("--once", "--contracts", str(tmp_path), "--runs", str(DEMO / "runs" / OK),
            AGENTTRUST_LLM_URL=llm.url, AGENTTRUST_LLM_MODEL="m") as process,
    ):  # fmt: skip
        shown, _ = process.communicate(timeout=110)
    assert process.returncode == 0, shown
    assert len(llm.server.asked) >= 1
    assert "by m, of what contracts ask for" in shown
    table = shown[shown.rindex("trajectory") :]
    # It points at nothing, whatever it reads: under `gate` that turns the verdict.
    assert "violated" in table
    assert "SEMANTIC_UNSUPPORTED_CLAIM" in table


def test_half_a_setting_of_an_llm_is_one_line():
    with dev(AGENTTRUST_LLM_URL="http://127.0.0.1:9/v1") as process:
        shown, _ = process.communicate(timeout=30)
    assert (process.returncode, shown) == (
        2,
        "agenttrust: the role parse needs an LLM: set AGENTTRUST_LLM_MODEL\n",
    )


def test_an_empty_folder_of_runs_is_one_line(tmp_path):
    with dev("--runs", str(tmp_path)) as process:
        shown, _ = process.communicate(timeout=30)
    assert (process.returncode, shown) == (
        2,
        f"agenttrust: {tmp_path}: no .pb or .json file in this folder\n",
    )
