"""What the deployment files say, read for tests: services, manifests, commands, environments."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from streams import topics
from streams.settings import Settings
from tests.services import ROOT

DEPLOY = ROOT / "deploy"
K8S = DEPLOY / "k8s"
BASE, SCALED, SECURE, LLM = K8S / "base", K8S / "scaled", K8S / "secure", K8S / "llm"
COMPOSE_FILE = ROOT / "docker-compose.yml"
COLLECTOR_FILE = DEPLOY / "collector.yaml"
DOCKERFILE = DEPLOY / "Dockerfile"
DEFAULTS = Settings.model_construct()
PLAN = topics.plan(DEFAULTS)
IMAGE = re.compile(r"^[a-z0-9./-]+:\d+\.\d+\.\d+(-[a-z0-9.-]+)?$")
"""A pinned image: a whole version, not a tag that moves."""


def call(command: list[Any], **more: Any) -> subprocess.CompletedProcess[str]:
    """A finished process, whatever its exit status."""
    return subprocess.run(command, check=False, capture_output=True, text=True, **more)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def instructions(name: str) -> list[str]:
    """Arguments of each such instruction of the Dockerfile, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text("utf-8"))
    return [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(f"{name} ")]


def manifests(folder: Path) -> list[dict[str, Any]]:
    """Every Kubernetes object written in a folder."""
    return [
        document
        for path in sorted(folder.glob("*.yaml"))
        if path.stem != "kustomization"
        for document in yaml.safe_load_all(path.read_text("utf-8"))
    ]


def named(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


COMPOSE = read(COMPOSE_FILE)["services"]
COLLECTOR = read(COLLECTOR_FILE)
OBJECTS = manifests(BASE) + manifests(LLM)
WORKLOADS = [o for o in OBJECTS if o["kind"] in {"Deployment", "Job"}]
DEPLOYMENTS = named(OBJECTS, "Deployment")


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    return only


def literals(folder: Path = BASE) -> dict[str, str]:
    """The settings that all pods share."""
    (generator,) = read(folder / "kustomization.yaml")["configMapGenerator"]
    return dict(line.split("=", 1) for line in generator["literals"])


@dataclass
class Started:
    """A container of our image as it is started. `mounts` are the paths that are not the image's."""

    where: str
    arguments: list[str]
    environment: dict[str, str]
    mounts: set[str]


def started() -> Iterator[Started]:
    """Every container of our image, in compose and on Kubernetes, with its whole environment."""
    image = dict(re.findall(r"(AGENTTRUST_\w+)=(\S+)", " ".join(instructions("ENV"))))
    for name, service in COMPOSE.items():
        if "build" in service:
            own = {
                key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
                for key, value in service["environment"].items()
            }
            mounts = {volume.split(":")[1] for volume in service.get("volumes", [])}
            yield Started(f"compose {name}", service["command"], image | own, mounts)
    for workload in WORKLOADS:
        spec = container(workload)
        own = {
            # A secret's value is known only in the cluster.
            entry["name"]: entry.get("value", "rediss://redis.example:6379/0")
            for entry in spec.get("env", [])
        }
        mounts = {mount["mountPath"] for mount in spec["volumeMounts"]}
        name = workload["metadata"]["name"]
        shared = literals() | (literals(LLM) if name == "parse" else {})
        yield Started(f"kubernetes {name}", spec["args"], image | shared | own, mounts)
