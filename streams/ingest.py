"""Ingest: topics of spans and logs -> decode, normalise -> journal. Keeps no state.

A message is acknowledged once everything that it held is in the journal or, when it could not be
read, in the dead letters. After a crash it is read again, and its arrivals come twice: the fold
knows duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from monitor.model import Lost, Observed, Span
from monitor.semconv import RawLog, normalise
from monitor.semconv.logs import normalise_logs
from streams import metrics, otlp
from streams.dead_letters import DeadLetters
from streams.events import Message
from streams.journal import Packer
from streams.otlp_span import BadSpan
from streams.policy_sets import PolicySource
from streams.sender import Sender
from streams.topic_log import Raw


class Ingest:
    """Handles batches of messages of the topics of spans and logs; one that does not say which is of
    spans. `services` empty: all are monitored."""

    def __init__(
        self,
        *,
        spans: str,
        logs: str,
        journal: str,
        partitions: int,
        services: Sequence[str],
        policy: PolicySource,
        sender: Sender,
        dead_letters: DeadLetters,
    ) -> None:
        self._spans = spans
        self._logs = logs
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
        records: list[RawLog] = []
        read = 0
        topic = message.topic or self._spans
        origin = f"{topic}:{message.partition}:{message.offset}"
        decode = otlp.decode_logs if topic == self._logs else otlp.decode
        place = -1
        for place, found in enumerate(decode(message.value or b"")):
            source = f"{origin}:{place}"
            if isinstance(found, BadSpan):
                reason = f"{found.reason}: {found.detail} {found.place}".rstrip()
                letters.append(self._dead.letter(reason, source, found.data, found.trace_id))
                if found.trace_id is not None:
                    metrics.count("lost_arrivals", reason=found.reason)
                    packer.add(Lost(found.trace_id, found.reason, source))
            elif self._services and found.resource.service not in self._services:
                metrics.count("spans_of_other_services")
            elif isinstance(found, RawLog):
                records.append(found)
            else:
                refused = self._pack(normalise(found), place, source, packer)
                letters += refused
                read += not refused
        for span in normalise_logs(records):
            place += 1
            refused = self._pack(span, place, f"{origin}:{place}", packer)
            letters += refused
            read += not refused
        if read:
            metrics.count("spans_read", read)
        return letters

    def _pack(self, span: Span, place: int, source: str, packer: Packer) -> list[Message]:
        bad = packer.add(Observed(span), place, source)
        if bad is None:
            self._dead.good()
            return []
        metrics.count("lost_arrivals", reason="arrival_too_large")
        return [self._dead.letter(bad.reason, source, bad.raw, bad.trajectory)]
