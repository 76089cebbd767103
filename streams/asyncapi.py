"""docs/asyncapi.yaml: what the monitor receives and sends, as an AsyncAPI 3.0 document.

Topics come from `streams.topics`, bodies from the models in `monitor.label`, so the document says
what the code does. Internal topics (journal, contracts, parse) are nobody's interface: not in it.

https://www.asyncapi.com/docs/reference/specification/v3.0.0
https://github.com/asyncapi/bindings/tree/master/kafka (0.5.0)
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Final

import msgspec
import yaml

from monitor.label import LABEL, VIOLATION, Label, Violation
from streams.events import SOURCE
from streams.settings import Settings
from streams.topics import Topic, Topics, plan

ASYNCAPI: Final = "3.0.0"
BINDING: Final = "0.5.0"
"""Version of the Kafka bindings."""

_TRACE_ID: Final = "^[0-9a-f]{32}$"

Document = dict[str, Any]


def document() -> Document:
    """The document, with the default settings."""
    settings = Settings.model_construct()
    topics = plan(settings)
    _, schemas = msgspec.json.schema_components(
        [Label, Violation], ref_template="#/components/schemas/{name}"
    )
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": "AgentTrust Monitor",
            "version": version("agenttrust-monitor"),
            "description": "Judges LLM agents while they run. Names and figures are those of the "
            "default settings. Delivery is at least once: a repeat has the same `ce_id` and the "
            "same bytes.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "kafka": {
                "host": settings.kafka_bootstrap,
                "protocol": "kafka",
                "description": "AGENTTRUST_KAFKA_BOOTSTRAP",
            }
        },
        "channels": _channels(topics),
        "operations": _operations(),
        "components": {"messages": _messages(), "schemas": schemas},
    }


def _channels(topics: Topics) -> Document:
    return {
        name: _channel(getattr(topics, topic), messages)
        for name, (topic, messages) in {
            "spans": ("spans", ["spansProtobuf", "spansJson"]),
            "labels": ("labels", ["label"]),
            "violations": ("violations", ["violation"]),
            "deadLetters": ("dead_letters", ["deadLetter"]),
        }.items()
    }


def _channel(topic: Topic, messages: list[str]) -> Document:
    configs = topic.configs(replication=1)
    return {
        "address": topic.name,
        "description": f"{topic.holds}. Key: {topic.key}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": [topic.cleanup],
                    "retention.ms": int(configs["retention.ms"]),
                    "max.message.bytes": topic.max_message_bytes,
                },
                "bindingVersion": BINDING,
            }
        },
    }


def _operations() -> Document:
    def operation(action: str, channel: str, summary: str) -> Document:
        return {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
        }

    return {
        "receiveSpans": operation("receive", "spans", "Reads what agents did."),
        "sendLabels": operation("send", "labels", "Says how a trajectory is judged so far."),
        "sendViolations": operation(
            "send", "violations", "Says that a contract is violated, or that it is not after all."
        ),
        "sendDeadLetters": operation("send", "deadLetters", "Keeps what could not be read."),
    }


def _messages() -> Document:
    messages: Document = {}
    for encoding, content_type in (
        ("Protobuf", "application/x-protobuf"),
        ("Json", "application/json"),
    ):
        messages[f"spans{encoding}"] = {
            "title": f"OTLP trace export request, {encoding}",
            "contentType": content_type,
            "description": "ExportTraceServiceRequest, as the OpenTelemetry Collector's Kafka "
            "exporter and the gateway write it.",
            "externalDocs": {"url": "https://opentelemetry.io/docs/specs/otlp/"},
        }
    messages["label"] = _event(LABEL, "Label", "The verdict on a trajectory's prefix.")
    messages["violation"] = _event(VIOLATION, "Violation", "A violation, raised or withdrawn.")
    messages["deadLetter"] = {
        "title": "Dead letter",
        "summary": "The original bytes of what could not be read.",
        "contentType": "application/octet-stream",
        "headers": _object(
            {
                "reason": _text("a code, a colon and words"),
                "source": _text("topic, partition, offset and place in the message"),
                "trajectory": _text("trace id, when it could be read", pattern=_TRACE_ID),
                "size": _text("length of the original bytes", pattern="^[0-9]+$"),
                "blake2b": _text("128-bit digest of the original bytes", pattern=_TRACE_ID),
                "truncated": _text("the value is only their beginning", const="true"),
            },
            optional=("trajectory", "truncated"),
        ),
        "bindings": _key("trace id, where it is known"),
    }
    return messages


def _event(type_: str, body: str, summary: str) -> Document:
    """A CloudEvent in Kafka's binary content mode: attributes are headers."""
    return {
        "name": type_,
        "title": body,
        "summary": summary,
        "contentType": "application/json",
        "headers": _object(
            {
                "ce_specversion": _text("version of CloudEvents", const="1.0"),
                "ce_id": _text("identity of the event: drop what you have seen"),
                "ce_source": _text("always the same", const=SOURCE),
                "ce_type": _text("what the body is", const=type_),
                "ce_time": _text("journal time of the arrival that caused it", format="date-time"),
                "ce_subject": _text("trajectory id", pattern=_TRACE_ID),
                "content-type": _text("of the value", const="application/json"),
            }
        ),
        "payload": {"$ref": f"#/components/schemas/{body}"},
        "bindings": _key("trajectory id", pattern=_TRACE_ID),
    }


def _object(properties: Document, *, optional: tuple[str, ...] = ()) -> Document:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _text(description: str, **constraints: str) -> Document:
    return {"type": "string", "description": description, **constraints}


def _key(description: str, **constraints: str) -> Document:
    return {"kafka": {"key": _text(description, **constraints), "bindingVersion": BINDING}}


def page() -> str:
    """docs/asyncapi.yaml."""
    text = yaml.safe_dump(document(), sort_keys=False, width=100, allow_unicode=True)
    return f"# Generated by `make docs` from streams/asyncapi.py.\n{text}"
