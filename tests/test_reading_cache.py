"""Readings by content in Redis, one or a cluster: many at once, few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fakeredis
import pytest
from redis.exceptions import RedisError

from streams.reading_cache import ReadingCache
from streams.spending import Budget, Limits
from streams.store import FAILURES, RedisStore

pytestmark = pytest.mark.services
KEYS = [f"{n:032x}" for n in range(700)]


@asynccontextmanager
async def connected(url: str, prefix: str) -> AsyncIterator[Any]:
    store = await RedisStore.connect(url, prefix=prefix, partitions=1, ttl=60)
    try:
        yield store.client
    finally:
        await store.close()


@pytest.mark.parametrize("fixture", ["redis_url", "embedded_redis_url", "redis_cluster_url"])
def test_a_take_of_any_size_is_kept_and_found(request: pytest.FixtureRequest, fixture: str) -> None:
    url = request.getfixturevalue(fixture)

    async def run() -> None:
        async with connected(url, f"cache-{fixture}") as client:
            cache = ReadingCache(client, prefix=f"cache-{fixture}", ttl=60, failures=FAILURES)
            assert await cache.get(KEYS) == [None] * len(KEYS)
            await cache.put({key: key.encode() * 100 for key in KEYS[::2]})
            found = await asyncio.gather(cache.get(KEYS), cache.get(KEYS[:3]), cache.get([]))
            wanted = [k.encode() * 100 if n % 2 == 0 else None for n, k in enumerate(KEYS)]
            assert found == [wanted, wanted[:3], []]
            assert 0 < await client.ttl(f"cache-{fixture}:llm:reading:{KEYS[0]}") <= 60

    asyncio.run(run())


@pytest.mark.parametrize("fixture", ["redis_url", "embedded_redis_url", "redis_cluster_url"])
def test_what_others_wrote_there_is_no_reading_and_nothing_spent(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    prefix = f"foreign-{fixture}"

    async def run() -> None:
        async with connected(request.getfixturevalue(fixture), prefix) as client:
            cache = ReadingCache(client, prefix=prefix, ttl=60, failures=FAILURES, patience=0.2)
            await client.sadd(f"{prefix}:llm:reading:{KEYS[0]}", "x")
            assert await cache.get(KEYS[:2]) == [None, None]
            await cache.put({KEYS[0]: b"mine"})
            assert await cache.get(KEYS[:2]) == [b"mine", None]
            budget = Budget(
                client, prefix=prefix, everyone=Limits(tokens_day=150, money_day=1.0),
                service=Limits(), failures=FAILURES, clock=lambda: 1_000.0, patience=0.2,
            )  # fmt: skip
            key = f"{{{prefix}:llm}}:all:day:0"
            await client.sadd(key, "x")
            assert not isinstance(await budget.take("svc", 100, None), str)
            assert await budget.take("svc", 100, None) == "all services, per day"
            await client.hset(key, "tokens", "many")
            assert not isinstance(await budget.take("svc", 100, None), str)
            assert await client.hget(key, "tokens") == b"100"

    asyncio.run(run())


@pytest.mark.parametrize("fixture", ["redis_url", "redis_cluster_url"])
def test_many_calls_that_end_at_once_settle_what_they_spent(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    url = request.getfixturevalue(fixture)

    async def run() -> bytes:
        async with connected(url, f"budget-{fixture}") as client:
            budget = Budget(
                client, prefix=f"budget-{fixture}", everyone=Limits(tokens_day=10_000_000),
                service=Limits(), failures=FAILURES, clock=lambda: 1_000.0,
            )  # fmt: skip
            taken = await asyncio.gather(*(budget.take("svc", 100, None) for _ in range(400)))
            await asyncio.gather(*(budget.settle(t, 7, None) for t in taken))  # type: ignore[arg-type]
            return await client.hget(f"{{budget-{fixture}:llm}}:all:day:0", "tokens")  # type: ignore[no-any-return]

    assert int(asyncio.run(run())) == 400 * 7


def test_it_holds_one_connection() -> None:
    """Redis clients open a hundred connections at most, and refuse the next."""

    async def run() -> None:
        client = fakeredis.FakeAsyncRedis(max_connections=1)
        cache = ReadingCache(client, prefix="x", ttl=60, failures=(RedisError,), patience=0.1)
        await asyncio.gather(*(cache.put({key: b"x"}) for key in KEYS[:50]))
        assert await cache.get(KEYS[:50]) == [b"x"] * 50

    asyncio.run(run())
