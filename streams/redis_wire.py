"""Commands to Redis, written by hiredis.

redis-py reads replies with hiredis, but in asyncio writes commands in Python, which for a save of a
few hundred values takes six times as long: a twelfth of a worker's time.
"""

from __future__ import annotations

from typing import Any

import hiredis
from redis.asyncio import Connection, Redis, SSLConnection


class _Packed:
    def pack_command(self, *args: Any) -> list[bytes]:
        """A command whose first word may hold several, as redis-py's own do."""
        name = args[0].encode() if isinstance(args[0], str) else args[0]
        return [hiredis.pack_command((*name.split(), *args[1:]))]


class _PackedConnection(_Packed, Connection):
    pass


class _PackedSSLConnection(_Packed, SSLConnection):
    pass


def packed(client: Redis) -> Redis:
    """The client, whose connections are yet to be opened, with commands written by hiredis."""
    pool = client.connection_pool
    tls = issubclass(pool.connection_class, SSLConnection)
    pool.connection_class = _PackedSSLConnection if tls else _PackedConnection
    return client
