"""Ingest: spans topic -> decode, normalise -> journal. Keeps no state.

A message is acknowledged once everything that it held is in the journal or, when it could not be
read, in the dead letters. After a crash it is read again, and its arrivals come twice: the fold
knows duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from monitor.model import Lost, Observed
from monitor.semconv import RawSpan, normalise
from streams import metrics, otlp
from streams.dead_letters import DeadLetters
from streams.events import Message
from streams.journal import Packer
from streams.policy_sets import PolicySource
from streams.sender import Sender
from streams.topic_log import Raw


class Ingest:
    """Handles batches of messages of the spans topic. `services` empty: all are monitored."""

    def __init__(
        self,
        *,
        spans: str,
        journal: str,
        partitions: int,
        services: Sequence[str],
        policy: PolicySource,
        sender: Sender,
        dead_letters: DeadLetters,
    ) -> None:
        self._spans = spans
        self._journal = journal
        self._partitions = partitions
        self._services = frozenset(services)
        self._policy = policy
        self._sender = sender
        self._dead = dead_letters

    async def handle(self, batch: Sequence[Raw]) -> None:
        """Returns when the batch may be acknowledged."""
        packer = Packer(self._policy.digest, self._partitions)
        letters: list[Message] = []
        for message in batch:
            letters += self._read(message, packer)
            await asyncio.sleep(0)  # a large message takes a while: let heartbeats and timers run
        records = [
            Message(self._journal, partition, None, value) for partition, value in packer.records()
        ]
        await self._sender.send([*letters, *records])

    def _read(self, message: Raw, packer: Packer) -> list[Message]:
        """Puts a message's arrivals into the packer; gives its dead letters."""
        letters = []
        spans = 0
        origin = f"{self._spans}:{message.partition}:{message.offset}"
        for place, found in enumerate(otlp.decode(message.value or b"")):
            source = f"{origin}:{place}"
            if isinstance(found, RawSpan):
                if self._services and found.resource.service not in self._services:
                    metrics.count("spans_of_other_services")
                    continue
                bad = packer.add(Observed(normalise(found)), place, source)
                if bad is None:
                    self._dead.good()
                    spans += 1
                else:
                    metrics.count("lost_arrivals", reason="arrival_too_large")
                    letters.append(self._dead.letter(bad.reason, source, bad.raw, bad.trajectory))
                continue
            reason = f"{found.reason}: {found.detail} {found.place}".rstrip()
            letters.append(self._dead.letter(reason, source, found.data, found.trace_id))
            if found.trace_id is not None:
                metrics.count("lost_arrivals", reason=found.reason)
                packer.add(Lost(found.trace_id, found.reason, source))
        metrics.count("spans_read", spans)
        return letters
