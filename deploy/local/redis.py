"""`redis-server`: one that keeps a log and evicts nothing, or a Redis Cluster of one node."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, Self

from deploy.local.jars import MissingError
from deploy.local.server import START, Server, StartError, free_port

SAFE: Final = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
"""As production should be set up."""


def binary() -> str:
    """Raises MissingError."""
    found = shutil.which("redis-server")
    if found is None:
        raise MissingError("no redis-server")
    return found


def version() -> str:
    """Raises MissingError."""
    told = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r"v=(\S+)", told.stdout)
    return found[1] if found else "of no known version"


class RedisServer(Server):
    """A Redis with its files in `folder`; `options` follow the command line of redis-server.

    Raises MissingError and, at its start, StartError.
    """

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        chosen = free_port() if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        base = ["--port", str(chosen), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
        super().__init__([binary(), *base, *options], chosen, folder / "redis.log")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"


class RedisCluster(RedisServer):
    """A Redis Cluster of one node that has all slots."""

    def __init__(self, folder: Path, *options: str) -> None:
        cluster = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        super().__init__(folder, *SAFE, *cluster, *options)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._form()
        except BaseException:
            self.kill()
            raise
        return self

    def _form(self) -> None:
        import redis  # noqa: PLC0415 - the client is only needed here

        deadline = time.monotonic() + START
        with redis.Redis(port=self.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while client.cluster("INFO")["cluster_state"] != "ok":
                if time.monotonic() > deadline:
                    raise StartError(f"the Redis Cluster on port {self.port} does not form")
                time.sleep(0.05)
