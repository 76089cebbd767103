"""deploy/collector.yaml, checked without a Collector."""

from __future__ import annotations

import re

from monitor.contract import load_contracts
from tests.deployed import COLLECTOR, COLLECTOR_FILE, COMPOSE, DEFAULTS, DEPLOY, PLAN

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


def test_the_exporter_has_the_fields_that_exist():
    exporter = COLLECTOR["exporters"]["kafka"]
    assert set(exporter) <= EXPORTER
    assert set(exporter["producer"]) <= PRODUCER
    assert set(exporter["sending_queue"]) <= QUEUE
    assert set(exporter["sending_queue"]["batch"]) <= BATCH
    assert set(exporter["retry_on_failure"]) <= RETRY
    assert list(exporter["record_partitioner"]) == ["round_robin"]


def test_pipelines_are_made_of_what_is_configured():
    service = COLLECTOR["service"]
    assert set(service["extensions"]) == set(COLLECTOR["extensions"])
    assert set(service["pipelines"]) == {"traces", "logs"}
    for pipeline in service["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == set(COLLECTOR[kind])
        assert pipeline["processors"][0] == "memory_limiter"


def test_the_collector_writes_to_our_topics():
    exporter = COLLECTOR["exporters"]["kafka"]
    assert exporter["traces"] == {"topic": PLAN.spans.name, "encoding": "otlp_proto"}
    assert exporter["logs"] == {"topic": PLAN.logs.name, "encoding": "otlp_proto"}


def test_messages_fit():
    exporter = COLLECTOR["exporters"]["kafka"]
    batch, producer = exporter["sending_queue"]["batch"], exporter["producer"]
    assert batch["sizer"] == "bytes"
    assert batch["min_size"] < batch["max_size"] <= producer["max_message_bytes"]
    assert producer["max_message_bytes"] == DEFAULTS.max_message_bytes
    assert producer["max_message_bytes"] < PLAN.spans.max_message_bytes
    http_limit = COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["max_request_body_size"]
    assert http_limit == DEFAULTS.gateway_max_request
    # What our client reads without a package of its own.
    assert producer["compression"] in {"none", "gzip"}


def test_the_collector_fits_its_container():
    service = COMPOSE["collector"]
    limit = COLLECTOR["processors"]["memory_limiter"]["limit_mib"]
    assert limit < int(service["mem_limit"].removesuffix("m"))
    queue = COLLECTOR["exporters"]["kafka"]["sending_queue"]["queue_size"]
    assert queue < limit * 2**20 / 2
    inside = {p.rpartition(":")[2] for p in service["ports"]}
    protocols = COLLECTOR["receivers"]["otlp"]["protocols"].values()
    assert inside == {p["endpoint"].rpartition(":")[2] for p in protocols}
    used = set(re.findall(r"\$\{env:(\w+)", COLLECTOR_FILE.read_text()))
    assert used == set(service["environment"])


def test_contracts_select_on_what_the_collector_sets():
    actions = COLLECTOR["processors"]["resource"]["attributes"]
    assert {action["action"] for action in actions} == {"upsert"}, "what agents claim is replaced"
    selected = {
        name
        for contract in load_contracts(DEPLOY / "contracts")
        for name in (contract.applies_to.attributes if contract.applies_to else {})
    }
    assert selected
    assert selected <= {action["key"] for action in actions}
