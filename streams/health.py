"""`/healthz` and `/metrics` of a process, on AGENTTRUST_HTTP_LISTEN.

They are served by the loop that does the work: a loop that is stuck does not answer, which is the
right answer. Unhealthy means that a restart may help; an idle worker is healthy.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import orjson
from aiohttp import web

from streams import metrics
from streams.http_server import listening

log = logging.getLogger(__name__)

_GRACE: Final = 2.0


class Health:
    """What is wrong with a process. Until somebody `watch`es, it is starting, for `start` seconds."""

    def __init__(
        self, role: str, *, start: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.role = role
        self._start = start
        self._clock = clock
        self._began = clock()
        self._problems: Callable[[], list[str]] = self._starting

    def _starting(self) -> list[str]:
        waited = self._clock() - self._began
        return [f"not ready after {waited:.0f} s"] if waited > self._start else []

    def watch(self, problems: Callable[[], list[str]]) -> None:
        """From now on `problems` says what is wrong, a sentence each."""
        self._problems = problems

    def problems(self) -> list[str]:
        return self._problems()


def _app(health: Health) -> web.Application:
    async def healthz(_: web.Request) -> web.Response:
        problems = health.problems()
        told = {
            "status": "failing" if problems else "ok",
            "role": health.role,
            "problems": problems,
        }
        return web.Response(
            status=503 if problems else 200,
            body=orjson.dumps(told) + b"\n",
            content_type="application/json",
        )

    async def numbers(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": metrics.CONTENT_TYPE})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", numbers)])
    return app


@asynccontextmanager
async def serving(listen: str, health: Health) -> AsyncIterator[int | None]:
    """Serves while the body runs; gives the port, None when `listen` is empty. Raises UserError."""
    if not listen:
        yield None
        return
    async with listening(_app(health), "http_listen", listen, grace=_GRACE) as port:
        host = listen.rpartition(":")[0]
        log.info("health and metrics of %s on http://%s:%d", health.role, host, port)
        yield port


def offset(listen: str, number: int) -> str:
    """Where the `number`-th process of a worker listens: as many ports on; port 0 stays."""
    host, _, port = listen.rpartition(":")
    if not listen or int(port) == 0:
        return listen
    return f"{host}:{int(port) + number}"
