"""The parts around the monitor, started for tests: a broker and state stores.

Each runs as a child process on a free loopback port and is ended by its process id. Use as
`from tests.services import broker, redis_url  # noqa: F401`.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.embedded import broker_command, store_command

START = 30.0
ROOT = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(condition: Callable[[], object], what: str, seconds: float = START) -> None:
    """Returns once `condition` holds; fails the test, naming `what`, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A child that listens on `port`; killed at the end."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    try:
        wait_for(lambda: listening(port) or process.poll() is not None, f"{command[0]} on {port}")
        assert process.poll() is None, log.read_text(errors="replace")
        yield process
    finally:
        process.kill()
        process.wait()


def start_broker(port: int, log: Path) -> contextlib.AbstractContextManager[object]:
    """The embedded Kafka-protocol broker, in memory."""
    return running(broker_command(port), port, log)


def start_fake_redis(port: int, log: Path) -> contextlib.AbstractContextManager[object]:
    """The embedded state store, for several processes."""
    return running(store_command(port), port, log)


def start_redis_server(
    port: int, folder: Path, *options: str
) -> contextlib.AbstractContextManager[object]:
    """A real one with its files in `folder`; skips the test where there is none."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    args = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    return running([binary, *args, *options], port, folder / "redis.log")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a broker for the whole session: use topic names of your own."""
    port = free_port()
    with start_broker(port, tmp_path_factory.mktemp("broker") / "broker.log"):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a state store in Python that several processes may use: use a prefix of your own."""
    port = free_port()
    with start_fake_redis(port, tmp_path_factory.mktemp("fakeredis") / "redis.log"):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def redis_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis, set up as production should be."""
    port, folder = free_port(), tmp_path_factory.mktemp("redis")
    options = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
    with start_redis_server(port, folder, *options):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def redis_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis Cluster of one node that has all slots."""
    port, folder = free_port(), tmp_path_factory.mktemp("cluster")
    bus = free_port()
    options = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--appendonly", "yes")
    with start_redis_server(port, folder, *options):
        import redis

        with redis.Redis(port=port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_for(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster to form")
        yield f"redis://127.0.0.1:{port}/0"
