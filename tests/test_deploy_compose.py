"""docker-compose.yml, checked without a container engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.resources import files

import jsonschema
import pytest
import yaml

from tests.deployed import COMPOSE, COMPOSE_FILE, DEPLOY, call, read, started


def test_compose_follows_its_specification():
    schema = json.loads((files("check_jsonschema.builtin_schemas") / "vendor" /
                         "compose-spec.json").read_text("utf-8"))  # fmt: skip
    validator = jsonschema.Draft7Validator(schema)
    document = read(COMPOSE_FILE)
    validator.validate(document)
    document["services"]["kafka"]["helthcheck"] = {}
    assert not validator.is_valid(document)


@pytest.mark.skipif(
    not shutil.which("docker") or call(["docker", "compose", "version"]).returncode != 0,
    reason="no docker compose",
)
def test_docker_compose_reads_it():
    command = ["docker", "compose", "-f", str(COMPOSE_FILE), "config", "--quiet"]
    told = call(command)
    assert (told.returncode, told.stderr) == (0, "")


def test_every_service_is_confined():
    for name, service in COMPOSE.items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service.get("read_only") or name == "kafka", name
        assert service["restart"] in {"unless-stopped", "on-failure"}, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_compose_waits_for_what_must_be_there():
    for name in ("gateway", "worker-ingest", "worker-evaluate", "worker-parse", "collector"):
        wanted = COMPOSE[name]["depends_on"]["topics"]["condition"]
        assert wanted == "service_completed_successfully", name
    for name, dependencies in ((n, s.get("depends_on", {})) for n, s in COMPOSE.items()):
        for other, how in dependencies.items():
            if how["condition"] == "service_healthy":
                assert "test" in COMPOSE[other]["healthcheck"], (name, other)


def test_compose_publishes_no_port_twice():
    ports = [p.rpartition(":")[0] for s in COMPOSE.values() for p in s.get("ports", [])]
    assert len(ports) == len(set(ports)) > 3


def test_kafka_advertises_what_clients_are_told():
    kafka = COMPOSE["kafka"]["environment"]
    advertised = dict(item.split("://") for item in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    used = {s.environment["AGENTTRUST_KAFKA_BOOTSTRAP"] for s in started() if "compose" in s.where}
    used |= set(yaml.safe_load(COMPOSE["collector"]["environment"]["KAFKA_BROKERS"]))
    assert used == {advertised["INSIDE"]}
    (port,) = COMPOSE["kafka"]["ports"]
    assert port == f"{advertised['HOST']}:{advertised['HOST'].rpartition(':')[2]}"
    listeners = {item.split("://")[0] for item in kafka["KAFKA_LISTENERS"].split(",")}
    protocols = {i.split(":")[0] for i in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    assert listeners == protocols


def test_redis_is_set_up_as_the_store_demands():
    command = COMPOSE["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"


@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on this machine")
def test_redis_accepts_its_command_line(tmp_path):
    command = COMPOSE["redis"]["command"]
    given = [shutil.which(command[0]), *command[1:], "--port", "0", "--unixsocket",
             str(tmp_path / "s"), "--dir", str(tmp_path)]  # fmt: skip
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            assert any("ready to accept connections" in line.lower() for line in lines)
        finally:
            process.kill()


def test_the_same_kafka_as_is_tested():
    pom = (DEPLOY / "local" / "pom.xml").read_text("utf-8")
    tested = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", pom)[1]
    assert COMPOSE["kafka"]["image"] == f"apache/kafka:{tested}"
