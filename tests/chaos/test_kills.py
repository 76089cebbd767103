"""Workers are killed without warning, again and again, while a fleet of agents goes on."""

from __future__ import annotations

import random
import time

import pytest

from deploy.local.redis import SAFE, RedisCluster, RedisServer
from tests.chaos.fleet import Worker, World, load

KILLS = 8
EVERY = 4.0


def working(world: World) -> list[Worker]:
    """Those that have something to lose."""
    return [worker for worker in world.of() if worker.partitions]


@pytest.mark.parametrize("store", [RedisServer, RedisCluster])
@pytest.mark.timeout(420)
def test_killed_workers_lose_nothing_and_repeat_byte_for_byte(kafka, tmp_path, store):
    """30 000 spans of 3 000 trajectories, two workers of each role, a SIGKILL every few seconds."""
    options = () if store is RedisCluster else SAFE
    dice = random.Random(7)
    given = load(3000, poison=10)
    assert given.spans >= 30_000
    with (
        store(tmp_path / "redis", *options) as redis,
        World(kafka.bootstrap, redis.url, tmp_path, partitions=8) as world,
    ):
        world.fleet(ingest=2, evaluate=2)
        with world.sending(given, seconds=KILLS * EVERY):
            for _ in range(KILLS):
                time.sleep(EVERY * dice.uniform(0.7, 1.1))
                world.wait(lambda: working(world), "a worker at work")
                world.kill(dice.choice(working(world)))
        world.settle()
        world.check()
        assert world.metric(r'agenttrust_lost_arrivals_total\{reason="bad_id"\}') > 0
        assert world.metric(r"agenttrust_dead_letters_total\{.*") > 0
        assert world.metric(r"agenttrust_takeovers_total\{.*") > world.settings.partitions
