"""Policy sets on their way from files to the fold.

`PolicySource` (ingest) reads the directory of contracts again whenever it changes and writes the
set to the contracts topic before its digest is put on any record. `PolicySetLog` (evaluate) follows
that topic and finds sets by digest. So what a digest means never depends on anybody's files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition

from monitor.contract import Limits, PolicySet, load_contracts
from monitor.errors import InputError
from streams import metrics
from streams.errors import UserError
from streams.events import Message
from streams.patience import patiently, words
from streams.sender import FAILURES, Sender
from streams.settings import Settings
from streams.topics import POLICY_SET_BYTES

log = logging.getLogger(__name__)

_EVERY: Final = 1.0
"""Seconds between two looks at the directory."""
_SOON: Final = 2.0
"""Seconds in which a set that was just written is normally read."""
_TELL: Final = 15.0
"""Seconds between two lines about a set that is waited for."""

Signature = tuple[tuple[str, int, int, int, int], ...]


def policy_set(settings: Settings) -> PolicySet:
    """What the settings and the files say now. Raises InputError for a file that is wrong, and for
    files that together make more than a message may hold."""
    contracts = () if settings.contracts is None else load_contracts(settings.contracts)
    found = PolicySet(
        contracts,
        Limits(
            max_steps=settings.max_steps,
            max_bytes=settings.max_bytes,
            max_age=round(settings.max_age * 1000),
            state_ttl=round(settings.state_ttl * 1000),
        ),
        settings.evidence,
        settings.event_attributes,
    )
    if len(found.encode()) > POLICY_SET_BYTES:
        raise InputError(
            str(settings.contracts),
            f"contracts of {len(found.encode())} bytes together",
            f"at most {POLICY_SET_BYTES} bytes",
        )
    return found


class PolicySource:
    """The policy set by which new arrivals are stamped. A broken file keeps the old set."""

    def __init__(self, settings: Settings, topic: str, sender: Sender) -> None:
        self._settings = settings
        self._topic = topic
        self._sender = sender
        self._seen: Signature | None = None
        self._current: PolicySet | None = None
        self._failed: str | None = None

    @property
    def digest(self) -> str:
        assert self._current is not None, "refresh() comes first"
        return self._current.digest

    @property
    def failed(self) -> str | None:
        """Why the files cannot be used at present; None when they are in use."""
        return self._failed

    async def refresh(self) -> None:
        """Looks at the directory; a new set is in the topic before this returns.

        Raises UserError when there is no old set to keep.
        """
        seen = await asyncio.to_thread(_signature, self._settings.contracts)
        if seen == self._seen:
            return
        try:
            found = await asyncio.to_thread(policy_set, self._settings)
        except InputError as error:
            if self._current is None:
                raise UserError(str(error)) from error
            self._seen = seen
            self._failed = str(error)
            metrics.put("contracts_refused", 1)
            log.error("contracts not taken over, the old ones stay in force: %s", error)  # noqa: TRY400 - the user's mistake, not a defect
            return
        if self._current is None or found.digest != self._current.digest:
            message = Message(self._topic, 0, found.digest.encode(), found.encode())
            await self._sender.send([message])
            log.info("policy set %s: %d contracts", found.digest, len(found.contracts))
            if not found.contracts:
                log.warning("there is no contract: every label will be unassessed, no_contract")
        elif self._failed is not None:
            log.info("policy set %s: the files hold it again", found.digest)
        self._current, self._seen, self._failed = found, seen, None
        metrics.put("contracts_refused", 0)
        metrics.tell(policy_set=found.digest)

    async def follow(self) -> None:
        """Refreshes until cancelled. A change is looked at once it has stood for two looks: whoever
        writes a file may be half way, and half a contract may be a valid one that asks for less.
        """
        before = self._seen
        while True:
            await asyncio.sleep(_EVERY)
            now = await asyncio.to_thread(_signature, self._settings.contracts)
            if now == before:
                await self.refresh()
            before = now


def _signature(directory: Path | None) -> Signature:
    """What changes when a file of the directory does, followed through symbolic links. What cannot
    be looked at counts too: a directory that is gone is not an empty one."""
    if directory is None:
        return ()
    try:
        entries = sorted(directory.iterdir())
    except OSError as error:
        return (("", error.errno or 0, 0, 0, 0),)
    found = []
    for path in entries:
        try:
            stat = path.stat()
        except OSError as error:
            found.append((path.name, error.errno or 0, 0, 0, 0))
            continue
        found.append((path.name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))
    return tuple(found)


class PolicySetLog:
    """`monitor.ports.PolicySets`: follows the contracts topic.

    Use as `async with PolicySetLog(…) as sets`.
    """

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._consumer = AIOKafkaConsumer(
            **settings.kafka_args(),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=500,
        )
        self._sets: dict[str, PolicySet] = {}
        self._latest: str | None = None
        self._more = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await patiently("Kafka", self._consumer.start, FAILURES)
        self._consumer.assign([TopicPartition(self._topic, 0)])
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._consumer.stop()

    async def get(self, digest: str) -> PolicySet:
        """The set; waits for one that is not known yet, for as long as it takes."""
        if (found := self._sets.get(digest)) is not None:
            return found
        await self._wait(f"policy set {digest}", lambda: digest in self._sets)
        return self._sets[digest]

    async def latest(self) -> str:
        """Digest of the set that was written last: the stamp of records that start no trajectory.
        Waits while there is none.
        """
        if self._latest is None:
            await self._wait("a policy set", lambda: self._latest is not None)
        assert self._latest is not None
        return self._latest

    async def _wait(self, what: str, there: Callable[[], bool]) -> None:
        began = time.monotonic()
        while not there():
            if self._reader is not None and self._reader.done():
                self._reader.result()  # it never ends but by an error
            late = time.monotonic() - began > _SOON
            if late:
                log.warning("%s is not in %s yet; waiting", what, self._topic)
            async with self._more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TELL if late else _SOON):
                        await self._more.wait_for(there)

    async def _read(self) -> None:
        async def fetch() -> Any:
            return await self._consumer.getmany(timeout_ms=1000)

        while True:
            for records in (await patiently("Kafka: contracts", fetch, FAILURES)).values():
                for record in records:
                    self._take(record)
            async with self._more:
                self._more.notify_all()

    def _take(self, record: Any) -> None:
        try:
            found = PolicySet.decode(record.value or b"")
        except ValueError as error:
            log.error("%s:%d: %s", self._topic, record.offset, words(error))  # noqa: TRY400 - foreign data
            return
        self._sets[found.digest] = found
        self._latest = found.digest
        metrics.tell(policy_set=found.digest)
