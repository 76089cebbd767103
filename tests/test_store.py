from __future__ import annotations

import asyncio
import itertools
import time

import pytest
import redis

from monitor.engine import StoreBehind
from monitor.memory import MemoryStore
from monitor.ports import Saving, StoreCorrupt, Wanted, Watermark
from streams import store as store_module
from streams.store import SCHEMA, RedisStore, StoreRefused, StoreUnsafe
from tests.services import (  # noqa: F401
    free_port,
    redis_cluster_url,
    redis_server_url,
    redis_url,
    running,
    start_redis_server,
)
from tests.store_conformance import FULL, A, B, StoreConformance, mark

TTL = 500_000
NUMBERS = itertools.count()


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def prefix() -> str:
    return f"t*{next(NUMBERS)}"  # a pattern character: `reset` must not remove the neighbours' keys


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore()


class OnRedis(StoreConformance):
    """The conformance suite, and what only a Redis can do wrong."""

    URL: str

    @pytest.fixture
    def url(self, request) -> str:
        return request.getfixturevalue(self.URL)

    @pytest.fixture
    def raw(self, url):
        cluster = self.URL == "redis_cluster_url"
        kind = redis.RedisCluster if cluster else redis.Redis
        client = kind.from_url(url)
        yield client
        client.close()

    @pytest.fixture
    def store(self, url, prefix, run):
        store = run(RedisStore.connect(url, prefix=prefix, partitions=12, ttl=TTL, patience=0.5))
        yield store
        run(store.close())

    def keys(self, raw, prefix):
        return sorted(k for k in raw.keys("*") if k.startswith(b"{%s:" % prefix.encode()))

    def test_every_key_expires(self, store, run, raw, prefix):
        changes = {A: Saving(b"h", {"x": b"1"}, {"e": b"1"}, due=5)}
        run(store.save(1, None, mark(1), changes))
        keys = self.keys(raw, prefix)
        assert len(keys) == 5
        assert all(TTL - 60 < raw.ttl(key) <= TTL for key in keys)

    def test_removal_leaves_only_the_watermark(self, store, run, raw, prefix):
        run(store.save(1, None, mark(1), {A: Saving(b"h", {"x": b"1"}, {"e": b"1"}, due=5)}))
        run(store.save(1, mark(1), mark(2), {A: Saving(None)}))
        assert [key.rpartition(b":")[2] for key in self.keys(raw, prefix)] == [b"w"]

    @pytest.mark.parametrize("part", [b"h", b"f", b"c"])
    def test_a_value_of_another_trajectory_is_refused(self, store, run, raw, prefix, part):
        changes = {t: Saving(b"h", {"x": b"1"}, {"e": b"1"}) for t in (A, B)}
        run(store.save(1, None, mark(1), changes))
        mine, other = (
            next(k for k in self.keys(raw, prefix) if k.endswith(b":%s:%s" % (part, t.encode())))
            for t in (A, B)
        )
        if part == b"h":
            raw.set(mine, raw.get(other))
        else:
            raw.hset(mine, mapping=raw.hgetall(other))
        assert run(store.load(1, {B: FULL}))[1][B].head == b"h"
        with pytest.raises(StoreCorrupt, match=A):
            run(store.load(1, {A: FULL}))
        assert self.keys(raw, prefix) == []  # to be folded again

    def test_a_value_of_another_schema_version_is_refused(self, store, run, raw, prefix):
        run(store.save(1, None, mark(1), {A: Saving(b"h")}))
        key = next(k for k in self.keys(raw, prefix) if b":h:" in k)
        raw.set(key, bytes((store_module.SCHEMA + 1,)) + raw.get(key)[1:])
        with pytest.raises(StoreCorrupt):
            run(store.load(1, {A: Wanted()}))

    @pytest.mark.parametrize("kind", ["w", "e", "due", "h", "f", "c"])
    @pytest.mark.parametrize("what", ["another type", "rubbish"])
    def test_a_foreign_value_gives_up_the_state_of_its_partition_alone(
        self, store, run, raw, prefix, kind, what
    ):
        changes = {A: Saving(b"h", {"x": b"1"}, {"e": b"1"}, due=5)}
        tag = f"{{{prefix}:{SCHEMA}:1}}"
        key = f"{tag}:{kind}" + (f":{A}" if kind in "hfc" else "")

        async def scenario():
            for partition in (1, 2):
                await store.save(partition, None, mark(1), changes)
            before = await store.load(2, {A: FULL})
            if what == "another type":
                raw.delete(key)
                raw.sadd(key, "x")
            elif kind in "fc":
                raw.hset(key, b"\xff", b"\xff")
            elif kind == "due":
                raw.zadd(key, {b"\xff": 1})
            else:
                raw.set(key, b"\xff\x00")
            if kind in "we":
                assert await store.partitions() in {None, 12}
                assert await store.watermark(1) is None
            else:
                calls = {
                    ("due", "another type"): lambda: store.save(1, mark(1), mark(2), changes),
                    ("due", "rubbish"): lambda: store.due(1, 10, 10),
                }
                call = calls.get((kind, what), lambda: store.load(1, {A: FULL}))
                with pytest.raises(StoreCorrupt, match=r"^partition 1: .* is removed"):
                    await call()
                assert await store.watermark(1) is None
            assert [k for k in self.keys(raw, prefix) if k.startswith(tag.encode())] == []
            assert await store.save(1, None, mark(3), changes) == "written"
            assert await store.load(2, {A: FULL}) == before

        run(scenario())

    def test_who_still_folds_a_partition_that_is_given_up_does_not_begin_it_anew(self, store, run):
        async def scenario():
            await store.save(1, None, mark(1), {A: Saving(b"h", due=5)})
            with pytest.raises(StoreCorrupt):
                await store.give_up(1, "it is rubbish")
            with pytest.raises(StoreBehind):
                await store.load(1, {A: Wanted()})
            with pytest.raises(StoreBehind):
                await store.due(1, 10, 10)
            assert await store.watermark(1) is None  # taken over anew
            assert (await store.load(1, {A: Wanted()}))[1][A].head is None

        run(scenario())

    def test_a_cancelled_call_ends_cancelled_whenever_that_comes(self, store, run):
        """At every turn of the loop: the call is over, or raises; it never goes on as if nothing
        had been."""

        async def scenario():
            await store.save(1, None, mark(1), {A: Saving(b"h")})
            turns = 0
            while True:
                call = asyncio.create_task(store.load(1, {A: FULL}))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if not call.cancel():
                    await call
                    return turns
                with pytest.raises(asyncio.CancelledError):
                    await call
                turns += 1

        assert run(scenario()) > 3

    def test_a_wrong_answer_that_does_not_come_again_costs_nothing(self, store, run, monkeypatch):
        """As of a connection that hands out what another request has asked for."""
        real, answers = store._script, []

        async def script(name, *args):
            answers.append(await real(name, *args))
            head = [x for x in answers[-1][2:] if x]
            if name == "load" and len(answers) == 1 and head:
                answers[0][2][0] = b"\x00" * 40
            return answers[-1]

        async def scenario():
            await store.save(1, None, mark(1), {A: Saving(b"h")})
            monkeypatch.setattr(store, "_script", script)
            assert (await store.load(1, {A: Wanted()}))[1][A].head == b"h"

        run(scenario())
        assert len(answers) == 2

    def test_an_answer_that_would_be_too_large_leaves_spans_out(self, store, run, monkeypatch):
        script = store_module._LOAD.replace(str(store_module._GIVEN), "1500")
        monkeypatch.setattr(store_module, "_LOAD", script)
        names = ["a" * 31 + digit for digit in "123"]
        saved = {
            name: Saving(b"head", {"x": b"1", "y": b"2"}, {"s": b"v" * 1000}) for name in names
        }

        async def scenario():
            for number, (name, saving) in enumerate(saved.items()):
                expected = mark(number - 1) if number else None
                await store.save(0, expected, mark(number), {name: saving})
            wanted = Wanted(("x",), content=True)
            _, loaded = await store.load(0, dict.fromkeys(names, wanted))
            assert [
                None if one.content is None else set(one.content) for one in loaded.values()
            ] == [
                {"s"},
                {"s"},
                None,
            ]
            assert loaded[names[2]].fields == {"x": b"1"}
            _, alone = await store.load(0, {names[2]: wanted})
            assert alone[names[2]].content == saved[names[2]].content
            assert alone[names[2]].fields == saved[names[2]].fields

        run(scenario())

    def test_a_save_whose_answer_was_lost_is_written_when_repeated(self, store, run):
        changes = {A: Saving(b"h")}
        assert run(store.save(1, None, mark(1), changes)) == "written"
        assert run(store.save(1, None, mark(1), changes)) == "written"
        assert run(store.load(1, {A: Wanted()}))[0] == mark(1)

    def test_the_same_place_in_another_log_is_not_this_save(self, store, run):
        run(store.save(1, None, mark(1), {}))
        assert run(store.save(1, None, Watermark(0, 1, 0, 7), {})) == "newer"

    def test_reset_removes_the_partitions_state_and_keeps_its_epoch(self, store, run, raw, prefix):
        for partition in (1, 11):
            run(store.save(partition, None, mark(1, epoch=4), {A: Saving(b"h", due=1)}))
        run(store.reset(1))
        watermark, state = run(store.load(1, {A: FULL}))
        assert (watermark, state[A].head) == (mark(1, epoch=4), None)
        assert list(run(store.due(1, 9, 9))) == []
        assert run(store.load(11, {A: FULL}))[1][A].head == b"h"
        assert len(self.keys(raw, prefix)) == 4

    def test_the_partition_count_is_recorded_and_another_one_refused(self, store, run, url, prefix):
        assert run(store.partitions()) is None
        run(store.save(2, None, mark(1), {}))
        assert run(store.partitions()) == 12
        other = run(RedisStore.connect(url, prefix=prefix, partitions=6, ttl=TTL))
        assert run(other.partitions()) == 12
        with pytest.raises(StoreUnsafe, match="12 partitions"):
            run(other.load(2, {}))
        run(other.close())

    def test_a_flushed_script_cache_goes_unnoticed(self, store, run, raw):
        run(store.save(1, None, mark(1), {}))
        raw.script_flush()
        assert run(store.save(1, mark(1), mark(2), {})) == "written"

    def test_a_cancelled_call_does_not_answer_the_next(self, store, run):
        async def scenario():
            changes = {A: Saving(b"a"), B: Saving(b"b")}
            await store.save(1, None, mark(1), changes)
            cancelled = 0
            for ticks in range(40):
                task = asyncio.create_task(store.load(1, {A: FULL}))
                for _ in range(ticks % 10):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                cancelled += task.cancelled()
                assert (await store.load(1, {B: FULL}))[1][B].head == b"b"
            assert cancelled

        run(scenario())


class TestFakeRedis(OnRedis):
    URL = "embedded_redis_url"

    def test_cannot_tell_is_a_warning(self, store, run):
        [warning] = run(store.check())
        assert warning.startswith("cannot tell")


class TestRedisServer(OnRedis):
    URL = "redis_server_url"

    def test_a_set_up_that_keeps_state_gives_no_warning(self, store, run):
        assert run(store.check()) == []


class TestRedisCluster(OnRedis):
    URL = "redis_cluster_url"

    def test_a_cluster_is_checked_too(self, store, run):
        assert run(store.check()) == []


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (("--appendonly", "no"), "appendonly is off"),
        (("--maxmemory-policy", "volatile-ttl"), "must be noeviction"),
    ],
)
def test_a_risky_set_up_is_told(tmp_path, run, options, warning):
    port = free_port()
    with start_redis_server(port, tmp_path, *options):
        store = run(
            RedisStore.connect(f"redis://127.0.0.1:{port}", prefix="x", partitions=1, ttl=9)
        )
        [told] = run(store.check())
        assert warning in told
        run(store.close())


def test_a_redis_that_evicts_is_refused(tmp_path, run):
    port = free_port()
    options = ("--maxmemory-policy", "allkeys-lru", "--maxmemory", "50mb")
    with start_redis_server(port, tmp_path, *options):
        store = run(
            RedisStore.connect(f"redis://127.0.0.1:{port}", prefix="x", partitions=1, ttl=9)
        )
        with pytest.raises(StoreUnsafe, match="allkeys-lru"):
            run(store.check())
        run(store.close())


def test_evicted_keys_are_noticed_and_the_state_is_begun_anew(tmp_path, run):
    port = free_port()
    url = f"redis://127.0.0.1:{port}"

    async def connect() -> RedisStore:
        return await RedisStore.connect(url, prefix="x", partitions=2, ttl=TTL, patience=1)

    async def scenario(raw):
        store = await connect()
        assert await store.watermark(0) is None
        await store.save(0, None, mark(1), {A: Saving(b"head", {"x": b"1"}, {"y": b"2"})})
        raw.config_set("maxmemory-policy", "allkeys-random")
        raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 200_000)
        for number in range(1000):
            raw.set(f"other {number}", "x" * 1000)
        evicted = raw.info("stats")["evicted_keys"]
        assert evicted > 0
        for look in (store.load(0, {A: FULL}), store.due(0, 0, 1)):
            with pytest.raises(StoreBehind, match="evicts keys"):
                await look
        raw.config_set("maxmemory", 0)
        another = await connect()
        assert await another.watermark(0) is None
        assert raw.keys("{x:*:0}:*") == [f"{{x:{SCHEMA}:0}}:e".encode()]
        await another.save(0, None, mark(2), {A: Saving(b"head")})
        await another.close()
        third = await connect()
        assert await third.watermark(0) == mark(2)
        assert (await third.load(0, {A: FULL}))[0] == mark(2)
        await third.close()
        await store.close()

    with start_redis_server(port, tmp_path), redis.Redis(port=port) as raw:
        run(scenario(raw))


def test_an_outage_is_waited_for(tmp_path, run, caplog):
    port = free_port()

    async def scenario(store):
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(store.load(0, {}))
            await asyncio.to_thread(_until, lambda: "waiting" in caplog.text)
            with start_redis_server(port, tmp_path):
                assert await waiting == (None, {})

    with start_redis_server(port, tmp_path):
        store = run(
            RedisStore.connect(f"redis://127.0.0.1:{port}", prefix="x", partitions=1, ttl=9)
        )
    run(scenario(store))
    assert "works again" in caplog.text
    run(store.close())


def test_an_outage_without_end_is_raised(run):
    url = f"redis://127.0.0.1:{free_port()}"
    with pytest.raises(StoreRefused, match=f"no Redis answers at {url}"):
        run(RedisStore.connect(url, prefix="x", partitions=1, ttl=9, patience=0.1))


@pytest.mark.services
@pytest.mark.parametrize("fixture", ["redis_server_url", "redis_cluster_url"])
def test_a_database_that_there_is_not_is_refused_at_once(request, run, fixture):
    url = request.getfixturevalue(fixture).removesuffix("/0") + "/77"
    with pytest.raises(StoreRefused, match=r"has no such database.*AGENTTRUST_REDIS_URL"):
        run(RedisStore.connect(url, prefix="x", partitions=1, ttl=9))


def _until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
