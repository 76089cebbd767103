"""Everything that the topics hold about one trajectory, brought together for people.

Its arrivals are folded one by one, so that for every event it is known which of them caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing
from itertools import groupby
from typing import Any, Final

import msgspec
from aiokafka import TopicPartition

from monitor.label import Event, Label, Violation
from monitor.memory import MemoryStore
from monitor.model import Arrival, Observed, Record, Span, Step
from monitor.story import steps
from streams import topics
from streams.errors import UserError
from streams.events import NotAnEventError, read
from streams.journal import is_trajectory, partition_of
from streams.refold import Extent, KnownSets, Refold, decoded, extents, journal_records, messages
from streams.settings import Settings
from streams.topic_log import Raw, TopicLog

SHORTEST: Final = 8
"""Hex digits by which a trajectory may be called, as tables show it."""
_TOLD: Final = 5
_HOUR: Final = 3_600_000


class Moment(msgspec.Struct):
    """An arrival that made a difference, and its events. What is on the topics only has no
    arrival: the journal does not tell its cause, or no longer."""

    time: int
    offset: int | None
    arrival: Arrival | None
    events: list[Event]
    """In the order in which they were published."""


class History(msgspec.Struct):
    """One trajectory. `unpublished` holds ids of events that are not on the topics."""

    trajectory: str
    partition: int
    arrivals: int
    spans: dict[str, Span]
    steps: list[Step]
    moments: list[Moment]
    unpublished: set[str]

    @property
    def events(self) -> list[Event]:
        return [event for moment in self.moments for event in moment.events]

    @property
    def labels(self) -> list[Label]:
        """The newest label of each contract; one without a contract only when there is no other."""
        found: dict[str, Label] = {}
        for event in self.events:
            if isinstance(event.body, Label):
                contract = event.body.contract
                found["" if contract is None else contract.digest] = event.body
        if len(found) > 1:
            found.pop("", None)
        return list(found.values())

    @property
    def violations(self) -> list[Violation]:
        """Those that stand."""
        found: dict[str, Violation] = {}
        for event in self.events:
            if isinstance(event.body, Violation):
                found[event.body.id] = event.body
        return [violation for violation in found.values() if violation.state == "raised"]


async def find(settings: Settings, text: str) -> str:
    """The trajectory whose id begins so. Raises UserError when there is none, or several.

    Labels and violations are asked first; what emits nothing is looked for in the journal.
    """
    start = text.lower()
    if not SHORTEST <= len(start) <= 32 or not is_trajectory(start.ljust(32, "0")):
        raise UserError(
            f"{text[:40]!r} is not the beginning of a trace id: {SHORTEST} to 32 hex digits"
        )
    if len(start) == 32:
        return start
    numbers: Iterable[int] = range(settings.partitions)
    if len(start) >= 16:
        numbers = [partition_of(start, settings.partitions)]
    plan = topics.plan(settings)
    journal = [TopicPartition(plan.journal.name, number) for number in numbers]
    events = [
        TopicPartition(topic.name, number)
        for topic in (plan.labels, plan.violations)
        for number in numbers
    ]
    held = await extents(settings, [*events, *journal])
    found: set[str] = set()
    async for batch in messages(settings, {place: held[place] for place in events}):
        keys = {message.key.decode("utf-8", "replace") for message in batch if message.key}
        found |= {key for key in keys if key.startswith(start) and is_trajectory(key)}
    if not found:
        async for batch in messages(settings, {place: held[place] for place in journal}):
            for message in batch:
                if start.encode() in (message.value or b""):
                    found |= _named(message, settings.partitions, start)
    if not found:
        raise UserError(f"no trajectory is known whose id begins with {start}")
    if len(found) > 1:
        told = ", ".join(sorted(found)[:_TOLD]) + (", …" if len(found) > _TOLD else "")
        raise UserError(f"{len(found)} trajectories begin with {start}: {told}")
    return found.pop()


def _named(message: Any, partitions: int, start: str) -> set[str]:
    raw = Raw(message.partition, message.offset, message.timestamp, message.value)
    [record] = decoded([raw], partitions)
    return {a.trajectory for a in record.arrivals if a.trajectory.startswith(start)}


async def history(settings: Settings, trajectory: str, tell: Callable[[str], None]) -> History:
    """Raises UserError for a trajectory that nothing is known of."""
    partition = partition_of(trajectory, settings.partitions)
    published = await _published(settings, partition, trajectory)
    sets = KnownSets(settings)
    await sets.read()
    store = MemoryStore()
    refold = Refold(settings, partition, sets, store, tell)
    told = History(trajectory, partition, 0, {}, [], [], set())
    journal = TopicPartition(topics.plan(settings).journal.name, partition)
    async with TopicLog(settings, journal.topic, "") as log:
        held = (await extents(settings, [journal]))[journal]
        first = await _first(log, held, partition, published, sets.state_ttl)
        reading = journal_records(log, partition, first, held.end)
        async with aclosing(reading) as batches:
            async for raws in batches:
                await _fold(told, refold, decoded(raws, settings.partitions, trajectory))
    if not told.arrivals and not published:
        raise UserError(f"no trajectory {trajectory} is known")
    if told.arrivals:
        told.steps = steps(await refold.engine.prefix(partition, trajectory))
    _compare(told, published)
    return told


async def _first(
    log: TopicLog, held: Extent, partition: int, published: list[Event], state_ttl: int
) -> int:
    """Where reading begins: a state's life before its first event."""
    if not published or held.start == held.end:
        return held.start
    oldest = min(event.time for event in published)
    near = await log.since(partition, oldest - state_ttl - _HOUR)
    return held.start if near is None else max(near, held.start)


async def _published(settings: Settings, partition: int, trajectory: str) -> list[Event]:
    """Each event once, as it was published first."""
    plan = topics.plan(settings)
    places = [TopicPartition(topic.name, partition) for topic in (plan.labels, plan.violations)]
    found: dict[str, Event] = {}
    async for batch in messages(settings, await extents(settings, places)):
        for message in batch:
            if message.key == trajectory.encode():
                try:
                    event = read(message.headers, message.value)
                except NotAnEventError:
                    continue
                found.setdefault(event.id, event)
    return sorted(found.values(), key=lambda event: (event.time, isinstance(event.body, Label)))


async def _fold(told: History, refold: Refold, records: list[Record]) -> None:
    """Folds records arrival by arrival: given the same record with one more of them, the engine
    goes on where it was."""
    for empty, group in groupby(records, lambda record: not record.arrivals):
        if empty:
            await refold.fold(list(group))
            continue
        for record in group:
            for count, arrival in enumerate(record.arrivals, 1):
                part = Record(
                    record.offset, record.timestamp, record.policy_set, record.arrivals[:count]
                )
                events = await refold.fold([part])
                told.arrivals += 1
                if isinstance(arrival, Observed):
                    told.spans[arrival.span.span_id] = arrival.span
                if events:
                    told.moments.append(Moment(record.timestamp, record.offset, arrival, events))


def _compare(told: History, published: list[Event]) -> None:
    """Brings in what only the topics tell. When the journal no longer holds the beginning, they
    alone tell the truth."""
    known = {event.id for event in published}
    began = min((moment.time for moment in told.moments), default=0)
    if published and published[0].time < began:
        told.moments = []
    derived = {event.id for event in told.events}
    told.unpublished = derived - known
    for event in published:
        if event.id not in derived:
            last = told.moments[-1] if told.moments else None
            if last is not None and last.arrival is None and last.time == event.time:
                last.events.append(event)
            else:
                told.moments.append(Moment(event.time, None, None, [event]))
    told.moments.sort(key=lambda moment: moment.time)
