from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Close, Lost, Observed, Pin, Reading, Span, Unknown
from streams.journal import (
    MAX_ARRIVAL,
    MAX_RECORD,
    BadArrival,
    Packer,
    decode,
    encode,
    is_trajectory,
    partition_of,
)

A, B = "0" * 15 + "1" + "a" * 16, "0" * 15 + "2" + "b" * 16


def span(trajectory: str, size: int = 0, span_id: str = "00" * 8) -> Observed:
    return Observed(Span(trajectory, span_id, "tool", result="x" * size))


def one(value: bytes, partition: int = 1, partitions: int = 4):
    return decode(value, partition, partitions)


def frame(*arrivals: bytes, version: int = 1) -> bytes:
    return msgspec.msgpack.encode([version, "set", list(arrivals)])


def test_every_kind_of_arrival_survives_the_journal():
    arrivals = (
        span(A, 10),
        Reading(A, "r1", "answer", "c", claims=({"claim": "x", "n": 1},), parser="p"),
        Close(A, "root_settled", 7),
        Lost(A, "not_a_span", "otlp_spans:0:1:2"),
        Pin(A, "other"),
    )
    [(partition, value)] = encode("set", arrivals, 4)
    assert partition == partition_of(A, 4) == 1
    assert one(value) == msgspec.structs.replace(one(value), policy_set="set", arrivals=arrivals)
    assert one(value).bad == ()


def test_an_unknown_kind_is_unknown_when_its_trajectory_can_be_read():
    raw = msgspec.msgpack.encode({"kind": "metric", "trajectory": A, "x": [1, {"y": None}]})
    assert one(frame(raw)).arrivals == (Unknown(A, "metric (version 1)"),)


def test_a_known_kind_with_a_value_of_a_later_version_is_unknown():
    raw = msgspec.msgpack.encode(
        {"kind": "span", "span": {"trajectory": A, "span_id": "1", "kind": "robot"}}
    )
    assert one(frame(raw)).arrivals == (Unknown(A, "span (version 1)"),)


def test_a_later_version_of_the_record_keeps_its_trajectories():
    raw = msgspec.msgpack.encode(span(A))
    assert one(frame(raw, version=2)).arrivals == (Unknown(A, "span (version 2)"),)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not_an_arrival"),
        (b"\xc1", "not_an_arrival"),
        (b"\x81\xa4kind\xa1\xff", "not_an_arrival"),
        (msgspec.msgpack.encode({"kind": "metric"}), "not_an_arrival"),
        (msgspec.msgpack.encode({"kind": "x", "trajectory": "A" * 32}), "bad_trajectory"),
        (msgspec.msgpack.encode({"kind": "x", "trajectory": "\x1b[2J"}), "bad_trajectory"),
        (msgspec.msgpack.encode(Close(B, "idle", 1)), "wrong_partition"),
        (b"\x91" * 100_000, "not_an_arrival"),
    ],
)
def test_one_bad_arrival_leaves_its_neighbours(raw: bytes, reason: str):
    good = msgspec.msgpack.encode(span(A))
    decoded = one(frame(good, raw, good))
    assert decoded.arrivals == (span(A), span(A))
    [bad] = decoded.bad
    assert (bad.place, bad.raw) == (1, raw)
    assert bad.reason.startswith(reason)
    assert bad.reason.isprintable()


@pytest.mark.parametrize("value", [None, b"", b"junk", b"\x93\x01\xa1x", b"\x91" * 100_000])
def test_a_record_that_is_none_is_one_bad_arrival(value: bytes | None):
    decoded = one(value)
    assert decoded.arrivals == ()
    assert [b.raw for b in decoded.bad] == [value or b""]


@given(st.binary(max_size=300))
def test_decode_never_raises(data: bytes):
    decode(data, 0, 3)
    assert len(decode(frame(data), 0, 3).arrivals) <= 1


def test_an_arrival_that_is_too_large_becomes_a_lost_one_in_its_place():
    packer = Packer("set", 4)
    assert packer.add(span(A)) is None
    bad = packer.add(span(A, MAX_ARRIVAL), place=3, source="otlp_spans:0:9:3")
    assert isinstance(bad, BadArrival)
    assert (bad.place, bad.trajectory) == (3, A)
    assert len(bad.raw) > MAX_ARRIVAL
    packer.add(span(A))
    [(_, value)] = packer.records()
    lost = Lost(A, "arrival_too_large", "otlp_spans:0:9:3")
    assert one(value).arrivals == (span(A), lost, span(A))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([0, 1000, 50_000, MAX_ARRIVAL - 200])),
        max_size=20,
    ),
    st.integers(1, 5),
)
def test_packing_keeps_order_and_bounds(items: list[tuple[int, int]], partitions: int):
    packer = Packer("set", partitions)
    sent: dict[int, list[Observed]] = {}
    for n, (owner, size) in enumerate(items):
        arrival = span(f"{owner:016x}" + "c" * 16, size, f"{n:016x}")
        sent.setdefault(partition_of(arrival.trajectory, partitions), []).append(arrival)
        assert packer.add(arrival) is None
    got: dict[int, list[object]] = {}
    for partition, value in packer.records():
        assert len(value) <= MAX_RECORD
        got.setdefault(partition, []).extend(decode(value, partition, partitions).arrivals)
    assert got == sent
    assert packer.records() == []


@pytest.mark.parametrize(
    ("text", "good"), [("a" * 32, True), ("A" * 32, False), ("a" * 31, False), ("٣" * 32, False)]
)
def test_what_a_trajectory_is(text: str, good: bool):
    assert is_trajectory(text) is good
