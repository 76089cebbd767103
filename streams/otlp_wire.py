"""A coarse view of OTLP's protobuf messages, for reading what strangers send.

The wire numbers are those of opentelemetry-proto (`trace/v1/trace.proto`), but nested messages and
strings are declared as plain bytes. So one malformed span, attribute or invalid UTF-8 sequence is
found where it lies and costs only itself, a span's original bytes are at hand for the dead letters,
and attributes that nobody reads are never turned into Python objects: reading a span costs about
what the generated classes take for the same fields.

`attributes` reads the usual encoding of a string attribute by hand and leaves the rest to the
generated `KeyValue`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from monitor.semconv import EXACT, PREFIXES, Value, wanted
from monitor.semconv.limits import PARSE_LIMIT, note
from streams.otlp_span import shorten

__all__ = ["REQUEST", "RESOURCE_SPANS", "SCOPE_SPANS", "SPAN", "DecodeError", "attributes", "value"]

_Field = descriptor_pb2.FieldDescriptorProto
_BYTES: Final = _Field.TYPE_BYTES
_UINT32: Final = _Field.TYPE_UINT32
_FIXED32: Final = _Field.TYPE_FIXED32
_FIXED64: Final = _Field.TYPE_FIXED64
_ONE: Final = _Field.LABEL_OPTIONAL
_MANY: Final = _Field.LABEL_REPEATED

# Message: (field, number, type, label). An enum is read as the number that it is on the wire.
_SCHEMA: Final = {
    "Request": [("resource_spans", 1, _BYTES, _MANY)],
    "ResourceSpans": [("resource", 1, _BYTES, _ONE), ("scope_spans", 2, _BYTES, _MANY)],
    "ScopeSpans": [("scope", 1, _BYTES, _ONE), ("spans", 2, _BYTES, _MANY)],
    "Span": [
        ("trace_id", 1, _BYTES, _ONE),
        ("span_id", 2, _BYTES, _ONE),
        ("parent_span_id", 4, _BYTES, _ONE),
        ("name", 5, _BYTES, _ONE),
        ("kind", 6, _UINT32, _ONE),
        ("start", 7, _FIXED64, _ONE),
        ("end", 8, _FIXED64, _ONE),
        ("attributes", 9, _BYTES, _MANY),
        ("dropped", 10, _UINT32, _ONE),
        ("events", 11, _BYTES, _MANY),
        ("status", 15, _BYTES, _ONE),
        ("flags", 16, _FIXED32, _ONE),
    ],
}


def _parsers() -> dict[str, Callable[[bytes], Any]]:
    """For each message of the schema: bytes -> message; raises `DecodeError`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="agenttrust/otlp_wire.proto", package="agenttrust.otlp_wire", syntax="proto3"
    )
    for message, fields in _SCHEMA.items():
        descriptor = file.message_type.add(name=message)
        for field, number, kind, label in fields:
            descriptor.field.add(name=field, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        message: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{file.package}.{message}")
        ).FromString
        for message in _SCHEMA
    }


_PARSERS: Final = _parsers()
REQUEST: Final = _PARSERS["Request"]
RESOURCE_SPANS: Final = _PARSERS["ResourceSpans"]
SCOPE_SPANS: Final = _PARSERS["ScopeSpans"]
SPAN: Final = _PARSERS["Span"]

_KEY: Final = 0x0A  # KeyValue.key = 1, length-delimited
_VALUE: Final = 0x12  # KeyValue.value = 2, length-delimited
_STRING: Final = 0x0A  # AnyValue.string_value = 1, length-delimited

_EXACT: Final = {key.encode(): key for key in EXACT}
_PREFIXES: Final = tuple(prefix.encode() for prefix in PREFIXES)


def attributes(items: Iterable[bytes], cut: dict[str, str]) -> dict[str, Value]:
    """The wanted ones of encoded `KeyValue`s. Raises `DecodeError`, `UnicodeDecodeError`.

    Notes of cut values go into `cut`. Of two with one key the last counts.
    """
    found: dict[str, Value] = {}
    for data in items:
        # As every encoder writes it: a key of less than 128 bytes, then the value.
        if len(data) > 2 and data[0] == _KEY and (end := data[1] + 2) < 0x82:
            raw = data[2:end]
            key = _EXACT.get(raw)
            if key is None:
                if not raw.startswith(_PREFIXES):
                    continue
                key = raw.decode()
            if (text := _string(data, end)) is not None:
                found[key] = shorten(key, text, cut)
                continue
        pair = KeyValue.FromString(data)
        if not wanted(pair.key):
            continue
        if len(data) > PARSE_LIMIT:
            cut[pair.key] = note(data)
        found[pair.key] = None if len(data) > PARSE_LIMIT else value(pair.value)
    return found


def _string(data: bytes, at: int) -> bytes | None:
    """The value of an encoded `KeyValue` whose value begins at `at`, if it is exactly one string."""
    try:
        if data[at] != _VALUE:
            return None
        size, at = _length(data, at + 1)
        if at + size != len(data) or data[at] != _STRING:
            return None
        size, at = _length(data, at + 1)
    except IndexError:
        return None
    return data[at:] if at + size == len(data) else None


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length (base-128 varint) and the place after it."""
    size = data[at]
    at += 1
    if size < 0x80:
        return size, at
    size &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7


def value(any_value: AnyValue) -> Value:
    """An `AnyValue` in Python. Its depth is at most protobuf's own limit of 100."""
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(item) for item in any_value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: value(pair.value) for pair in any_value.kvlist_value.values}
    found: Value = getattr(any_value, kind) if kind else None
    return found
