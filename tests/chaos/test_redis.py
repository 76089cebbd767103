"""Redis fails: it restarts, is flushed, goes back in time, evicts, or is away."""

from __future__ import annotations

import shutil
import time

import pytest
import redis

from deploy.local.redis import SAFE, RedisServer
from tests.chaos.fleet import World, load

pytestmark = pytest.mark.timeout(300)
NO_LOG = ("--appendonly", "no", "--maxmemory-policy", "noeviction")


@pytest.fixture
def started(kafka, tmp_path):
    """Makes a Redis with the options and a fleet on it."""

    def make(*options: str, **more: object) -> tuple[RedisServer, World]:
        server = RedisServer(tmp_path / "redis", *options)
        server.start()
        made.append(server)
        world = World(kafka.bootstrap, server.url, tmp_path, **more)
        made.append(world)
        world.__enter__()
        return server, world.fleet()

    made: list = []
    yield make
    for one in reversed(made):
        one.__exit__(None, None, None)


def takeovers(world: World, found: str) -> float:
    return world.metric(rf'agenttrust_takeovers_total\{{found="{found}"\}}')


def test_a_restart_of_redis_is_waited_for(started):
    server, world = started(*SAFE)
    with world.sending(load(300), seconds=6):
        world.under_way()
        server.kill()
        outages = r'agenttrust_outages_total\{part="store"\}'
        world.wait(lambda: world.metric(outages) > 0, "a worker to notice that Redis is gone")
        server.start()
    world.settle()
    world.check()


def test_a_redis_that_is_away_for_30_seconds_is_waited_for(started):
    server, world = started(*SAFE)
    with world.sending(load(300), seconds=6):
        world.under_way()
        server.stop()
        time.sleep(30)  # so long it is away
        assert all(worker.exits == [] for worker in world.workers)
        server.start()
    world.settle()
    world.check()
    assert world.metric(r'agenttrust_outage_seconds_total\{part="store"\}') > 20


def test_a_flushed_redis_is_noticed_and_folded_anew(started):
    server, world = started(*SAFE)
    with world.sending(load(300), seconds=8), redis.Redis(port=server.port) as raw:
        world.under_way()
        raw.flushall()
    world.settle()
    world.check()
    assert takeovers(world, "empty") > 0


def test_a_redis_that_went_back_by_a_second_is_noticed_and_folded_anew(started):
    server, world = started(*NO_LOG)
    with world.sending(load(300), seconds=8), redis.Redis(port=server.port) as raw:
        world.under_way()
        raw.save()
        kept = shutil.copy(server.log.parent / "dump.rdb", server.log.parent / "kept")
        time.sleep(1)  # so far it goes back
        changed = "rdb_changes_since_last_save"
        world.wait(lambda: raw.info("persistence")[changed] > 20, "what can be lost")
        server.kill()
        shutil.copy(kept, server.log.parent / "dump.rdb")
        server.start()
    world.settle()
    world.check()
    assert takeovers(world, "behind") > 0


def test_a_redis_that_evicts_is_refused_until_it_does_not_and_then_folded_anew(started):
    server, world = started(*NO_LOG)
    with redis.Redis(port=server.port) as raw:
        with world.sending(load(300), seconds=8):
            world.under_way(200)
            raw.config_set("maxmemory-policy", "allkeys-random")
            raw.config_set("maxmemory", max(raw.info("memory")["used_memory"] - 200_000, 1_000_000))
            world.wait(lambda: raw.info("stats")["evicted_keys"], "keys to be evicted")
            world.wait(lambda: any(2 in w.exits for w in world.of("evaluate")), "a refusal")
        assert any("maxmemory-policy is allkeys-random" in w.log.read_text() for w in world.of())
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", 0)
    world.settle()
    world.check()
    assert takeovers(world, "empty") > 0
