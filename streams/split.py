"""Cuts an OTLP export request that is larger than a Kafka message into several that are not.

Works on requests of traces and of logs, as protobuf and as JSON. An entry (span or log record)
that alone is too large loses its largest attributes and events; they are counted in the dropped
counts that OTLP has for this, so that the monitor knows that content is missing. What cannot be
made to fit even so is refused and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

_FRAME: Final = 64
"""Bytes that wrapping an entry or a piece adds at most: tags and lengths, or a JSON envelope."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Field names of an export request, from the outside in, and what an entry may lose."""

    resources: str
    scopes: str
    entries: str
    losable: Sequence[tuple[str, str]]


TRACES: Final = Signal(
    "resource_spans",
    "scope_spans",
    "spans",
    (
        ("attributes", "dropped_attributes_count"),
        ("events", "dropped_events_count"),
        ("links", "dropped_links_count"),
    ),
)
LOGS: Final = Signal(
    "resource_logs", "scope_logs", "log_records", (("attributes", "dropped_attributes_count"),)
)


@dataclass(slots=True)
class Cut:
    """The messages, each within the limit, and how many entries fit into none."""

    messages: list[bytes] = field(default_factory=list)
    refused: int = 0


def cut_protobuf(request: Any, signal: Signal, limit: int) -> Cut:
    """Cuts a parsed export request, which is used up by it."""
    kind = type(request)

    def pieces(cut: Cut) -> Iterator[bytes]:
        for resource in getattr(request, signal.resources):
            for scope in getattr(resource, signal.scopes):
                entries = list(getattr(scope, signal.entries))
                piece = kind()
                shell = getattr(piece, signal.resources).add()
                shell.CopyFrom(resource)
                shell.ClearField(signal.scopes)
                inner = getattr(shell, signal.scopes).add()
                inner.schema_url = scope.schema_url
                inner.scope.CopyFrom(scope.scope)
                room = limit - piece.ByteSize() - _FRAME
                for run in _runs(entries, room, lambda e: int(e.ByteSize()), _shrink(signal), cut):
                    getattr(inner, signal.entries).extend(run)
                    yield piece.SerializeToString()
                    inner.ClearField(signal.entries)

    # Concatenated protobuf messages are the message with the concatenated lists.
    return _packed(pieces, limit, b"".join, joint=0)


def cut_json(request: dict[str, Any], signal: Signal, limit: int) -> Cut:
    """Cuts a parsed export request, which is used up by it. Misshapen parts are refused."""
    names = [_camel(name) for name in (signal.resources, signal.scopes, signal.entries)]

    def pieces(cut: Cut) -> Iterator[bytes]:
        for resource in _objects(request.get(names[0]), cut):
            for scope in _objects(resource.get(names[1]), cut):
                entries = _objects(scope.get(names[2]), cut)
                shell = {**resource, names[1]: [{**scope, names[2]: []}]}
                room = limit - _json_size(shell) - _FRAME
                for run in _runs(entries, room, _json_size, _shrink_json(signal), cut):
                    shell[names[1]][0][names[2]] = run
                    yield orjson.dumps(shell)

    def wrap(parts: Iterable[bytes]) -> bytes:
        return b'{"%s":[%s]}' % (names[0].encode(), b",".join(parts))

    return _packed(pieces, limit - _FRAME, wrap, joint=1)


def _packed(
    pieces: Callable[[Cut], Iterator[bytes]],
    limit: int,
    wrap: Callable[[Iterable[bytes]], bytes],
    joint: int,
) -> Cut:
    """Fills messages with pieces in their order."""
    cut = Cut()
    batch: list[bytes] = []
    size = 0
    for piece in pieces(cut):
        if batch and size + len(piece) + joint > limit:
            cut.messages.append(wrap(batch))
            batch, size = [], 0
        batch.append(piece)
        size += len(piece) + joint
    if batch:
        cut.messages.append(wrap(batch))
    return cut


def _runs(
    entries: Iterable[Any],
    room: int,
    size_of: Callable[[Any], int],
    shrink: Callable[[Any, int], bool],
    cut: Cut,
) -> Iterator[list[Any]]:
    """Consecutive entries that fit into `room` together."""
    run: list[Any] = []
    used = 0
    for entry in entries:
        size = size_of(entry) + _FRAME
        if size > room:
            if not shrink(entry, room - _FRAME):
                cut.refused += 1
                continue
            size = size_of(entry) + _FRAME
        if run and used + size > room:
            yield run
            run, used = [], 0
        run.append(entry)
        used += size
    if run:
        yield run


# -- making one entry smaller ----------------------------------------------------------------


def _shrink(signal: Signal) -> Callable[[Any, int], bool]:
    def shrink(entry: Any, room: int) -> bool:
        """Drops the largest attributes and events until the entry fits."""
        excess = entry.ByteSize() - room
        parts = [
            (item.ByteSize(), name, counter, at)
            for name, counter in signal.losable
            for at, item in enumerate(getattr(entry, name))
        ]
        for name, counter, places in _victims(parts, excess):
            items = getattr(entry, name)
            for at in sorted(places, reverse=True):
                del items[at]
            setattr(entry, counter, getattr(entry, counter) + len(places))
        return bool(entry.ByteSize() <= room)

    return shrink


def _shrink_json(signal: Signal) -> Callable[[Any, int], bool]:
    def shrink(entry: Any, room: int) -> bool:
        excess = _json_size(entry) - room
        parts = [
            (_json_size(item), _camel(name), _camel(counter), at)
            for name, counter in signal.losable
            if isinstance(items := entry.get(_camel(name)), list)
            for at, item in enumerate(items)
        ]
        for name, counter, places in _victims(parts, excess):
            entry[name] = [item for at, item in enumerate(entry[name]) if at not in places]
            before = entry.get(counter)
            entry[counter] = (before if isinstance(before, int) else 0) + len(places)
        return _json_size(entry) <= room

    return shrink


def _victims(
    parts: list[tuple[int, str, str, int]], excess: int
) -> Iterator[tuple[str, str, set[int]]]:
    """The largest parts, until what they free exceeds `excess` and the room for the counters."""
    chosen: dict[tuple[str, str], set[int]] = {}
    excess += _FRAME
    for size, name, counter, at in sorted(parts, reverse=True):
        if excess <= 0:
            break
        chosen.setdefault((name, counter), set()).add(at)
        excess -= size
    for (name, counter), places in chosen.items():
        yield name, counter, places


def _objects(value: Any, cut: Cut) -> list[dict[str, Any]]:
    """The objects of a JSON list; anything else is counted as refused."""
    if value is None:
        return []
    if not isinstance(value, list):
        cut.refused += 1
        return []
    found = [item for item in value if isinstance(item, dict)]
    cut.refused += len(value) - len(found)
    return found


def _json_size(value: Any) -> int:
    return len(orjson.dumps(value))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
