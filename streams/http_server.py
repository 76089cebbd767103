"""HTTP servers of a process: the gateway, and the one of health and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from streams.errors import UserError
from streams.settings import variable

FIRST_REQUEST: Final = 30.0
"""Seconds within which a connection must have told its first request's headers. aiohttp waits for
them without end, so that clients who never finish would take every file that the process may open."""


class _Malformed(logging.Filter):
    """What is no HTTP was answered with 400 and is nobody's defect here: a warning, no error. Its
    text, which quotes the client, stays out, so that a scanner's many lines are told as one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.exc_info = "what is no HTTP request came from %s", None
        return True


_MALFORMED: Final = _Malformed()


@asynccontextmanager
async def listening(
    app: web.Application, setting: str, listen: str, *, grace: float, **options: Any
) -> AsyncIterator[int]:
    """Serves `app` at `listen` (HOST:PORT) while the body runs; gives the port. Requests under way
    have `grace` seconds then. Raises UserError, which names the `setting`, when it cannot listen.
    """
    silent: set[asyncio.BaseProtocol] = set()

    @web.middleware
    async def heard(request: web.Request, handler: Any) -> web.StreamResponse:
        silent.discard(request.protocol)
        answer: web.StreamResponse = await handler(request)
        return answer

    app.middlewares.insert(0, heard)
    logging.getLogger("aiohttp.server").addFilter(_MALFORMED)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=grace, **options)
    await runner.setup()
    connections = runner.server
    assert connections is not None
    loop = asyncio.get_running_loop()

    def connect() -> asyncio.Protocol:
        connection = connections()
        silent.add(connection)
        loop.call_later(FIRST_REQUEST, give_up, connection)
        return connection

    def give_up(connection: Any) -> None:
        if connection in silent:
            silent.discard(connection)
            if connection.transport is not None:
                connection.transport.abort()

    host, _, port = listen.rpartition(":")
    try:
        try:
            server = await loop.create_server(connect, host.strip("[]"), int(port), backlog=128)
        except OSError as error:
            why = error.strerror or error
            raise UserError(f"{variable(setting)}={listen}: cannot listen: {why}") from None
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()
