"""Connections to Redis that write commands with hiredis, and that can be cancelled.

redis-py reads replies with hiredis, but in asyncio writes commands in Python, which for a save of a
few hundred values takes six times as long: a twelfth of a worker's time.

It also writes each command in a task of its own, by `asyncio.wait_for`, which before Python 3.12
forgets a cancellation that comes in the moment the task ends. A worker whose batch went on all the
same waited for the next one without end, instead of ending itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import hiredis
from redis.asyncio import Connection, Redis, RedisCluster, SSLConnection
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as WriteTimeoutError


class _Packed:
    socket_timeout: float | None

    def pack_command(self, *args: Any) -> list[bytes]:
        """A command whose first word may hold several, as redis-py's own do."""
        name = args[0].encode() if isinstance(args[0], str) else args[0]
        return [hiredis.pack_command((*name.split(), *args[1:]))]

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """As redis-py's, which writes without a task of its own where there is no time limit."""
        within, self.socket_timeout = self.socket_timeout, None
        write: Any = super()
        try:
            async with asyncio.timeout(within):
                await write.send_packed_command(command, check_health)
        except TimeoutError:
            raise WriteTimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = within


class _PackedConnection(_Packed, Connection):
    pass


class _PackedSSLConnection(_Packed, SSLConnection):
    pass


def of_another_type(error: Exception) -> bool:
    """Whether Redis says that a key is not of the type that is asked for: that is no outage."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def packed(client: Redis) -> Redis:
    """The client, whose connections are yet to be opened, with these connections."""
    pool = client.connection_pool
    pool.connection_class = _kind(pool.connection_class)
    return client


def packed_cluster(client: RedisCluster) -> RedisCluster:
    """The same for a cluster's client."""
    given = client.connection_kwargs
    given["connection_class"] = _kind(given["connection_class"])
    for node in client.nodes_manager.startup_nodes.values():
        node.connection_class = given["connection_class"]
    return client


def _kind(made: type[Any]) -> type[Connection]:
    return _PackedSSLConnection if issubclass(made, SSLConnection) else _PackedConnection
