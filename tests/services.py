"""The parts around the monitor, started for tests: brokers and state stores.

The fixtures are in conftest.py, which also says which parts they are. Each part is a child process
on a free loopback port and is ended by its process id. Use topic names and a prefix of your own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from deploy.local import jars, redis
from deploy.local.jars import MissingError
from deploy.local.kafka import Kafka
from deploy.local.redis import RedisServer
from deploy.local.server import ROOT, Server, free_port, listening
from streams.embedded import broker_command, store_command

__all__ = [
    "PARTS",
    "ROOT",
    "free_port",
    "listening",
    "running",
    "start_broker",
    "start_fake_redis",
    "start_kafka",
    "start_redis_server",
    "wait_for",
]

START = 30.0


@dataclass
class Parts:
    """Which parts tests run on, and which of them were started.

    TEST_PARTS: `real`, `embedded`, or unset for the real ones that this machine has.
    """

    wanted: str = field(default_factory=lambda: os.environ.get("TEST_PARTS", ""))
    used: set[str] = field(default_factory=set)

    def missing(self, part: Literal["kafka", "redis"]) -> str | None:
        """Why a part is not the real one; None when it is."""
        if self.wanted == "embedded":
            return "TEST_PARTS=embedded"
        try:
            if part == "redis":
                redis.binary()
            else:
                jars.java()
                jars.cached()
        except MissingError as error:
            return str(error)
        return None

    def told(self) -> str:
        """Broker and store of this run as one line."""
        return f"{self._broker()}; {self._store()}"

    def _broker(self) -> str:
        why = self.missing("kafka")
        return f"Apache Kafka {jars.VERSION}" if why is None else f"embedded broker ({why})"

    def _store(self) -> str:
        why = self.missing("redis")
        return f"Redis {redis.version()}" if why is None else f"embedded store ({why})"

    def need(self, part: Literal["kafka", "redis"]) -> None:
        """Skips the test that needs a real part where there is none."""
        if (why := self.missing(part)) is not None:
            pytest.skip(f"needs a real {part}: {why}")


PARTS = Parts()


def wait_for(condition: Callable[[], object], what: str, seconds: float = START) -> None:
    """Returns once `condition` holds; fails the test, naming `what`, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)


def running(command: list[str], port: int, log: Path) -> Server:
    """A child that listens on `port`, as a context manager; killed at the end."""
    return Server(command, port, log)


def start_broker(port: int, log: Path) -> Server:
    """The embedded Kafka-protocol broker, in memory."""
    PARTS.used.add("embedded broker")
    return running(broker_command(port), port, log)


def start_fake_redis(port: int, log: Path) -> Server:
    """The embedded state store, for several processes."""
    PARTS.used.add("embedded store")
    return running(store_command(port), port, log)


def start_kafka(folder: Path, **options: object) -> Kafka:
    """A Kafka with its files in `folder`; skips the test where there is none."""
    PARTS.need("kafka")
    PARTS.used.add(f"Apache Kafka {jars.VERSION}")
    return Kafka(folder, **options)  # type: ignore[arg-type]


def start_redis_server(port: int, folder: Path, *options: str) -> RedisServer:
    """A Redis with its files in `folder`; skips the test where there is none."""
    PARTS.need("redis")
    PARTS.used.add(f"Redis {redis.version()}")
    return RedisServer(folder, *options, port=port)


# -- the same fixtures for test files that import them -----------------------------------------


@pytest.fixture(scope="session")
def broker(broker: str) -> str:
    return broker


@pytest.fixture(scope="session")
def redis_url(redis_url: str) -> str:
    return redis_url


@pytest.fixture(scope="session")
def redis_server_url(redis_server_url: str) -> str:
    return redis_server_url


@pytest.fixture(scope="session")
def redis_cluster_url(redis_cluster_url: str) -> str:
    return redis_cluster_url
