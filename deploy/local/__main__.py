"""`python -m deploy.local`: Kafka and Redis until Ctrl-C, and the settings that reach them."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from deploy.local import jars
from deploy.local.jars import MissingError
from deploy.local.kafka import Kafka
from deploy.local.redis import SAFE, RedisCluster, RedisServer
from deploy.local.server import Server, StartError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, choices=range(1, 10), metavar="1-9")
    parser.add_argument("--cluster", action="store_true", help="a Redis Cluster of one node")
    parser.add_argument("--fetch", action="store_true", help="only fetch the jars of Kafka")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a command


def _fetch() -> None:
    """Raises MissingError."""
    jars.java()
    if not jars.folder().is_dir():
        _say(f"Fetching Apache Kafka {jars.VERSION} with mvn (once; 45 MB)")
    jars.fetch()


def _serve(brokers: int, *, cluster: bool) -> None:
    """Raises MissingError and StartError; returns when a server ends, or is interrupted."""
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agenttrust-local-")))
        store = RedisCluster(folder / "redis") if cluster else RedisServer(folder / "redis", *SAFE)
        redis = stack.enter_context(store)
        kafka = stack.enter_context(Kafka(folder / "kafka", brokers=brokers))
        for setting in (
            f"export AGENTTRUST_KAFKA_BOOTSTRAP={kafka.bootstrap}",
            f"export AGENTTRUST_REPLICATION={min(3, brokers)}",
            f"export AGENTTRUST_REDIS_URL={redis.url}",
        ):
            print(setting, flush=True)  # noqa: T201
        _say(f"Up after {time.monotonic() - began:.1f} s; files in {folder}; Ctrl-C ends all.")
        parts: list[Server] = [redis, *kafka.nodes]
        while all(part.running for part in parts):
            time.sleep(0.5)
        ended = next(part for part in parts if not part.running)
        raise StartError(f"the server on port {ended.port} ended:\n{ended.said()[-2000:]}")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    given = _arguments()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _fetch()
        if not given.fetch:
            _serve(given.brokers, cluster=given.cluster)
    except (MissingError, StartError) as error:
        _say(f"deploy.local: {error}")
        return 2
    except KeyboardInterrupt:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
