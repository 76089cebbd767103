"""Processes: running until a signal, and children that are restarted and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

T = TypeVar("T")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FIRST_DELAY: Final = 0.2
_LONGEST_DELAY: Final = 10.0
_STEADY: Final = 30.0
"""Seconds after which a child counts as well again."""


def until_stopped(run: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Runs a coroutine on a new event loop; its argument is set by SIGINT, SIGTERM or SIGHUP."""

    async def main() -> T:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, stop.set)
        return await run(stop)

    return asyncio.run(main())


def free_port(wanted: int = 0) -> int:
    """A loopback port that nobody listens on: `wanted` when it is free, else any."""
    with socket.socket() as probe:
        # As servers do: a port that only lingers in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return free_port()
        return int(probe.getsockname()[1])


class Child:
    """A child process in a session of its own, so that Ctrl-C reaches only its parent.

    Its output goes to `log`. `lives` counts how often it was started.
    """

    def __init__(
        self, name: str, command: list[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self.lives = 0
        self._command = [sys.executable, "-m", "streams.child", str(os.getpid()), *command]
        self._environment = dict(os.environ) | dict(environment or {})
        self._process: asyncio.subprocess.Process | None = None
        self._stop = asyncio.Event()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.lives += 1

    async def ended(self) -> int:
        """Waits for the end of the process; its exit status, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def keep(self, tell: Callable[[str], None]) -> None:
        """Starts the process, and again whenever it ends, until `stop`; `tell` hears of each."""
        delay = _FIRST_DELAY
        while True:
            began = time.monotonic()
            await self.start()
            if self._stop.is_set():  # told while it started
                await self.stop()
            status = await self.ended()
            if self._stop.is_set():
                return
            delay = _FIRST_DELAY if time.monotonic() - began > _STEADY else delay
            said = "".join(f": {text}" for text in self.last_lines(1))
            tell(f"{self.name} ended (status {status}), starts again in {delay:g} s{said}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
                return
            delay = min(delay * 2, _LONGEST_DELAY)

    async def stop(self, grace: float = 5.0) -> None:
        """SIGTERM, then after `grace` seconds SIGKILL; returns when the process is gone."""
        self._stop.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        for send, patience in ((process.terminate, grace), (process.kill, None)):
            try:
                send()
                async with asyncio.timeout(patience):
                    await process.wait()
            except (ProcessLookupError, TimeoutError):
                continue
            return

    def last_lines(self, count: int = 5) -> list[str]:
        """The end of its output."""
        with self.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
