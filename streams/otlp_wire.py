"""A coarse view of OTLP's protobuf messages, for reading what strangers send.

The wire numbers are those of opentelemetry-proto (`trace/v1/trace.proto`), but resources, scopes,
spans and attribute values stay bytes until they are wanted. So a malformed one is found where it
lies and costs only itself, and a span's original bytes are at hand for the dead letters. Attributes, a list of key and
value there, are a map here, which is the same on the wire: picking the wanted ones from it costs
half of walking the list. Of two attributes with one key the last counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from monitor.semconv import Value, wanted_among, wanted_of_event
from monitor.semconv.limits import PARSE_LIMIT, Memo, note
from streams.otlp_span import shorten

__all__ = [
    "EVENT",
    "REQUEST",
    "RESOURCE_SPANS",
    "SCOPE_SPANS",
    "SPAN",
    "WHOLE_LOGS",
    "WHOLE_REQUEST",
    "DecodeError",
    "attributes",
    "event_attributes",
    "value",
]

_Field = descriptor_pb2.FieldDescriptorProto
_BYTES: Final = _Field.TYPE_BYTES
_STRING: Final = _Field.TYPE_STRING
_UINT32: Final = _Field.TYPE_UINT32
_FIXED32: Final = _Field.TYPE_FIXED32
_FIXED64: Final = _Field.TYPE_FIXED64
_ONE: Final = _Field.LABEL_OPTIONAL
_MANY: Final = _Field.LABEL_REPEATED

# Message: (field, number, type, label), or for a message (field, number, its name, label). An enum is
# read as the number that it is on the wire.
_SCHEMA: Final[dict[str, list[tuple[str, int, Any, Any]]]] = {
    "Whole": [("resource_spans", 1, "WholeResource", _MANY)],
    "WholeResource": [("resource", 1, _BYTES, _ONE), ("scope_spans", 2, "ScopeSpans", _MANY)],
    "Request": [("resource_spans", 1, _BYTES, _MANY)],
    "ResourceSpans": [("resource", 1, _BYTES, _ONE), ("scope_spans", 2, _BYTES, _MANY)],
    "ScopeSpans": [("scope", 1, _BYTES, _ONE), ("spans", 2, _BYTES, _MANY)],
    "WholeLogs": [("resource_logs", 1, "WholeResourceLogs", _MANY)],
    "WholeResourceLogs": [("resource", 1, _BYTES, _ONE), ("scope_logs", 2, "ScopeLogs", _MANY)],
    "ScopeLogs": [("scope", 1, _BYTES, _ONE), ("log_records", 2, _BYTES, _MANY)],
    "Span": [
        ("trace_id", 1, _BYTES, _ONE),
        ("span_id", 2, _BYTES, _ONE),
        ("parent_span_id", 4, _BYTES, _ONE),
        ("name", 5, _STRING, _ONE),
        ("kind", 6, _UINT32, _ONE),
        ("start", 7, _FIXED64, _ONE),
        ("end", 8, _FIXED64, _ONE),
        ("dropped", 10, _UINT32, _ONE),
        ("events", 11, _BYTES, _MANY),
        ("status", 15, _BYTES, _ONE),
        ("flags", 16, _FIXED32, _ONE),
    ],
    "Event": [("name", 2, _STRING, _ONE)],
}
_ATTRIBUTES: Final = {"Span": 9, "Event": 3}
"""Numbers of `attributes`: a map from key to the bytes of an `AnyValue`."""


def _parsers() -> dict[str, Callable[[bytes], Any]]:
    """For each message of the schema: bytes -> message; raises `DecodeError`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="agenttrust/otlp_wire.proto", package="agenttrust.otlp_wire", syntax="proto3"
    )
    for message, fields in _SCHEMA.items():
        descriptor = file.message_type.add(name=message)
        for field, number, kind, label in fields:
            if isinstance(kind, str):
                _add_message(descriptor, field, number, f".{file.package}.{kind}", label)
            else:
                descriptor.field.add(name=field, number=number, type=kind, label=label)
    for descriptor in file.message_type:
        if descriptor.name in _ATTRIBUTES:
            entry = descriptor.nested_type.add(name="AttributesEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=_STRING, label=_ONE)
            entry.field.add(name="value", number=2, type=_BYTES, label=_ONE)
            of_entry = f".{file.package}.{descriptor.name}.AttributesEntry"
            _add_message(descriptor, "attributes", _ATTRIBUTES[descriptor.name], of_entry, _MANY)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    return {
        message: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message}")
        ).FromString
        for message in _SCHEMA
    }


def _add_message(
    to: descriptor_pb2.DescriptorProto, field: str, number: int, of: str, label: Any
) -> None:
    to.field.add(name=field, number=number, type=_Field.TYPE_MESSAGE, label=label, type_name=of)


_PARSERS: Final = _parsers()
WHOLE_REQUEST: Final = _PARSERS["Whole"]
"""A request with its resources and scopes in one step, down to the bytes of the spans."""
REQUEST: Final = _PARSERS["Request"]
"""A request step by step: its resource spans are bytes, theirs the scope spans."""
RESOURCE_SPANS: Final = _PARSERS["ResourceSpans"]
SCOPE_SPANS: Final = _PARSERS["ScopeSpans"]
SPAN: Final = _PARSERS["Span"]
EVENT: Final = _PARSERS["Event"]
WHOLE_LOGS: Final = _PARSERS["WholeLogs"]
"""A logs request in one step, down to the bytes of the records."""

_TAG: Final = 0x0A  # AnyValue.string_value = 1, length-delimited

_Keys = tuple[str, ...]
# An instrumentation writes spans with the same few sets of keys over and over.
_of_span: Final = Memo[_Keys, _Keys](entries=4096, size=4 * 1024 * 1024)
"""For the keys of a span those that are wanted."""
_of_event: Final = Memo[_Keys, _Keys](entries=1024, size=1024 * 1024)


def attributes(encoded: Mapping[str, bytes], cut: dict[str, str]) -> dict[str, Value]:
    """The wanted ones of a span's attributes. Raises `DecodeError`, `UnicodeDecodeError`.

    Notes of cut values go into `cut`.
    """
    keys = tuple(encoded)
    kept = _of_span.get(keys)
    if kept is None:
        kept = _of_span.remember(keys, wanted_among(keys), sum(map(len, keys)))
    found: dict[str, Value] = {}
    for key, data in zip(kept, map(encoded.__getitem__, kept), strict=True):
        size = len(data)
        # A string, as nearly all are: its tag, its length in one or two bytes, and nothing else.
        if 2 <= size < 0x82 and data[0] == _TAG and data[1] == size - 2:
            found[key] = data[2:].decode()
        elif (
            0x82 < size < 0x4003
            and data[0] == _TAG
            and data[1] > 0x7F
            and data[1] + (data[2] << 7) == size + 0x7D
        ):
            found[key] = data[3:].decode()
        else:
            found[key] = _long_or_other(key, data, cut)
    return found


def event_attributes(encoded: Mapping[str, bytes]) -> dict[str, Value]:
    """The wanted ones of an event's attributes, none of them cut. Raises as `attributes` does."""
    keys = tuple(encoded)
    kept = _of_event.get(keys)
    if kept is None:
        chosen = tuple(sorted(filter(wanted_of_event, keys)))
        kept = _of_event.remember(keys, chosen, sum(map(len, keys)))
    found: dict[str, Value] = {}
    for key, data in zip(kept, map(encoded.__getitem__, kept), strict=True):
        start = _start_of_string(data)
        found[key] = data[start:].decode() if start else value(AnyValue.FromString(data))
    return found


def _long_or_other(key: str, data: bytes, cut: dict[str, str]) -> Value:
    if start := _start_of_string(data):
        return shorten(key, data[start:], cut)
    if len(data) > PARSE_LIMIT:
        cut[key] = note(data)
        return None
    return value(AnyValue.FromString(data))


def _start_of_string(data: bytes) -> int:
    """Where the text of an `AnyValue` begins that is one string and nothing else; 0 when it is not."""
    if data[:1] != b"\x0a":
        return 0
    at, size, shift = 1, 0, 0
    while at < len(data) and shift < 64:
        size |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            break
    return at if at + size == len(data) else 0


def value(any_value: AnyValue) -> Value:
    """An `AnyValue` in Python. Its depth is at most protobuf's own limit of 100."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: value(pair.value) for pair in any_value.kvlist_value.values}
    found: Value = getattr(any_value, kind) if kind else None
    return found
