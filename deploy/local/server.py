"""A server as a child process: started, waited for, and ended by its process id."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
START: Final = 60.0
"""Seconds that a start may take on a busy machine."""
_GRACE: Final = 15.0
_PORTS: Final = range(20_000, 32_000)
"""Below the range from which Linux takes the ports of outgoing connections, so that none of those
has a port while its server restarts."""


class StartError(Exception):
    """A server did not start; the text says which and ends with what it logged."""


def free_port() -> int:
    """A loopback port that nobody listens on."""
    while True:
        port = secrets.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As servers do: a port that only lingers in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


def listening(port: int) -> bool:
    """Whether something accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Server:
    """One process. Use as a context manager, which kills it at the end, or start and stop it.

    `ready` is asked until it holds; it gets what the process has logged since its start. Without
    one, a listener at `port` is enough.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        ready: Callable[[str], bool] | None = None,
    ) -> None:
        self.port = port
        self.log = log
        self._command = list(command)
        self._ready = ready or (lambda _: listening(port))
        self._process: subprocess.Popen[bytes] | None = None
        self._from = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Starts the process without waiting until it serves."""
        assert not self.running
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._from = self.log.stat().st_size if self.log.exists() else 0
        # It ends with this process, however that ends; Ctrl-C reaches only this one.
        guard = [sys.executable, "-m", "streams.child", str(os.getpid())]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603 - commands of this package
                [*guard, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                start_new_session=True,
            )

    def wait(self, seconds: float = START) -> None:
        """Returns once it serves. Raises StartError."""
        deadline = time.monotonic() + seconds
        while not self._ready(self.said()):
            if not self.running:
                raise StartError(f"{self._name} ended at its start:\n{self._tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise StartError(f"{self._name} did not start in {seconds:g} s:\n{self._tail()}")
            time.sleep(0.02)
        if not self.running:  # somebody else listens there
            raise StartError(f"{self._name} ended at its start:\n{self._tail()}")

    def start(self) -> None:
        """Launches it and waits until it serves. Raises StartError."""
        self.launch()
        self.wait()

    def stop(self) -> None:
        """Ends it in order; by force when that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def said(self) -> str:
        """What it logged since it was started last."""
        with self.log.open("rb") as file:
            file.seek(self._from)
            return file.read().decode("utf-8", "replace")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def _name(self) -> str:
        return f"{Path(self._command[0]).name} on port {self.port}"

    def _tail(self) -> str:
        return "\n".join(self.said().splitlines()[-15:])
