"""Kafka and Redis as `deploy.local` starts them, and how tests say which parts they used."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from deploy.local import jars
from deploy.local.server import Server, StartError, free_port
from tests.services import PARTS, ROOT, start_kafka, start_redis_server, wait_for

SLEEP = "import time; time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# -- one server --------------------------------------------------------------------------------


def test_a_server_that_ends_at_its_start_is_told_with_its_last_words(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('no such option')"]
    with pytest.raises(StartError, match="no such option"):
        Server(command, free_port(), tmp_path / "log").start()


def test_a_server_that_never_serves_is_killed(tmp_path):
    server = Server([sys.executable, "-c", SLEEP], free_port(), tmp_path / "log")
    server.launch()
    pid = server.pid
    with pytest.raises(StartError, match=r"did not start in 0\.1 s"):
        server.wait(0.1)
    assert not alive(pid)


def test_a_server_ends_with_a_parent_that_is_killed(tmp_path):
    program = (
        "import time; from pathlib import Path; from deploy.local.server import Server;"
        f"s = Server([{sys.executable!r}, '-c', {SLEEP!r}], 1, Path({str(tmp_path / 'log')!r}),"
        " ready=lambda _: True); s.start(); print(s.pid, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        # The guard has become the command: only then does the kernel know whose child it is.
        wait_for(lambda: b"time.sleep" in Path(f"/proc/{child}/cmdline").read_bytes(), "the child")
        parent.kill()
    wait_for(lambda: not alive(child), "the child to end")


def test_ports_are_not_those_of_outgoing_connections():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(free_port() < first for _ in range(20))


# -- the jars ----------------------------------------------------------------------------------


def test_a_failing_maven_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho '[ERROR] cannot resolve'\necho more\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{maven.parent}:/bin:/usr/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(jars.MissingError, match=r"^mvn failed: \[ERROR\] cannot resolve$"):
        jars.fetch()
    with pytest.raises(jars.MissingError, match="--fetch"):
        jars.cached()
    assert list((tmp_path / "cache" / "agenttrust").iterdir()) == []


def test_an_old_java_is_told(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(jars.MissingError, match="java is 11, not >= 17"):
        jars.java()


# -- Kafka -------------------------------------------------------------------------------------


async def write(bootstrap: str, topic: str, value: bytes) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all") as producer:
        await producer.send_and_wait(topic, value, partition=0)


async def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(30):
            return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def make(bootstrap: str, topic: str, copies: int) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        answer = await client.create_topics([NewTopic(topic, 1, copies)])
        assert [code for _, code, *_ in answer.topic_errors] == [0]
    finally:
        await client.close()


@pytest.mark.services
@pytest.mark.slow
def test_a_killed_kafka_starts_again_with_what_it_had(tmp_path):
    with start_kafka(tmp_path) as kafka:
        asyncio.run(make(kafka.bootstrap, "t", 1))
        asyncio.run(write(kafka.bootstrap, "t", b"before"))
        kafka.kill()
        assert not kafka.nodes[0].running
        kafka.start()
        asyncio.run(write(kafka.bootstrap, "t", b"after"))
        assert asyncio.run(read(kafka.bootstrap, "t", 2)) == [b"before", b"after"]
        pid = kafka.nodes[0].pid
    assert not alive(pid)


@pytest.mark.services
@pytest.mark.slow
def test_a_cluster_of_three_goes_on_without_one(kafka_cluster):
    servers = kafka_cluster.bootstrap
    assert servers.count(",") == 2
    asyncio.run(make(servers, "copied", 3))
    asyncio.run(write(servers, "copied", b"of three"))
    kafka_cluster.nodes[2].kill()
    try:
        asyncio.run(write(servers, "copied", b"of two"))
        assert asyncio.run(read(servers, "copied", 2)) == [b"of three", b"of two"]
    finally:
        kafka_cluster.start()


# -- the command -------------------------------------------------------------------------------


@pytest.mark.services
@pytest.mark.slow
def test_the_command_prints_settings_and_leaves_nothing_behind(tmp_path):
    PARTS.need("kafka")
    PARTS.need("redis")
    command = [sys.executable, "-m", "deploy.local", "--cluster"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=environment,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        names = [line.split("=")[0] for line in lines[:3]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert names == [
        f"export AGENTTRUST_{name}" for name in ("KAFKA_BOOTSTRAP", "REPLICATION", "REDIS_URL")
    ]
    assert "Ctrl-C ends all" in lines[3]
    assert list(tmp_path.iterdir()) == []
    listening = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path) not in listening.stdout


@pytest.mark.services
def test_a_redis_with_wrong_options_is_told(tmp_path):
    server = start_redis_server(free_port(), tmp_path, "--no-such-option", "1")
    with pytest.raises(StartError, match="no-such-option"):
        server.start()


# -- which parts tests use ---------------------------------------------------------------------


def pytest_run(parts: str, **environment: str) -> subprocess.CompletedProcess[str]:
    test = "tests/test_topics.py::test_asking_for_a_topic_does_not_create_it"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", test],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        env=os.environ | {"TEST_PARTS": parts} | environment,
    )


@pytest.mark.services
def test_a_run_says_which_parts_it_has_and_which_it_used():
    done = pytest_run("embedded")
    told = "embedded broker (TEST_PARTS=embedded); embedded store (TEST_PARTS=embedded)"
    assert done.returncode == 0, done.stdout
    assert f"parts: {told}" in done.stdout
    *_, last, _ = done.stdout.splitlines()
    assert last == f"parts used: embedded broker (this run's: {told})"


def test_real_parts_that_are_missing_fail_the_run(tmp_path):
    done = pytest_run("real", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "TEST_PARTS=real: " in done.stderr
    done = pytest_run("some")
    assert done.returncode != 0
    assert "allowed are real, embedded" in done.stderr
