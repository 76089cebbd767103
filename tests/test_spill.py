"""The store for replays: open trajectories in memory, closed ones in a file."""

from __future__ import annotations

import asyncio

import pytest

from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Close, Observed, Record
from monitor.ports import Loaded, Saving, Watermark
from streams.spill import SpillingStore
from tests.journals import HOUR, SET, run_of, trajectory
from tests.store_conformance import FULL, A, B, C, StoreConformance, mark

TTL = 48 * HOUR


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def store(tmp_path):
    made = SpillingStore(tmp_path / "state", TTL)
    yield made
    made.close()


class TestSpilling(StoreConformance):
    pass


def test_what_is_closed_leaves_memory_and_comes_back(store, run):
    async def scenario():
        saved = {A: Saving(b"a", {"x": b"1"}, {"e": b"2"}), B: Saving(b"b", due=50)}
        await store.save(1, None, mark(1), saved)
        assert store.open == 1
        loaded = (await store.load(1, {A: FULL, C: FULL}))[1]
        assert loaded[A] == Loaded(b"a", {"x": b"1"}, {"e": b"2"})
        await store.save(1, mark(1), mark(2), {A: Saving(b"aa", {"y": b"3"})})
        assert store.open == 1
        loaded = (await store.load(1, {A: FULL}))[1]
        assert loaded[A] == Loaded(b"aa", {"x": b"1", "y": b"3"}, {"e": b"2"})
        await store.save(1, mark(2), mark(3), {})  # it was only looked at
        assert store.open == 1

    run(scenario())


def test_a_batch_that_is_saved_in_parts_keeps_what_it_closed_before(store, run):
    async def scenario():
        await store.save(1, None, mark(1), {A: Saving(b"a", {"x": b"1"}, {"e": b"2"})})
        await store.save(1, mark(1), mark(2), {A: Saving(b"aa", {"y": b"3"})})
        loaded = (await store.load(1, {A: FULL}))[1]
        assert loaded[A] == Loaded(b"aa", {"x": b"1", "y": b"3"}, {"e": b"2"})

    run(scenario())


def test_what_has_outlived_its_time_is_dropped(store, run):
    async def scenario():
        at = [Watermark(0, n, 0, time) for n, time in enumerate((0, TTL, TTL + 2 * HOUR))]
        await store.save(1, None, at[0], {A: Saving(b"a"), B: Saving(b"b", due=5)})
        await store.save(1, at[0], at[1], {C: Saving(b"c")})
        assert (await store.load(1, {A: FULL}))[1][A].head == b"a"
        await store.save(1, at[1], at[2], {})
        loaded = (await store.load(1, dict.fromkeys((A, B, C), FULL)))[1]
        assert [loaded[name].head for name in (A, B, C)] == [None, None, b"c"]

    run(scenario())


def test_an_engine_says_on_it_what_it_says_in_memory(store, run):
    """Late spans, duplicates and a second close, whatever the batches."""

    def records():
        runs = {owner: run_of(owner, "ticket.purge") for owner in map(trajectory, range(6))}
        offset = 0
        for part in (slice(1, 4), slice(0, 2)):
            for owner, spans in runs.items():
                yield Record(offset, offset, SET.digest, tuple(map(Observed, spans[part])))
                yield Record(offset + 1, offset, SET.digest, (Close(owner, "idle", offset),))
                offset += 2

    async def scenario(store, size):
        out = MemoryPublisher()
        engine = Engine(store, out, MemoryPolicySets(SET))
        found = list(records())
        for first in range(0, len(found), size):
            await engine.apply(1, found[first : first + size], epoch=0)
        return out.events

    expected = run(scenario(MemoryStore(), 1))
    assert run(scenario(store, 5)) == expected
    assert store.open == 0
