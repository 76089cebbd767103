"""What a transport hands to the dialects: an OTLP span with only what they read.

Shapes follow https://opentelemetry.io/docs/specs/otlp/ and opentelemetry-proto `trace.proto`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from monitor.semconv.limits import NAME_LIMIT, RESOURCE_CHARS, RESOURCE_KEYS, name

Value = str | bool | int | float | bytes | list["Value"] | dict[str, "Value"] | None
"""An OTLP `AnyValue`: a scalar, an array or a key-value list; None when it is empty."""

STATUS_ERROR: Final = 2
"""`STATUS_CODE_ERROR` of trace.proto."""
REMOTE_PARENT: Final = 0x200
"""`SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK`: the bit that says that the parent is in another process."""


class Resource(msgspec.Struct, frozen=True, gc=False):
    """Who emitted: the service's name and the attributes that contracts may select on."""

    service: str | None = None
    attributes: dict[str, str] = {}


class RawEvent(msgspec.Struct, frozen=True, gc=False):
    """A span event; attributes are restricted like the span's."""

    name: str
    attributes: dict[str, Value] = {}


class RawSpan(msgspec.Struct, frozen=True, gc=False):
    """A span as it was sent. Ids are lower-case hex, times Unix nanoseconds, `kind` an OTLP number.

    `attributes` holds only keys that some dialect reads (`semconv.wanted`). A value longer than
    `PARSE_LIMIT` is its head; `cut` then has, under its key, the note to show after it. `size` is
    the length of the whole span as it was sent, 0 when that is not known.
    """

    trace_id: str
    span_id: str
    parent: str | None = None
    name: str = ""
    kind: int = 0
    flags: int = 0
    start: int = 0
    end: int = 0
    status: int = 0
    status_message: str = ""
    attributes: dict[str, Value] = {}
    events: tuple[RawEvent, ...] = ()
    dropped: int = 0
    resource: Resource = Resource()
    scope: str = ""
    cut: dict[str, str] = {}
    size: int = 0


class RawLog(msgspec.Struct, frozen=True, gc=False):
    """A log record that belongs to a span. `time` is Unix nanoseconds: of the event, else of its
    observation. Attributes are restricted like a span's."""

    trace_id: str
    span_id: str
    name: str
    time: int = 0
    body: Value = None
    attributes: dict[str, Value] = {}
    resource: Resource = Resource()


def label(value: Value) -> str | None:
    """A name or id within `NAME_LIMIT`; None when the value names nothing."""
    if value is None:
        return None
    if value.__class__ is str and 0 < len(value) <= NAME_LIMIT and not value.isspace():
        return value
    text = text_of(value)
    return text and name(text)


def first_label(attributes: Mapping[str, Value], keys: Iterable[str]) -> str | None:
    """The first of these attributes that names something."""
    for key in keys:
        if key in attributes and (found := label(attributes[key])):
            return found
    return None


def text_of(value: Value) -> str | None:
    """A name or id as text: scalars as JSON writes them, so that `true` and 5 stay what was meant.

    None for absent, blank, structured or binary values, which name nothing.
    """
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return None


def resource(attributes: Mapping[str, Value]) -> Resource:
    """The part of a resource that is kept: scalar attributes as text, bounded in number and size.

    When there are too many, those that the SDK adds about itself and its process go first, then
    the last ones in alphabetical order. A key or value that is too long is left out: a piece of it
    could match a selector that the whole does not.
    """
    kept = {
        key: text
        for key, value in attributes.items()
        if (text := text_of(value)) is not None
        and len(text) <= RESOURCE_CHARS
        and len(key) <= RESOURCE_CHARS
    }
    if len(kept) > RESOURCE_KEYS:
        kept = {key: kept[key] for key in _by_use(kept)[:RESOURCE_KEYS]}
    return Resource(service=kept.get("service.name"), attributes=kept)


def _by_use(keys: Iterable[str]) -> list[str]:
    about_itself = ("telemetry.", "process.")
    return sorted(keys, key=lambda k: (k != "service.name", k.startswith(about_itself), k))
