"""Faust wiring of a role: its app, the batches in hand, and how it ends. The roles: `streams.roles`.

What each Faust setting below is for was found by killing workers under load:

- batches that nobody else acknowledges (`streams.take`) with `CrashingSupervisor`: a batch is
  acknowledged only after its effects are durable, and an exception ends the process instead of being
  logged and committed over. Whoever supervises the process starts it again; it goes on where the
  commit left it.
- `concurrency=1`, and commits of our own counting: Faust's may lie ahead of what is handled (see
  `streams.positions`).
- `stream_wait_empty=False`: waiting for unacknowledged messages at a rebalance hangs the group.
- small buffers, sized so that everything held at once, fetched, waiting and in hand, stays below
  AGENTTRUST_IN_FLIGHT: a record may be 256 KB and a span message 1 MB.
- raw bytes: Faust's deserialisers may kill an agent quietly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from functools import partial
from typing import Any, Final, Literal

import faust
from mode.supervisors import CrashingSupervisor

from streams import metrics, telemetry, topics
from streams.health import Health
from streams.parse import TAKE as PARSE_TAKE
from streams.positions import Positions
from streams.security import credentials
from streams.settings import Settings
from streams.take import Lane, hand_over, one_lane
from streams.topic_log import Raw, TopicLog
from streams.watchdog import Watchdog

log = logging.getLogger(__name__)

Role = Literal["ingest", "evaluate", "parse"]
Handler = Callable[[list[Raw]], Awaitable[frozenset[int] | None]]
"""Takes a batch; gives the partitions whose records may be acknowledged, None for all."""

TAKE: Final = 64
"""Records that are taken together at most;"""
_BATCH: Final = 1024**2
"""bytes of a batch, above which it is cut: a batch must take a fraction of a second."""
_COPIES: Final = 4
"""Batches of the largest size that are held at once, at most: two in hand or filling, two waiting."""
WITHIN: Final = 0.005
"""Seconds that a batch waits for more after its first record."""
_METADATA: Final = 15_000
"""Milliseconds within which a consumer learns that a topic has come back: while it is being made anew
the group is given none of its partitions."""
_AGAIN: Final = 1.0
"""Seconds after which what was cancelled and goes on is cancelled again."""
GRACE: Final = 20.0
"""Seconds for the last batch and commit after a signal."""


def app_id(settings: Settings, role: Role) -> str:
    """Name of a role's Faust app, which is its consumer group."""
    return f"{settings.topic_prefix}-{role}"


def take(settings: Settings, role: Role, largest: int) -> int:
    """Records of a batch, when one has at most `largest` bytes."""
    most = PARSE_TAKE if role == "parse" else TAKE
    return max(1, min(most, settings.in_flight // (_COPIES * largest)))


class _App(faust.App):
    """Without folders: they are for tables, and a worker that is killed would leave them behind."""

    def _create_directories(self) -> None:
        """Makes none."""


def build(settings: Settings, role: Role, largest: int) -> faust.App:
    """The Faust app of a role, without an agent yet. `largest` is the size of the topic's largest
    message."""
    session = settings.session_timeout
    most = take(settings, role, largest)
    return _App(
        app_id(settings, role),
        broker=[f"kafka://{server}" for server in settings.kafka_bootstrap.split(",")],
        broker_credentials=credentials(settings.kafka_args()),
        store="memory://",
        web_enabled=False,
        topic_disable_leader=True,
        topic_allow_declare=False,
        processing_guarantee="at_least_once",
        agent_supervisor=CrashingSupervisor,
        stream_wait_empty=False,
        stream_buffer_maxsize=2 * most,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=session,
        broker_heartbeat_interval=session / 6,
        broker_rebalance_timeout=2 * session,
        broker_request_timeout=3 * session,
        broker_commit_interval=1.0,
        broker_max_poll_records=2 * most,
        consumer_max_fetch_size=min(largest, 1024**2),
        broker_max_poll_interval=600.0,
        consumer_metadata_max_age_ms=_METADATA,
        producer_metadata_max_age_ms=_METADATA,
        producer_acks=-1,
        producer_request_timeout=30.0,
    )


def join_within(settings: Settings) -> float:
    """Seconds within which the consumer group gives an assignment."""
    return max(60.0, 6 * settings.session_timeout)


def cut(records: Sequence[Raw]) -> Iterator[list[Raw]]:
    """Consecutive records in batches of at most 1 MiB, or of one record."""
    batch: list[Raw] = []
    size = 0
    for raw in records:
        more = len(raw.value or b"")
        if batch and size + more > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(raw)
        size += more
    if batch:
        yield batch


class Worker:
    """One role: its Faust app, the batch in hand, and how it ends."""

    def __init__(
        self,
        settings: Settings,
        role: Role,
        topic: topics.Topic,
        health: Health,
        beside: Sequence[topics.Topic] = (),
    ) -> None:
        """`beside`: topics of the same group and partition count."""
        largest = max(t.max_message_bytes for t in (topic, *beside))
        self.app = build(settings, role, largest)
        self._log = TopicLog(settings, topic.name, app_id(settings, role))
        self._logs = {topic.name: self._log} | {
            t.name: TopicLog(settings, t.name, app_id(settings, role)) for t in beside
        }
        self._positions = Positions(self._logs)
        self._watchdog = Watchdog(
            self._logs,
            join=join_within(settings),
            stall=settings.stall_timeout,
            allowed_lag=settings.allowed_lag,
        )
        self._health = health
        self._role = role
        self._take = take(settings, role, largest)
        self._within = settings.llm_batch_age if role == "parse" else WITHIN
        self._topic = topic.name
        self._beside = [t.name for t in beside]
        self._in_hand: list[int] = []
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._stopping = False

    @property
    def log(self) -> TopicLog:
        """The role's topic, read beside its consumer group. Started by `run`."""
        return self._log

    def consume(self, handle: Handler, lane: Lane = one_lane) -> None:
        """Hands batches of the topic to `handle`, side by side those of several lanes, and
        acknowledges what it says is done. A partition must not have two lanes."""
        channel = self.app.topic(
            self._topic,
            *self._beside,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )

        async def agent(stream: Any) -> None:
            await hand_over(
                *(stream, partial(self._batch, handle)),
                most=self._take,
                within=self._within,
                lane=lane,
            )

        name = f"{self.app.conf.id}-agent"
        self.app.agent(channel, name=name, concurrency=1)(agent)

    async def _batch(self, handle: Handler, batch: Sequence[Any]) -> None:
        async with contextlib.aclosing(self._parts(batch)) as parts:
            async for records in parts:
                if self._stopping:
                    break  # read again by whoever comes next
                with self._hand(records) as size:
                    done = await self._handle(handle, records, size)
                    self._done([r for r in records if done is None or r.partition in done])
        for event in batch:
            event.ack()  # only so that Faust comes to ask what may be committed

    @contextlib.contextmanager
    def _hand(self, records: Sequence[Raw]) -> Iterator[int]:
        """While records are in hand, a worker that is asked to stop waits; gives their bytes."""
        size = sum(len(raw.value or b"") for raw in records)
        self._in_hand.append(size)
        self._at_rest.clear()
        metrics.put("batch_bytes", sum(self._in_hand))
        try:
            with self._watchdog.batch({r.topic for r in records}):
                yield size
        finally:
            self._in_hand.remove(size)
            metrics.put("batch_bytes", sum(self._in_hand))
            if not self._in_hand:
                self._at_rest.set()

    async def _parts(self, batch: Sequence[Any]) -> AsyncGenerator[list[Raw], None]:
        raws = [_raw(event.message) for event in batch]
        async with contextlib.aclosing(self._positions.parts(raws)) as parts:
            async for part in parts:
                for records in cut(part):
                    yield records

    def _done(self, records: list[Raw]) -> None:
        self._positions.done(records)
        self._watchdog.done(records)

    async def _handle(
        self, handle: Handler, records: list[Raw], size: int
    ) -> frozenset[int] | None:
        """Handles a batch of so many bytes, measured."""
        with (
            metrics.timed("batch_seconds"),
            telemetry.span(f"{self._role}: batch", messages=len(records), bytes=size),
        ):
            done = await handle(records)
        now = time.time()
        for raw in records:
            if done is None or raw.partition in done:
                metrics.count("messages_read")
                metrics.count("message_bytes_read", len(raw.value or b""))
                metrics.observe("delay_seconds", max(0.0, now - raw.timestamp / 1000))
        return done

    def assignment(
        self, assign: Callable[[Sequence[int]], None], revoke: Callable[[], None]
    ) -> None:
        """Tells the role which partitions are its own."""

        @self.app.on_partitions_revoked.connect(weak=False)
        async def revoked(*_: Any, **__: Any) -> None:
            self._watchdog.assign(None)
            revoke()

        @self.app.on_partitions_assigned.connect(weak=False)
        async def assigned(_: Any, assigned: Any, **__: Any) -> None:
            places = sorted((tp.topic, tp.partition) for tp in assigned if tp.topic in self._logs)
            mine = [partition for topic, partition in places if topic == self._topic]
            log.info("partitions of %s: %s", self._topic, mine)
            self._positions.forget()
            self._watchdog.assign(places)
            assign(mine)

    async def run(self, stop: asyncio.Event, background: Coroutine[Any, Any, None]) -> None:
        """Runs until `stop` is set; finishes the batch in hand and commits. Raises what crashed."""
        async with contextlib.AsyncExitStack() as stack:
            for one in self._logs.values():
                await stack.enter_async_context(one)
            self._health.watch(self._watchdog.problems)
            self._positions.install(self.app.consumer)
            start = asyncio.ensure_future(self.app.start())
            tasks: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(self._crash(start)),
                asyncio.ensure_future(background),
                asyncio.ensure_future(self._watchdog.follow()),
                asyncio.ensure_future(stop.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    self._stopping = True
                    await self._at_rest.wait()
                    log.info("stopping: the last batch is done")
            finally:
                ended = await end(tasks)
                await self._leave(start)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    async def _crash(self, start: asyncio.Future[None]) -> None:
        """Ends when Faust does; raises what made it end."""
        await start
        await self.app.wait_until_stopped()
        if isinstance(self.app.crash_reason, Exception):
            raise self.app.crash_reason

    async def _leave(self, start: asyncio.Future[None]) -> None:
        """Commits and leaves the group, so that the others need not wait for the session's end."""
        with contextlib.suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(GRACE):
                if start.done():
                    await self.app.stop()
                else:
                    start.cancel()
                    await start


async def end(tasks: Sequence[asyncio.Future[Any]]) -> list[Any]:
    """Cancels tasks until they end, since a library may swallow a cancellation; their results and
    errors."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN)
    return await asyncio.gather(*tasks, return_exceptions=True)


def _raw(message: Any) -> Raw:
    timestamp = 0 if message.timestamp is None else round(message.timestamp * 1000)
    return Raw(message.partition, message.offset, timestamp, message.value, message.topic)
