"""What every `monitor.ports.Store` must do. Subclass as `Test…` with a fixture `store`."""

from __future__ import annotations

import asyncio

import pytest

from monitor.ports import Loaded, Saving, Store, StoreCorrupt, Wanted, Watermark

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
FULL = Wanted(("x", "y", "z"), content=True)


def mark(offset: int, index: int = 0, epoch: int = 0) -> Watermark:
    return Watermark(epoch, offset, index, 1000 + offset)


class StoreConformance:
    @pytest.fixture
    def partition(self) -> int:
        return 1

    async def _state(self, store: Store, partition: int, *trajectories: str) -> dict[str, Loaded]:
        return (await store.load(partition, dict.fromkeys(trajectories, FULL)))[1]

    def test_an_empty_store_knows_nothing(self, store, run):
        async def scenario():
            assert await store.load(1, {A: FULL}) == (None, {A: Loaded(content={})})
            assert await store.load(1, {}) == (None, {})
            assert list(await store.due(1, 10**15, 10)) == []

        run(scenario())

    def test_what_is_saved_is_loaded(self, store, run):
        async def scenario():
            saved = {
                A: Saving(b"head a", {"x": b"1", "y": b""}, {"e": b"\x00\xff" * 100}, due=50),
                B: Saving(b"", due=None),
            }
            assert await store.save(1, None, mark(3), saved) == "written"
            assert await store.load(1, {A: FULL, B: FULL, C: FULL}) == (
                mark(3),
                {
                    A: Loaded(b"head a", {"x": b"1", "y": b""}, {"e": b"\x00\xff" * 100}),
                    B: Loaded(b"", {}, {}),
                    C: Loaded(None, {}, {}),
                },
            )

        run(scenario())

    def test_state_that_is_given_up_is_gone_and_its_neighbour_stays(self, store, run):
        async def scenario():
            for partition in (1, 2):
                await store.save(partition, None, mark(3), {A: Saving(b"h", due=5)})
            with pytest.raises(StoreCorrupt, match="partition 1: it is rubbish"):
                await store.give_up(1, "it is rubbish")
            assert await store.save(1, mark(3), mark(4), {A: Saving(b"h")}) == "older"
            assert (await store.load(2, {A: Wanted()}))[1][A].head == b"h"

        run(scenario())

    def test_only_what_is_wanted_is_loaded(self, store, run):
        async def scenario():
            await store.save(1, None, mark(3), {A: Saving(b"h", {"x": b"1"}, {"e": b"2"})})
            _, loaded = await store.load(1, {A: Wanted(("y",))})
            assert loaded == {A: Loaded(b"h", {}, None)}

        run(scenario())

    def test_entries_are_added_and_replaced_and_the_head_rewritten(self, store, run):
        async def scenario():
            await store.save(
                1, None, mark(3), {A: Saving(b"1", {"x": b"1", "y": b"1"}, {"e": b"1"})}
            )
            changes = {A: Saving(b"2", {"y": b"2", "z": b"2"}, {"f": b"2"})}
            assert await store.save(1, mark(3), mark(4), changes) == "written"
            state = await self._state(store, 1, A)
            assert state[A] == Loaded(
                b"2", {"x": b"1", "y": b"2", "z": b"2"}, {"e": b"1", "f": b"2"}
            )

        run(scenario())

    def test_content_brings_every_index_field(self, store, run):
        async def scenario():
            await store.save(1, None, mark(3), {A: Saving(b"h", {"x": b"1", "other": b"2"})})
            _, loaded = await store.load(1, {A: Wanted(("x",), content=True)})
            assert loaded == {A: Loaded(b"h", {"x": b"1", "other": b"2"}, {})}

        run(scenario())

    def test_a_fresh_trajectory_keeps_nothing_of_the_one_before(self, store, run):
        async def scenario():
            await store.save(1, None, mark(3), {A: Saving(b"1", {"x": b"1"}, {"e": b"1"}, due=1)})
            changes = {A: Saving(b"2", {"y": b"2"}, due=9, fresh=True)}
            assert await store.save(1, mark(3), mark(4), changes) == "written"
            assert (await self._state(store, 1, A))[A] == Loaded(b"2", {"y": b"2"}, {})
            assert list(await store.due(1, 9, 9)) == [A]

        run(scenario())

    def test_a_removed_trajectory_leaves_nothing(self, store, run):
        async def scenario():
            await store.save(1, None, mark(3), {A: Saving(b"1", {"x": b"1"}, {"e": b"1"}, due=1)})
            assert await store.save(1, mark(3), mark(4), {A: Saving(None, fresh=True)}) == "written"
            assert (await self._state(store, 1, A))[A] == Loaded(None, {}, {})
            assert list(await store.due(1, 100, 10)) == []

        run(scenario())

    @pytest.mark.parametrize(
        ("stored", "expected", "new", "outcome"),
        [
            (mark(9), mark(5), mark(8), "newer"),
            (mark(5, 3), mark(5, 1), mark(5, 2), "newer"),
            (mark(0, epoch=1), mark(900), mark(901), "newer"),
            (mark(9), None, mark(8), "newer"),
            (mark(5), mark(9), mark(10), "older"),
            (mark(9), mark(0, epoch=1), mark(1, epoch=1), "older"),
            (None, mark(9), mark(10), "older"),
        ],
    )
    def test_a_save_on_another_watermark_writes_nothing(
        self, store, run, stored, expected, new, outcome
    ):
        async def scenario():
            if stored is not None:
                await store.save(1, None, stored, {A: Saving(b"kept", {"x": b"1"}, due=5)})
            changes = {A: Saving(b"no", {"x": b"no"}, {"e": b"no"}, due=7), B: Saving(b"no")}
            assert await store.save(1, expected, new, changes) == outcome
            watermark, state = await store.load(1, {A: FULL, B: FULL})
            assert watermark == stored
            kept = Loaded(None, {}, {}) if stored is None else Loaded(b"kept", {"x": b"1"}, {})
            assert state == {A: kept, B: Loaded(None, {}, {})}

        run(scenario())

    def test_of_two_owners_one_wins(self, store, run):
        async def scenario():
            await store.save(1, None, mark(1), {})
            outcomes = await asyncio.gather(
                *(store.save(1, mark(1), mark(n), {A: Saving(b"%d" % n)}) for n in range(2, 8))
            )
            assert sorted(outcomes) == ["newer"] * 5 + ["written"]
            watermark, state = await store.load(1, {A: FULL})
            assert watermark is not None
            assert state[A].head == b"%d" % watermark.offset

        run(scenario())

    def test_due_is_ordered_limited_and_follows_the_last_save(self, store, run):
        async def scenario():
            changes = {A: Saving(b"", due=30), B: Saving(b"", due=10), C: Saving(b"", due=20)}
            await store.save(1, None, mark(1), changes)
            assert list(await store.due(1, 9, 10)) == []
            assert list(await store.due(1, 30, 10)) == [B, C, A]
            assert list(await store.due(1, 30, 2)) == [B, C]
            changes = {B: Saving(b"", due=None), C: Saving(b"", due=40)}
            await store.save(1, mark(1), mark(2), changes)
            assert list(await store.due(1, 39, 10)) == [A]

        run(scenario())

    def test_partitions_are_apart(self, store, run):
        async def scenario():
            await store.save(1, None, mark(5), {A: Saving(b"1", due=1)})
            await store.save(0, None, mark(7), {A: Saving(b"0")})
            assert await store.load(2, {A: Wanted()}) == (None, {A: Loaded()})
            assert await store.load(1, {A: Wanted()}) == (mark(5), {A: Loaded(b"1")})
            assert await store.load(0, {A: Wanted()}) == (mark(7), {A: Loaded(b"0")})
            assert list(await store.due(0, 100, 10)) == []

        run(scenario())

    def test_a_batch_of_many_small_entries(self, store, run):
        async def scenario():
            names = tuple(f"{n:016x}" for n in range(5000))
            fields = dict.fromkeys(names, b"v")
            await store.save(1, None, mark(1), {A: Saving(b"h", fields, fields)})
            _, state = await store.load(1, {A: Wanted((*names, "absent"), content=True)})
            assert state[A] == Loaded(b"h", fields, fields)

        run(scenario())
