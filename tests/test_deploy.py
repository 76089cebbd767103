"""What all files that deploy the monitor say, checked against the code and against each other."""

from __future__ import annotations

import os
import re
import sys
import tomllib

import pytest

from streams import app, metrics
from streams.settings import Settings, variable
from tests.deployed import (
    BASE,
    COLLECTOR_FILE,
    COMPOSE,
    COMPOSE_FILE,
    DEFAULTS,
    DEPLOYMENTS,
    DOCKERFILE,
    IMAGE,
    LLM,
    OBJECTS,
    PLAN,
    SCALED,
    SECURE,
    call,
    container,
    instructions,
    literals,
    named,
    read,
    started,
)
from tests.services import ROOT

PAGE = ROOT / "docs" / "operations.md"
FILES = [COMPOSE_FILE, COLLECTOR_FILE, DOCKERFILE, PAGE]
FILES += [path for folder in (BASE, SCALED, SECURE, LLM) for path in sorted(folder.iterdir())]
STARTED = list(started())


def test_every_setting_exists():
    known = {variable(name) for name in Settings.model_fields}
    found = {
        name: path.name
        for path in FILES
        for name in re.findall(r"AGENTTRUST_[A-Z_]*[A-Z](?![A-Z_*])", path.read_text("utf-8"))
    }
    assert len(found) > 8
    assert {name: where for name, where in found.items() if name not in known} == {}


def test_every_metric_exists():
    known = {f"{metrics.PREFIX}{name}" for name in (*metrics.GAUGES, *metrics.TIMES)}
    known |= {f"{metrics.PREFIX}{name}_total" for name in metrics.COUNTS}
    known |= set(
        re.findall(r"^# TYPE (agenttrust_worker_info) ", metrics.text().decode(), re.MULTILINE)
    )
    found = set(re.findall(r"agenttrust_[a-z_]+", PAGE.read_text("utf-8")))
    assert len(found) >= 8
    assert found <= known


def test_every_topic_exists():
    known = {topic.name for topic in PLAN}
    groups = {app.app_id(DEFAULTS, role) for role in ("ingest", "evaluate", "parse")}
    found = set(re.findall(r"`((?:agenttrust[.-]|otlp_)[a-z._-]+)`", PAGE.read_text("utf-8")))
    assert len(found) >= 6
    assert found <= known | groups


def test_what_is_started():
    assert len(STARTED) == 10


@pytest.mark.parametrize("process", STARTED, ids=lambda s: s.where)
def test_every_process_accepts_its_settings(process, monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("AGENTTRUST_"):
            monkeypatch.delenv(name)
    for name, value in process.environment.items():
        # A directory exists where it is mounted, and nowhere else.
        monkeypatch.setenv(name, str(tmp_path) if value in process.mounts else value)
    settings = Settings()
    has_contracts = process.arguments[-1:] == ["ingest"]
    assert (settings.contracts is not None) == has_contracts


@pytest.mark.parametrize("process", STARTED, ids=lambda s: s.where)
def test_every_command_exists(process):
    told = call([sys.executable, "-m", "streams", *process.arguments, "--help"], cwd=ROOT)
    assert told.returncode == 0, told.stderr
    if "--roles" in process.arguments:
        assert process.arguments[process.arguments.index("--roles") + 1] in {
            "ingest",
            "evaluate",
            "parse",
        }


def test_every_image_is_pinned():
    used = [service["image"] for service in COMPOSE.values()]
    used += [line.split()[0] for line in instructions("FROM")]
    for folder in (BASE, LLM):
        (own,) = read(folder / "kustomization.yaml")["images"]
        used.append(f"{own.get('newName', own['name'])}:{own['newTag']}")
    assert len(used) == 12
    assert [image for image in used if not IMAGE.match(image)] == []


@pytest.mark.parametrize("image", ["redis", "redis:latest", "redis:8", "redis:8-alpine"])
def test_an_image_that_is_not_pinned_is_found(image):
    assert not IMAGE.match(image)


def test_our_image_has_the_version_of_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    with_client = f"agenttrust-monitor:{version}-llm"
    for name, service in COMPOSE.items():
        if "build" in service:
            parse = name == "worker-parse"
            assert service["image"] == (with_client if parse else with_client[: -len("-llm")]), name
            assert ("args" in service["build"]) == parse
    (image,) = read(BASE / "kustomization.yaml")["images"]
    assert (image["name"], image["newTag"]) == ("agenttrust-monitor", version)
    (image,) = read(LLM / "kustomization.yaml")["images"]
    assert f"{image['newName']}:{image['newTag']}" == with_client
    assert container(DEPLOYMENTS["parse"])["image"] == image["name"]


def test_only_who_asks_an_llm_starts_with_one(monkeypatch, tmp_path):
    assert COMPOSE["worker-parse"]["profiles"] == ["llm"]
    assert {name for name, service in COMPOSE.items() if "profiles" in service} == {"worker-parse"}
    assert "parse" not in str(read(BASE / "kustomization.yaml"))
    for process in STARTED:
        named = {name for name in process.environment if name.startswith("AGENTTRUST_LLM_")}
        assert bool(named) == (process.arguments[-1] == "parse"), process.where
    (parse,) = (s for s in STARTED if s.where == "kubernetes parse")
    for name, value in parse.environment.items():
        monkeypatch.setenv(name, value)
    config = Settings().llm_config()
    assert (config.url, config.model) == ("http://llm.llm.svc:8000/v1", "my-model")


def test_ports_agree():
    (exposed,) = instructions("EXPOSE")
    ports = {
        s.environment[name].rpartition(":")[2]
        for s in STARTED
        for name in ("AGENTTRUST_HTTP_LISTEN", "AGENTTRUST_GATEWAY_LISTEN")
        if name in s.environment
    }
    assert set(exposed.split()) == ports
    otlp = literals()["AGENTTRUST_GATEWAY_LISTEN"].rpartition(":")[2]
    health = literals()["AGENTTRUST_HTTP_LISTEN"].rpartition(":")[2]
    assert COMPOSE["gateway"]["command"][-1].rpartition(":")[2] == otlp
    for name, workload in DEPLOYMENTS.items():
        spec = container(workload)
        ports = {p["name"]: str(p["containerPort"]) for p in spec["ports"]}
        assert ports == {"http": health} | ({"otlp-http": otlp} if name == "gateway" else {})
        told = {p: spec[p]["httpGet"] for p in ("startupProbe", "livenessProbe", "readinessProbe")}
        if name == "gateway":  # a restart would not bring Kafka back
            assert told.pop("livenessProbe") == {"path": "/", "port": "otlp-http"}
        assert all(get == {"path": "/healthz", "port": "http"} for get in told.values()), name
    (service,) = named(OBJECTS, "Service").values()
    assert [str(port["port"]) for port in service["spec"]["ports"]] == [otlp]
