"""Redis fails: it restarts, is flushed, goes back in time, evicts, or is away."""

from __future__ import annotations

import shutil
import time

import pytest
import redis

from deploy.local.redis import SAFE, RedisServer
from tests.chaos.fleet import World, load
from tests.services import wait_for

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
        time.sleep(3)
        server.kill()
        server.start()
    world.settle()
    world.check()
    assert world.metric(r'agenttrust_outages_total\{part="store"\}') > 0


def test_a_redis_that_is_away_for_30_seconds_is_waited_for(started):
    server, world = started(*SAFE)
    with world.sending(load(300), seconds=6):
        time.sleep(2)
        server.stop()
        time.sleep(30)
        assert all(worker.exits == [] for worker in world.workers)
        server.start()
    world.settle()
    world.check()
    assert world.metric(r'agenttrust_outage_seconds_total\{part="store"\}') > 20


def test_a_flushed_redis_is_noticed_and_folded_anew(started):
    server, world = started(*SAFE)
    with world.sending(load(300), seconds=8), redis.Redis(port=server.port) as raw:
        time.sleep(4)
        raw.flushall()
    world.settle()
    world.check()
    assert takeovers(world, "empty") > 0


def test_a_redis_that_went_back_by_a_second_is_noticed_and_folded_anew(started):
    server, world = started(*NO_LOG)
    with world.sending(load(300), seconds=8), redis.Redis(port=server.port) as raw:
        time.sleep(4)
        raw.save()
        kept = shutil.copy(server.log.parent / "dump.rdb", server.log.parent / "kept")
        time.sleep(1)
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
            time.sleep(3)
            raw.config_set("maxmemory-policy", "allkeys-random")
            raw.config_set("maxmemory", max(raw.info("memory")["used_memory"] - 200_000, 1_000_000))
            wait_for(lambda: raw.info("stats")["evicted_keys"], "keys to be evicted")
            wait_for(lambda: any(2 in w.exits for w in world.of("evaluate")), "a refusal", 60)
        assert any("maxmemory-policy is allkeys-random" in w.log.read_text() for w in world.of())
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", 0)
    world.settle()
    world.check()
    assert takeovers(world, "empty") > 0
