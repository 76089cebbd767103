"""deploy/k8s and deploy/contracts, checked without a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl

import kubernetes_validate
import pytest
import yaml

from monitor.contract import load_contracts
from streams import app
from streams.policy_sets import PolicySource
from streams.settings import Settings
from tests.deployed import (
    BASE,
    COMPOSE,
    DEFAULTS,
    DEPLOY,
    DEPLOYMENTS,
    IMAGE,
    LLM,
    OBJECTS,
    PLAN,
    SCALED,
    SECURE,
    WORKLOADS,
    call,
    container,
    literals,
    manifests,
    named,
    read,
)
from tests.services import ROOT

KUBERNETES = "1.37"


@pytest.mark.parametrize("manifest", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_manifests_follow_their_schemas(manifest):
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


def test_a_wrong_manifest_is_found():
    wrong = json.loads(json.dumps(DEPLOYMENTS["ingest"]))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def built(folder):
    """What kubectl makes of a folder, each object checked."""
    told = call(["kubectl", "kustomize", str(folder)])
    assert (told.returncode, told.stderr) == (0, "")
    found = list(yaml.safe_load_all(told.stdout))
    for manifest in found:
        if manifest["apiVersion"] != "keda.sh/v1alpha1":
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "agenttrust"
    return found


def composed(tmp_path, folder, *components):
    """A folder of an operator's own, made of ours."""
    whole = {
        "resources": [os.path.relpath(folder, tmp_path)],
        "components": [os.path.relpath(component, tmp_path) for component in components],
        "namespace": "agenttrust",
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(whole))
    return tmp_path


def workloads(objects):
    return [o for o in objects if o["kind"] in {"Deployment", "Job"}]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl to build with")
@pytest.mark.parametrize("folder", [BASE, SCALED])
@pytest.mark.parametrize("llm", [False, True])
def test_the_whole_builds(folder, llm, tmp_path):
    objects = built(composed(tmp_path, folder, LLM) if llm else folder)
    contracts = named(objects, "ConfigMap")["agenttrust-contracts"]["data"]
    assert set(contracts) == {path.name for path in (DEPLOY / "contracts").glob("*.yaml")}
    names = set(named(objects, "ConfigMap"))
    assert len(workloads(objects)) == 4 + llm
    for workload in workloads(objects):
        volumes = workload["spec"]["template"]["spec"]["volumes"]
        spec = container(workload)
        used = {source["configMapRef"]["name"] for source in spec["envFrom"]}
        used |= {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
        assert used <= names
        assert IMAGE.match(spec["image"])
        scaled = folder == SCALED and workload["metadata"]["name"] in {"ingest", "evaluate"}
        assert workload["kind"] == "Job" or ("replicas" in workload["spec"]) != scaled


@pytest.mark.skipif(not shutil.which("kubectl"), reason="no kubectl to build with")
def test_a_secured_kafka_is_reached_by_all(tmp_path, monkeypatch):
    objects = built(composed(tmp_path, BASE, LLM, SECURE))
    (data,) = (m["data"] for name, m in named(objects, "ConfigMap").items() if "settings" in name)
    assert data == literals() | literals(LLM) | literals(SECURE)
    assert "parse" in {workload["metadata"]["name"] for workload in workloads(objects)}
    for workload in workloads(objects):
        mounted = {m["name"]: m["mountPath"] for m in container(workload)["volumeMounts"]}
        volumes = {v["name"]: v for v in workload["spec"]["template"]["spec"]["volumes"]}
        assert volumes["kafka"]["secret"] == {"secretName": "agenttrust-kafka"}
        assert data["AGENTTRUST_KAFKA_PASSWORD_FILE"].startswith(mounted["kafka"] + "/")

    authorities = ssl.get_default_verify_paths().cafile
    if authorities is None:
        pytest.skip("no certificates of authorities on this machine")
    (tmp_path / "password").write_text("correct horse\n")
    shutil.copy(authorities, tmp_path / "ca.crt")
    for name, value in data.items():
        monkeypatch.setenv(name, value.replace("/etc/agenttrust/kafka", str(tmp_path)))
    arguments = Settings().kafka_args()
    assert arguments["security_protocol"] == "SASL_SSL"
    assert arguments["sasl_plain_password"] == "correct horse"


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w["metadata"]["name"])
def test_every_pod_is_confined(workload):
    pod = workload["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    spec = container(workload)
    assert spec["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in spec["resources"]["limits"]
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["volumeMounts"]}
    assert mounted["tmp"] == "/tmp"
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}


def test_selectors_choose_what_they_mean():
    labels = {n: d["spec"]["template"]["metadata"]["labels"] for n, d in DEPLOYMENTS.items()}
    for name, deployment in DEPLOYMENTS.items():
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels[name].items()
    for kind in ("PodDisruptionBudget", "Service", "NetworkPolicy"):
        for name, found in named(OBJECTS, kind).items():
            spec = found["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            chosen = selector.get("matchLabels", selector)
            matching = {n for n, given in labels.items() if chosen.items() <= given.items()}
            assert matching == ({name} if name in labels else set(labels)), (kind, name)
    assert set(named(OBJECTS, "PodDisruptionBudget")) == set(DEPLOYMENTS)


def test_secrets_are_known_to_those_who_need_them():
    needed = {
        "evaluate": ["AGENTTRUST_REDIS_URL"],
        "parse": ["AGENTTRUST_REDIS_URL", "AGENTTRUST_LLM_API_KEY"],
    }
    for workload in WORKLOADS:
        entries = container(workload).get("env", [])
        secret = [v["name"] for v in entries if "secretKeyRef" in v.get("valueFrom", {})]
        assert secret == needed.get(workload["metadata"]["name"], [])
    assert "AGENTTRUST_REDIS_URL" not in literals()


def test_contracts_are_where_ingest_looks():
    spec = container(DEPLOYMENTS["ingest"])
    mounted = {mount["name"]: mount["mountPath"] for mount in spec["volumeMounts"]}
    assert {e["name"]: e["value"] for e in spec["env"]} == {
        "AGENTTRUST_CONTRACTS": mounted["contracts"]
    }
    ingest = COMPOSE["worker-ingest"]
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
    scaled = named(manifests(SCALED), "ScaledObject")
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
