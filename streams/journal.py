"""The journal's codec: arrivals of one partition -> the value of one Kafka record, and back.

A value is msgpack `[version, digest of the policy set, [arrival, ...]]`. Each arrival is a byte
string of its own (msgpack of the struct, tagged by `kind`), so that one that cannot be read does
not take its neighbours with it. Sizes are bounded here, once, for every writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from monitor.model import Arrival, Close, Lost, Observed, Pin, Reading, Unknown

VERSION: Final = 1
MAX_RECORD: Final = 256 * 1024
"""Bytes of a record's value: a batch of records in flight stays small, and below every broker's
default limit of 1 MB."""
MAX_ARRIVAL: Final = 200 * 1024
_FRAME: Final = 128
"""Bytes that a record's version, digest and list header take at most."""
_ITEM: Final = 5
"""Bytes of an arrival's own length prefix at most."""

Known = Observed | Reading | Close | Lost | Pin


class BadArrival(msgspec.Struct, frozen=True):
    """Bytes that cannot enter the fold: `place` is their position in the message, from 0.

    `trajectory` is set when the trace id could still be read.
    """

    place: int
    reason: str
    raw: bytes
    trajectory: str | None = None


class Decoded(msgspec.Struct, frozen=True):
    """What a journal record says. `policy_set` is empty when not even the frame can be read."""

    policy_set: str
    arrivals: tuple[Arrival, ...]
    bad: tuple[BadArrival, ...] = ()


class _Frame(msgspec.Struct, array_like=True):
    version: int
    policy_set: str
    arrivals: list[bytes]


class _SpanOwner(msgspec.Struct):
    trajectory: str


class _Owner(msgspec.Struct):
    """As much of an arrival of any version as tells whose it is."""

    kind: str = "?"
    trajectory: str | None = None
    span: _SpanOwner | None = None


_encoder = msgspec.msgpack.Encoder()
_frames = msgspec.msgpack.Decoder(_Frame)
_known = msgspec.msgpack.Decoder(Known)
_owners = msgspec.msgpack.Decoder(_Owner)


def partition_of(trajectory: str, partitions: int) -> int:
    """The partition of a trajectory, the same for every writer: first 8 bytes of the trace id
    modulo the number of partitions.
    """
    return int(trajectory[:16], 16) % partitions


def is_trajectory(text: str) -> bool:
    """Whether this is a trace id as the journal writes it: 32 lower-case hex digits."""
    return len(text) == 32 and not text.strip("0123456789abcdef")


class Packer:
    """Groups arrivals by partition into record values of at most `MAX_RECORD` bytes.

    The order of a partition's arrivals is kept. An arrival above `MAX_ARRIVAL` bytes is replaced
    by a `Lost` one and handed back as bad.
    """

    def __init__(self, policy_set: str, partitions: int) -> None:
        self._policy_set = policy_set
        self._partitions = partitions
        self._open: dict[int, tuple[list[bytes], int]] = {}
        self._done: list[tuple[int, bytes]] = []

    def add(self, arrival: Known, place: int = 0, source: str = "") -> BadArrival | None:
        """Takes one arrival; `place` and `source` name where it came from, should it be refused."""
        raw = _encoder.encode(arrival)
        bad = None
        if len(raw) > MAX_ARRIVAL:
            reason = f"arrival_too_large: {len(raw)} bytes, at most {MAX_ARRIVAL} are allowed"
            bad = BadArrival(place, reason, raw, arrival.trajectory)
            raw = _encoder.encode(Lost(arrival.trajectory, "arrival_too_large", source))
        partition = partition_of(arrival.trajectory, self._partitions)
        items, size = self._open.get(partition, ([], _FRAME))
        if not items or size + len(raw) + _ITEM > MAX_RECORD:
            if items:
                self._done.append((partition, self._frame(items)))
            items, size = [], _FRAME
        items.append(raw)
        self._open[partition] = (items, size + len(raw) + _ITEM)
        return bad

    def records(self) -> list[tuple[int, bytes]]:
        """Everything taken since the last call, as (partition, value), in a partition's order."""
        done, self._done = self._done, []
        done.extend((partition, self._frame(items)) for partition, (items, _) in self._open.items())
        self._open = {}
        return done

    def _frame(self, items: list[bytes]) -> bytes:
        return _encoder.encode(_Frame(VERSION, self._policy_set, items))


def encode(policy_set: str, arrivals: Iterable[Known], partitions: int) -> list[tuple[int, bytes]]:
    """Record values, as (partition, value), of a few arrivals that are known to be small."""
    packer = Packer(policy_set, partitions)
    for arrival in arrivals:
        packer.add(arrival)
    return packer.records()


def decode(value: bytes | None, partition: int, partitions: int) -> Decoded:
    """What a record of `partition` says. Never raises: what cannot be read is listed as bad.

    An arrival of a kind or version that this program does not know counts as `Unknown` when its
    trajectory can be read.
    """
    try:
        frame = _frames.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Decoded("", (), (BadArrival(0, f"not_a_journal_record: {error}", value or b""),))
    arrivals: list[Arrival] = []
    bad: list[BadArrival] = []
    foreign = frame.version != VERSION
    for place, raw in enumerate(frame.arrivals):
        try:
            arrival: Arrival = _unknown(raw, frame.version) if foreign else _known.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            try:
                arrival = _unknown(raw, frame.version)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                bad.append(BadArrival(place, f"not_an_arrival: {error}", raw))
                continue
        trajectory = arrival.trajectory
        if not is_trajectory(trajectory):
            reason = f"bad_trajectory: {trajectory[:64]!r} is not 32 lower-case hex digits"
            bad.append(BadArrival(place, reason, raw))
        elif partition_of(trajectory, partitions) != partition:
            home = partition_of(trajectory, partitions)
            reason = f"wrong_partition: {trajectory} belongs to partition {home}, not {partition}"
            bad.append(BadArrival(place, reason, raw, trajectory))
        else:
            arrivals.append(arrival)
    return Decoded(frame.policy_set, tuple(arrivals), tuple(bad))


def _unknown(raw: bytes, version: int) -> Unknown:
    """Whose an arrival is that this program cannot read; raises when that cannot be told."""
    owner = _owners.decode(raw)
    trajectory = owner.trajectory or (owner.span.trajectory if owner.span else None)
    if trajectory is None:
        raise msgspec.ValidationError("no trajectory")
    return Unknown(trajectory, f"{owner.kind[:64]} (version {version})")
