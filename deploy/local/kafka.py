"""Apache Kafka: one KRaft node that is broker and controller, or several that form a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from deploy.local import jars
from deploy.local.server import Server, StartError, free_port

_CLUSTER: Final = "AgentTrustLocal000000w"
"""A cluster id as Kafka wants it: 16 bytes in base64."""
_FORMAT: Final = 120.0
_UP: Final = "Kafka Server started"

# Client compiler alone and a serial collector: a start in half the time, and a small process.
_JVM: Final = (
    *("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"),
    "-Djava.net.preferIPv4Stack=true",
    f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.yaml'}",
)

_PROPERTIES: Final = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    # Topics are made by `agenttrust topics create`; nothing may depend on their making themselves.
    "auto.create.topics.enable": "false",
    # The defaults are for fleets: a first rebalance after 3 s, sessions of 6 s and more, 50
    # partitions of offsets, 128 MB for the cleaner.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "share.coordinator.state.topic.num.partitions": "3",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024**2),
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
}


class Kafka:
    """A cluster of `brokers` nodes with their files in `folder`.

    `listeners` names further ones, name -> protocol (`SSL`, `SASL_PLAINTEXT`, `SASL_SSL`), each with
    a port of its own on every node; `properties` are added to every node's, and `scram` are
    arguments of the storage tool's --add-scram. Raises jars.MissingError and StartError.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 1,
        listeners: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
        scram: Sequence[str] = (),
    ) -> None:
        self._java = [jars.java(), *_JVM, "-cp", f"{jars.cached()}/*"]
        self._protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._scram = scram
        self._folder = folder
        self._ports = [{name: free_port() for name in self._protocols} for _ in range(brokers)]
        self._controllers = [free_port() for _ in range(brokers)]
        self.nodes = [self._node(n, properties or {}) for n in range(brokers)]

    @property
    def bootstrap(self) -> str:
        """Addresses of every node's plain listener."""
        return self.address("PLAINTEXT")

    def address(self, listener: str) -> str:
        """Addresses of every node's listener of that name."""
        return ",".join(f"127.0.0.1:{ports[listener]}" for ports in self._ports)

    def start(self) -> None:
        """Starts every node that is not running and waits until all serve. Raises StartError."""
        down = [node for node in self.nodes if not node.running]
        for node in down:
            node.launch()
        for node in down:
            node.wait()

    def stop(self) -> None:
        """Ends every node in order."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        try:
            self._format()
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- a node's files ------------------------------------------------------------------------

    def _node(self, number: int, more: Mapping[str, str]) -> Server:
        home = self._folder / f"node{number + 1}"
        home.mkdir(parents=True)
        copies = min(3, len(self._ports))
        listeners = ",".join(f"{n}://127.0.0.1:{p}" for n, p in self._ports[number].items())
        voters = (f"{n}@127.0.0.1:{port}" for n, port in enumerate(self._controllers, 1))
        protocols = self._protocols | {"CONTROLLER": "PLAINTEXT"}
        properties = _PROPERTIES | {
            "node.id": str(number + 1),
            "log.dirs": str(home / "data"),
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controllers[number]}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
            "controller.quorum.voters": ",".join(voters),
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
            "transaction.state.log.min.isr": str(max(1, copies - 1)),
            "share.coordinator.state.topic.replication.factor": str(copies),
            "share.coordinator.state.topic.min.isr": str(max(1, copies - 1)),
            **more,
        }
        config = home / "server.properties"
        config.write_text("".join(f"{name}={_escaped(v)}\n" for name, v in properties.items()))
        return Server(
            [*self._java, "kafka.Kafka", str(config)],
            self._ports[number]["PLAINTEXT"],
            home / "kafka.log",
            ready=lambda said: _UP in said,
        )

    def _format(self) -> None:
        """Gives every node's empty folder the cluster's id."""
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", _CLUSTER]
        tool += [part for user in self._scram for part in ("--add-scram", user)]
        running = [
            subprocess.Popen(  # noqa: S603 - all of them at once: a JVM's start is most of the work
                [*tool, "-c", str(node.log.with_name("server.properties"))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for node in self.nodes
        ]
        try:
            for process in running:
                said, _ = process.communicate(timeout=_FORMAT)
                if process.returncode:
                    raise StartError(f"the storage tool of Kafka failed:\n{said}")
        finally:
            for process in running:
                process.kill()
                process.wait()


def _escaped(value: str) -> str:
    """A value as a Java properties file has it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
