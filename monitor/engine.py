"""The only orchestrator: load, fold arrival by arrival, publish, save.

The order of effects is the promise: events are durable before the state that has seen their cause
is, so a crash anywhere repeats events and never loses one; and because an event's id and bytes
depend on the arrivals alone, a repeat is the same event.

One instance serves one process; the worker, `inspect`, golden cases and replay differ only in the
ports that they give it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise

import msgspec

from monitor.bench import Bench
from monitor.counters import Counters
from monitor.fold import fail, fold
from monitor.head import Head, decode_head
from monitor.index import names
from monitor.label import Event, Label
from monitor.model import Arrival, Close, CloseReason, Observed, Pin, Reading, Record
from monitor.ports import Loaded, PolicySets, Publisher, Saving, Store, Wanted, Watermark
from monitor.prefix import Prefix, derive
from monitor.reading import ParseRequest, Read, reading_id
from monitor.work import NeedContent, Work

PAUSE_EVERY = 16
"""Arrivals between two pauses; each of them may derive a whole prefix anew."""

SAVE_LIMIT = 1_000_000
"""Bytes after which a batch is cut: a save blocks the store for all others."""


HOLD_LIMIT = 32_000_000
"""Bytes of stored spans that a batch holds before it is cut and lets go of them."""


class Fenced(Exception):  # noqa: N818
    """The store is ahead of this owner: the partition belongs to another one."""


class StoreBehind(Exception):  # noqa: N818
    """The store has lost writes that it had acknowledged; the partition must be rebuilt."""


class Gap(Exception):  # noqa: N818
    """A record between the watermark and the first one given is missing."""


class Engine:
    """Folds the records of partitions. Times are milliseconds of journal time."""

    def __init__(
        self,
        store: Store,
        publisher: Publisher,
        policy_sets: PolicySets,
        *,
        settle_delay: int = 5_000,
        idle_timeout: int = 300_000,
        reading_deadline: int = 300_000,
        pause: Callable[[], Awaitable[None]] | None = None,
        on_fold_error: Callable[[str, Exception], None] | None = None,
    ) -> None:
        """`pause` is awaited between arrivals now and then, so that a process which folds a long
        batch still answers its broker. `on_fold_error` is told of a trajectory that the fold broke
        on; it may raise."""
        self.store = store
        self.publisher = publisher
        self._policy_sets = policy_sets
        self._settle_delay = settle_delay
        self._idle_timeout = idle_timeout
        self._reading_deadline = reading_deadline
        self.pause = pause
        self.on_fold_error = on_fold_error or (lambda _trajectory, _error: None)
        self._benches: dict[str, Bench] = {}
        self.counters = Counters()

    async def apply(
        self, partition: int, records: Sequence[Record], *, epoch: int, silent: bool = False
    ) -> None:
        """Folds consecutive records of one partition; what is folded already is skipped.

        `silent` publishes nothing: the events of these records were published before, and only the
        state is to be won back. Raises Fenced, StoreBehind, Gap, and whatever a port raises.
        """
        batch = _Batch(self, partition, epoch, silent=silent)
        await batch.begin(records)
        for record in records:
            await batch.take(record)
        await batch.save()

    async def closes(self, partition: int, now: int, limit: int = 500) -> list[Close | Reading]:
        """What has fallen due, to be written to the journal: closes, and readings that never came,
        as unassessed ones."""
        due = await self.store.due(partition, now, limit)
        if not due:
            return []
        _, loaded = await self.store.load(partition, {name: Wanted() for name in due})
        written: list[Close | Reading] = []
        for name in due:
            data = loaded[name].head
            if data is None:
                continue
            try:
                head = decode_head(data)
            except msgspec.MsgspecError as error:
                await self.store.give_up(partition, f"state of {name}: {error}")
            when, reason = self.due(head)
            if head.closed is None and when <= now:
                written.append(Close(name, reason, head.offset))
            written += (
                missed(head, read)
                for read in head.awaited
                if read.asked + self._reading_deadline <= now
            )
        return written

    async def prefix(self, partition: int, trajectory: str) -> Prefix:
        """The whole prefix of a trajectory as it is stored, for people to read."""
        _, loaded = await self.store.load(partition, {trajectory: Wanted(content=True)})
        return derive(Work(trajectory, loaded[trajectory]).spans)

    def due(self, head: Head) -> tuple[int, CloseReason]:
        """When a trajectory is closed unless something arrives before."""
        if head.quiescent:
            return head.last + self._settle_delay, "root_settled"
        answered = head.answer is not None and head.answer.follows
        if head.roots and not head.missing and answered:  # only results are missing
            return head.last + self._settle_delay, "idle"
        return head.last + self._idle_timeout, "idle"

    def next_due(self, head: Head) -> int | None:
        """When something is to be written about a trajectory; None when nothing is awaited."""
        times = [read.asked + self._reading_deadline for read in head.awaited]
        if head.closed is None:
            times.append(self.due(head)[0])
        return min(times, default=None)

    async def bench(self, digest: str) -> Bench:
        """The compiled policy set. Waits for a set that is not known yet."""
        bench = self._benches.get(digest)
        if bench is None:
            bench = self._benches[digest] = Bench(await self._policy_sets.get(digest))
        return bench


class _Batch:
    """Records between one load and one save; several of each when a save would grow too large."""

    def __init__(self, engine: Engine, partition: int, epoch: int, *, silent: bool) -> None:
        self._engine = engine
        self._store = engine.store
        self._partition = partition
        self._epoch = epoch
        self._silent = silent
        self._expected: Watermark | None = None
        self._watermark: Watermark | None = None
        self._works: dict[str, Work] = {}
        self._events: list[Event] = []
        self._requests: list[ParseRequest] = []
        self._bytes = 0
        self._held = 0

    async def begin(self, records: Sequence[Record]) -> None:
        """One round trip for all that the records name."""
        for one, other in pairwise(records):
            if other.offset != one.offset + 1:
                raise Gap(
                    f"partition {self._partition}: {one.offset} is followed by {other.offset}"
                )
        wanted = wants(arrival for record in records for arrival in record.arrivals)
        self._expected, loaded = await self._store.load(self._partition, wanted)
        self._watermark = self._expected
        counters = self._engine.counters
        for name in wanted:
            try:
                self._works[name] = Work(name, loaded[name], counters)
            except msgspec.MsgspecError as error:
                await self._store.give_up(self._partition, f"state of {name}: {error}")
        self._held = sum(map(_size, loaded.values()))
        mark = self._watermark
        if mark is None or not records:
            return
        if self._epoch < mark.epoch:
            raise Fenced(f"partition {self._partition}: epoch {mark.epoch} has begun")
        if self._epoch == mark.epoch and records[0].offset > mark.offset + 1:
            raise Gap(
                f"partition {self._partition}: folded up to {mark.offset},"
                f" the next record is {records[0].offset}"
            )

    async def take(self, record: Record) -> None:
        """Folds what of a record is not folded yet."""
        start = self._start(record)
        for index in range(start, len(record.arrivals)):
            await self._fold(record.arrivals[index], record)
            if self._engine.pause is not None and index % PAUSE_EVERY == 0:
                await self._engine.pause()
            if self._bytes > SAVE_LIMIT or self._held > HOLD_LIMIT:
                self._mark(record, index + 1)
                await self.save()
                self._let_go()
        if start <= len(record.arrivals) and self._is_new(record):
            self._mark(record, len(record.arrivals))

    def _let_go(self) -> None:
        """Of spans that the store has; they are loaded again when they are needed."""
        if self._held > HOLD_LIMIT:
            self._held = 0
            for work in self._works.values():
                work.let_go()

    def _is_new(self, record: Record) -> bool:
        mark = self._watermark
        if mark is None or mark.epoch != self._epoch:
            return True
        return (record.offset, len(record.arrivals)) > (mark.offset, mark.index)

    def _start(self, record: Record) -> int:
        mark = self._watermark
        if mark is None or mark.epoch != self._epoch or record.offset > mark.offset:
            return 0
        return mark.index if record.offset == mark.offset else len(record.arrivals)

    def _mark(self, record: Record, index: int) -> None:
        self._watermark = Watermark(self._epoch, record.offset, index, record.timestamp)

    async def _fold(self, arrival: Arrival, record: Record) -> None:
        work = self._works[arrival.trajectory]
        policy_set = record.policy_set
        if work.head is not None:
            pinned = await self._engine.bench(work.head.policy_set)
            work.expire(record.timestamp, pinned.limits.state_ttl)
        if work.head is not None:
            policy_set = work.head.policy_set
        elif isinstance(arrival, Pin):
            policy_set = arrival.policy_set
        bench = await self._engine.bench(policy_set)
        before = len(work.new_content)
        closed = None if work.head is None else work.head.closed
        events = await self._attempt(work, arrival, record, bench)
        self._count(arrival, work, closed)
        self._events += events
        self._requests += work.requests
        self._bytes += 500 * len(events) + sum(len(r.text) for r in work.requests)
        work.requests = []
        if isinstance(arrival, Observed) and len(work.new_content) > before:
            self._bytes += len(work.new_content[arrival.span.span_id])

    def _count(self, arrival: Arrival, work: Work, closed: CloseReason | None) -> None:
        counters = self._engine.counters
        if self._silent:
            counters.refolded += 1
            return
        counters.arrivals[str(arrival.__struct_config__.tag)] += 1
        if closed is None and work.head is not None and work.head.closed is not None:
            counters.closed[work.head.closed] += 1

    async def _attempt(
        self, work: Work, arrival: Arrival, record: Record, bench: Bench
    ) -> list[Event]:
        offset, time = record.offset, record.timestamp
        while True:
            try:
                return fold(work, arrival, offset, time, bench)
            except NeedContent:
                pass
            except Exception as error:  # noqa: BLE001 - deterministic: it ends, the others go on
                self._engine.counters.fold_errors += 1
                self._engine.on_fold_error(work.trajectory, error)
                work.requests = []
                return fail(work, offset, time, bench)
            loaded = await self._load_content(work.trajectory)
            try:
                work.add_content(loaded)
            except msgspec.MsgspecError as error:
                why = f"spans of {work.trajectory}: {error}"
                await self._store.give_up(self._partition, why)

    async def _load_content(self, trajectory: str) -> Loaded:
        self._engine.counters.contents += 1
        wanted = {trajectory: Wanted(content=True)}
        loaded = (await self._store.load(self._partition, wanted))[1][trajectory]
        self._held += _size(loaded)
        return loaded

    async def save(self) -> None:
        """Publishes, then saves. Nothing to do: no effect at all."""
        mark = self._watermark
        if mark is None or mark == self._expected:
            return
        if (self._events or self._requests) and not self._silent:
            await self._engine.publisher.publish(self._events, self._requests)
            self._count_events()
            self._engine.counters.requests += len(self._requests)
        self._events, self._requests = [], []
        changes = {name: self._saving(work) for name, work in self._works.items() if work.changed}
        outcome = await self._store.save(self._partition, self._expected, mark, changes)
        if outcome == "newer":
            raise Fenced(f"partition {self._partition}: the store is ahead of {mark}")
        if outcome == "older":
            raise StoreBehind(f"partition {self._partition}: the store is behind {self._expected}")
        self._expected = mark
        self._bytes = 0
        for work in self._works.values():
            work.saved()

    def _count_events(self) -> None:
        counters = self._engine.counters
        for event in self._events:
            if isinstance(event.body, Label):
                counters.labels[event.body.verdict] += 1
            else:
                counters.violations[event.body.code, event.body.state] += 1

    def _saving(self, work: Work) -> Saving:
        return work.saving(None if work.head is None else self._engine.next_due(work.head))


def missed(head: Head, read: Read) -> Reading:
    """Takes the place of a reading that has not come in time."""
    return Reading(
        trajectory=head.trajectory,
        id=reading_id(head.trajectory, read.step, read.content, read.parser, 1),
        step=read.step,
        content=read.content,
        status="unassessed",
        reason="timeout",
        parser=read.parser,
    )


def _size(loaded: Loaded) -> int:
    return sum(map(len, (loaded.content or {}).values()))


def wants(arrivals: Iterable[Arrival]) -> dict[str, Wanted]:
    """What a batch needs of each trajectory: the index fields of the ids that it names, and its
    spans where it is likely to look back."""
    fields: dict[str, set[str]] = {}
    content: set[str] = set()
    for arrival in arrivals:
        named = fields.setdefault(arrival.trajectory, set())
        if isinstance(arrival, Reading) and arrival.status == "assessed":
            content.add(arrival.trajectory)
        if isinstance(arrival, Observed):
            named.update(names(arrival.span))
            if arrival.span.kind == "agent":
                content.add(arrival.trajectory)
    return {name: Wanted(tuple(named), name in content) for name, named in fields.items()}
