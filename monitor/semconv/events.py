"""Messages told by events: of a span, in a JSON attribute `events`, or in log records.

Conventions up to 1.36 (https://github.com/open-telemetry/semantic-conventions/blob/v1.36.0/docs/gen-ai/gen-ai-events.md)
write one event for each message: `gen_ai.{system,user,assistant,tool}.message` for the input and
`gen_ai.choice` for the output. Later ones write one, `gen_ai.client.inference.operation.details`,
with the attributes of the current conventions. Where a span event has no body its attributes are one
(Strands), or hold it as JSON (Azure). The oldest are `gen_ai.content.prompt` and `.completion`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from monitor.semconv.messages import split
from monitor.semconv.raw import RawEvent, RawSpan, Value
from monitor.semconv.wrapped import Raw, fields, string

DETAILS: Final = "gen_ai.client.inference.operation.details"
CHOICE: Final = "gen_ai.choice"
_PROMPT: Final = "gen_ai.content.prompt"
_COMPLETION: Final = "gen_ai.content.completion"
_CONTENT: Final = "gen_ai.event.content"
_NAME: Final = "event.name"
_ROLES: Final = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
    CHOICE: "assistant",
}
NAMES: Final = frozenset({*_ROLES, DETAILS, _PROMPT, _COMPLETION})
"""Events that tell messages."""
EVENT_KEYS: Final = frozenset(
    {
        "content",
        "message",
        "role",
        "id",
        "name",
        "tool_calls",
        "output",
        "gen_ai.prompt",
        "gen_ai.completion",
        _CONTENT,
    }
)
"""Attributes of a span's events that make up a message or a result."""


class Told(NamedTuple):
    """Messages as JSON, in order."""

    inputs: list[Raw]
    outputs: list[Raw]

    def add(self, name: str, body: Value) -> None:
        """A message told by an event of this name; its role is the name's unless it says one.

        A body that is a text is one of a message's, or the message as JSON (Semantic Kernel)."""
        if isinstance(body, str) and body[:1] == "{":
            whole = Raw(body.encode("utf-8", "replace"))
            if (found := fields(whole)) is not None and ("role" in found or "message" in found):
                self.take(name, whole if "role" in found else _with_role(name, whole))
                return
        if not isinstance(body, dict):
            body = {"content": body}
        role = _ROLES.get(name)
        if role is not None and not isinstance(body.get("role"), str):
            body = {**body, "role": role}
        self.take(name, Raw(msgspec.json.encode(body)))

    def take(self, name: str, message: Raw) -> None:
        (self.outputs if name == CHOICE else self.inputs).append(message)


def of_span(events: Iterable[RawEvent]) -> Told:
    """What a span's events tell."""
    told = Told([], [])
    for event in events:
        if event.name in _ROLES:
            _add_event(told, event)
        elif event.name in (_PROMPT, _COMPLETION):
            key = "gen_ai.prompt" if event.name == _PROMPT else "gen_ai.completion"
            found = split(event.attributes.get(key))[0]
            (told.inputs if event.name == _PROMPT else told.outputs).extend(found)
    return told


class _Head(msgspec.Struct, gc=False):
    """What tells an event from a message."""

    name: str = msgspec.field(default="", name=_NAME)
    role: Raw = Raw()


_heads: Final = msgspec.json.Decoder(_Head)


def of_attribute(value: Value) -> Told:
    """What a JSON array of events tells, each with its name under `event.name`."""
    told = Told([], [])
    for item in split(value)[0]:
        try:
            head = _heads.decode(item)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            found = fields(item)
            if found is None:
                continue
            head = _Head(string(found.get(_NAME)) or "", found.get("role", Raw()))
        told.take(head.name, item if bytes(head.role) else _with_role(head.name, item))
    return told


def _with_role(name: str, item: Raw) -> Raw:
    """A message as JSON with the role that the name of its event says."""
    role = _ROLES.get(name)
    rest = bytes(item).lstrip()[1:].lstrip()
    if role is None or rest[:1] == b"}":
        return item
    return Raw(b'{"role":"' + role.encode() + b'",' + rest)


def details(raw: RawSpan) -> RawSpan:
    """The span with the attributes that its event of details carries beside its own."""
    more: dict[str, Value] = {}
    for event in raw.events:
        if event.name == DETAILS:
            more.update(event.attributes)
    if not more:
        return raw
    return msgspec.structs.replace(raw, attributes=more | raw.attributes)


def _add_event(told: Told, event: RawEvent) -> None:
    """A message from the attributes of a span's event."""
    attributes = event.attributes
    whole = attributes.get(_CONTENT)
    if isinstance(whole, str) and whole.lstrip()[:1] == "{":
        item = Raw(whole.strip().encode("utf-8", "replace"))
        found = fields(item)
        told.take(
            event.name, item if found is None or "role" in found else _with_role(event.name, item)
        )
        return
    role = attributes.get("role")
    body: dict[str, object] = {
        "role": role if isinstance(role, str) else _ROLES.get(event.name, "unknown")
    }
    for key in ("id", "name"):
        if key in attributes:
            body[key] = attributes[key]
    for key in ("content", "message", "tool_calls"):
        value = attributes.get(key)
        if value is not None:
            nested = "content" if key == "message" and not _is_object(value) else key
            body[nested] = _json(value)
    told.take(event.name, Raw(msgspec.json.encode(body)))


def _is_object(value: Value) -> bool:
    return isinstance(value, dict) or (isinstance(value, str) and value.lstrip()[:1] == "{")


def _json(value: Value) -> object:
    """An attribute that may hold parts as JSON; any other text is a text."""
    if isinstance(value, str) and value.lstrip()[:2] in ("[{", "[]", '{"'):
        data = value.encode("utf-8", "replace")
        try:
            msgspec.json.decode(data, type=msgspec.Raw)
        except (msgspec.DecodeError, UnicodeError):
            return value
        return msgspec.Raw(data)
    return value
