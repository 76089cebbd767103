from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import warnings

import jsonschema
import pytest
import yaml

from monitor.label import LABEL, VIOLATION, Event, Label
from streams import asyncapi, topics
from streams.dead_letters import DeadLetters
from streams.events import EventWriter
from streams.settings import Settings
from tests.traces import Run, contract, llm, root, tool

with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # its fields named `schema` shadow pydantic's
    from asyncapi3.models import AsyncAPI3

SPECS = "@asyncapi/specs@6.11.1"
PLAN = topics.plan(Settings.model_construct())


@pytest.fixture(scope="module")
def document():
    return yaml.safe_load(asyncapi.page())


def resolve(document, reference):
    assert reference.startswith("#/")
    for part in reference[2:].split("/"):
        document = document[part]
    return document


def references(value):
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_it_is_an_asyncapi_document(document):
    AsyncAPI3.model_validate(document)


@pytest.mark.parametrize("place", ["channels/labels", "components/messages/label", "info"])
def test_the_models_refuse_what_is_none(document, place):
    broken = json.loads(json.dumps(document))
    resolve(broken, f"#/{place}")["adress"] = "x"
    with pytest.raises(ValueError, match="adress"):
        AsyncAPI3.model_validate(broken)


@pytest.mark.slow
def test_it_is_valid_against_the_official_schema(document, tmp_path):
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm to fetch the schema with")
    command = [npm, "pack", "--silent", SPECS]
    fetched = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    if fetched.returncode and not os.environ.get("CI"):
        pytest.skip(f"npm cannot fetch the schema: {fetched.stderr.strip()[-200:]}")
    assert fetched.returncode == 0, fetched.stderr
    with tarfile.open(tmp_path / fetched.stdout.strip()) as package:
        schema = json.load(package.extractfile(f"package/schemas/{asyncapi.ASYNCAPI}.json"))
    jsonschema.Draft7Validator(schema).validate(document)


def test_every_reference_leads_somewhere(document):
    found = list(references(document))
    assert len(found) > 10
    for reference in found:
        assert resolve(document, reference)


def test_channels_are_the_topics_that_others_see(document):
    addresses = {channel["address"]: channel for channel in document["channels"].values()}
    outside = (PLAN.spans, PLAN.labels, PLAN.violations, PLAN.dead_letters)
    assert set(addresses) == {topic.name for topic in outside}
    for topic in outside:
        binding = addresses[topic.name]["bindings"]["kafka"]
        configs = topic.configs(1)
        assert binding["partitions"] == topic.partitions
        assert {k: str(v[0] if isinstance(v, list) else v) for k, v in
                binding["topicConfiguration"].items()}.items() <= configs.items()  # fmt: skip


def test_every_channel_has_an_operation_of_the_right_direction(document):
    actions = {
        operation["channel"]["$ref"].rpartition("/")[2]: operation["action"]
        for operation in document["operations"].values()
    }
    assert actions == {
        "spans": "receive", "labels": "send", "violations": "send", "deadLetters": "send",
    }  # fmt: skip


def valid(document, name, headers, value=None):
    message = document["components"]["messages"][name]
    texts = {key: raw.decode() for key, raw in headers}
    schema = {**message["headers"], "additionalProperties": False}
    jsonschema.Draft7Validator(schema).validate(texts)
    if value is not None:
        whole = {**message["payload"], "components": document["components"]}
        jsonschema.Draft7Validator(whole).validate(json.loads(value))


def events() -> list[Event]:
    run = Run(contract("c", forbidden_tools=["z"], grounding="paper"))
    run.feed(
        llm(1, user="u", req=[("c1", "z")]), tool(2, "c1", "z"), llm(3, ans="it is T-9"), root()
    )
    run.close()
    return run.events


def test_published_events_are_as_described(document):
    writer = EventWriter(labels="l", violations="v", partitions=4)
    seen = set()
    for event in events():
        name = "label" if isinstance(event.body, Label) else "violation"
        message = writer.message(event)
        valid(document, name, message.headers, message.value)
        key = document["components"]["messages"][name]["bindings"]["kafka"]["key"]
        jsonschema.validate(message.key.decode(), key)
        seen.add(event.type)
    assert seen == {LABEL, VIOLATION}


@pytest.mark.parametrize("trajectory", [None, "0af7651916cd43dd8448eb211c80319c"])
@pytest.mark.parametrize("size", [10, 100_000])
def test_dead_letters_are_as_described(document, trajectory, size):
    letters = DeadLetters("d", partitions=4, max_bytes=70_000, halt=9)
    message = letters.letter("parse: no", "t:0:1:2", b"x" * size, trajectory)
    valid(document, "deadLetter", message.headers)


def test_a_header_that_is_not_described_is_found(document):
    with pytest.raises(jsonschema.ValidationError):
        valid(document, "deadLetter", [("reason", b"x"), ("sauce", b"y")])
