"""Which parts the tests run on, said first and last, and the fixtures that give them.

Real Kafka and Redis where this machine has them (`python -m deploy.local --fetch` fetches the jars),
else the embedded ones. TEST_PARTS=real makes anything else a failure, TEST_PARTS=embedded asks for
the embedded ones. Parts live for the whole session: use topic names and a prefix of your own.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator

import pytest

from deploy.local.kafka import Kafka
from deploy.local.redis import SAFE, RedisCluster
from tests.services import (
    PARTS,
    free_port,
    start_broker,
    start_fake_redis,
    start_kafka,
    start_redis_server,
)


def pytest_configure() -> None:
    if PARTS.wanted not in {"", "real", "embedded"}:
        raise pytest.UsageError(f"TEST_PARTS={PARTS.wanted!r}: allowed are real, embedded")
    why = PARTS.missing("kafka") or PARTS.missing("redis")
    if PARTS.wanted == "real" and why is not None:
        raise pytest.UsageError(f"TEST_PARTS=real: {why}")


def pytest_report_header() -> str:
    return f"parts: {PARTS.told()}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield
    used = ", ".join(sorted(PARTS.used)) or "none was needed"
    terminalreporter.write_line(f"parts used: {used} (this run's: {PARTS.told()})")


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka of one node."""
    with start_kafka(tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka of three nodes."""
    with start_kafka(tmp_path_factory.mktemp("kafka-cluster"), brokers=3) as started:
        yield started


@pytest.fixture(scope="session")
def embedded_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of the embedded broker."""
    port = free_port()
    with start_broker(port, tmp_path_factory.mktemp("broker") / "broker.log"):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> str:
    """Bootstrap address of a broker."""
    if PARTS.missing("kafka") is None:
        return str(request.getfixturevalue("kafka").bootstrap)
    return str(request.getfixturevalue("embedded_broker"))


@pytest.fixture(scope="session")
def embedded_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the embedded state store."""
    port = free_port()
    with start_fake_redis(port, tmp_path_factory.mktemp("fakeredis") / "redis.log"):
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="session")
def redis_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real Redis, set up as production should be."""
    with start_redis_server(free_port(), tmp_path_factory.mktemp("redis"), *SAFE) as started:
        yield started.url


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """URL of a state store."""
    real = PARTS.missing("redis") is None
    return str(request.getfixturevalue("redis_server_url" if real else "embedded_redis_url"))


@pytest.fixture(scope="session")
def redis_cluster_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Redis Cluster of one node that has all slots."""
    PARTS.need("redis")
    with RedisCluster(tmp_path_factory.mktemp("redis-cluster")) as started:
        yield started.url


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Handlers that a command of this test installed go with it: the stream they write to does."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        if handler not in before and not type(handler).__module__.startswith("_pytest"):
            root.removeHandler(handler)
    root.setLevel(level)
