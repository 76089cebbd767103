"""Faust wiring of the worker. Read this first.

    role      consumer group      reads       writes                         keeps
    ingest    <prefix>-ingest     spans, logs journal, contracts, dead letters   nothing
    evaluate  <prefix>-evaluate   journal     labels, violations, parse requests,    state in Redis
                                              journal (closes)
    parse     <prefix>-parse      requests    journal (readings)                     nothing

A role is one Faust app, because an app is one consumer group. A worker of several roles is one
child process a role: two apps in one process would share one core and one fate.

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
import os
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from functools import partial
from importlib.metadata import version
from typing import Any, Final, Literal, get_args

import faust
from mode.supervisors import CrashingSupervisor

from monitor.engine import Engine, Fenced, StoreBehind
from monitor.model import FOLD_VERSION
from streams import logs, metrics, telemetry, topics
from streams.batches import Batches
from streams.dead_letters import DeadLetters, NothingReadableError
from streams.errors import UserError
from streams.evaluate import Evaluate
from streams.events import EventWriter
from streams.health import Health, offset, serving
from streams.ingest import Ingest
from streams.llm import Llm
from streams.parse import TAKE as PARSE_TAKE
from streams.parse import Parse
from streams.patience import PATIENCE, words
from streams.policy_sets import PolicySetLog, PolicySource
from streams.positions import Positions
from streams.processes import until_stopped
from streams.reading_cache import ReadingCache
from streams.requests import RequestWriter
from streams.security import credentials
from streams.sender import KafkaPublisher, Sender
from streams.settings import Settings, variable
from streams.spending import Budget
from streams.store import FAILURES as STORE_FAILURES
from streams.store import RedisStore, StoreCorrupt, StoreUnsafe
from streams.take import Lane, hand_over, one_lane
from streams.topic_log import Raw, TopicLog
from streams.watchdog import StalledError, Watchdog

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
_GRACE: Final = 20.0
"""Seconds for the last batch and commit after a signal."""
_FAILED: Final = 1


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
                with self._hand(records):
                    done = await self._handle(handle, records)
                    self._done([r for r in records if done is None or r.partition in done])
        for event in batch:
            event.ack()  # only so that Faust comes to ask what may be committed

    @contextlib.contextmanager
    def _hand(self, records: Sequence[Raw]) -> Iterator[None]:
        """While records are in hand, a worker that is asked to stop waits."""
        size = sum(len(raw.value or b"") for raw in records)
        self._in_hand.append(size)
        self._at_rest.clear()
        metrics.put("batch_bytes", sum(self._in_hand))
        try:
            with self._watchdog.batch({r.topic for r in records}):
                yield
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

    async def _handle(self, handle: Handler, records: list[Raw]) -> frozenset[int] | None:
        """Handles a batch, measured."""
        size = sum(len(raw.value or b"") for raw in records)
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
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
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
            async with asyncio.timeout(_GRACE):
                if start.done():
                    await self.app.stop()
                else:
                    start.cancel()
                    await start


# -- the roles -------------------------------------------------------------------------------


def join_within(settings: Settings) -> float:
    """Seconds within which the consumer group gives an assignment."""
    return max(60.0, 6 * settings.session_timeout)


async def ingest(settings: Settings, stop: asyncio.Event, health: Health) -> None:
    plan = topics.plan(settings)
    async with Sender(settings) as sender:
        policy = PolicySource(settings, plan.contracts.name, sender)
        await policy.refresh()
        role = Ingest(
            spans=plan.spans.name,
            logs=plan.logs.name,
            journal=plan.journal.name,
            partitions=settings.partitions,
            services=settings.services,
            policy=policy,
            sender=sender,
            dead_letters=_dead_letters(settings),
        )
        worker = Worker(settings, "ingest", plan.spans, health, [plan.logs])
        worker.assignment(lambda _: None, lambda: None)
        worker.consume(role.handle)
        await worker.run(stop, policy.follow())


async def evaluate(settings: Settings, stop: asyncio.Event, health: Health) -> None:
    plan = topics.plan(settings)
    async with (
        _store(settings) as store,
        Sender(settings) as sender,
        PolicySetLog(settings, plan.contracts.name) as sets,
    ):
        writer = EventWriter(
            labels=plan.labels.name,
            violations=plan.violations.name,
            partitions=settings.partitions,
        )
        engine = Engine(
            store,
            KafkaPublisher(sender, writer, RequestWriter(plan.parse.name, settings.partitions)),
            sets,
            settle_delay=round(settings.settle_delay * 1000),
            idle_timeout=round(settings.idle_timeout * 1000),
            reading_deadline=round(settings.reading_deadline * 1000),
            pause=partial(asyncio.sleep, 0),
            on_fold_error=_broken,
        )
        worker = Worker(settings, "evaluate", plan.journal, health)
        role = Evaluate(
            journal=plan.journal.name,
            partitions=settings.partitions,
            state_ttl=settings.state_ttl,
            engine=engine,
            store=store,
            journal_log=worker.log,
            policy_sets=sets,
            sender=sender,
            dead_letters=_dead_letters(settings),
        )
        worker.assignment(role.assign, role.revoke)
        worker.consume(role.handle, lane=lambda event: event.message.partition)
        await worker.run(stop, role.follow())


async def parse(settings: Settings, stop: asyncio.Event, health: Health) -> None:
    plan = topics.plan(settings)
    everyone, each, prices = settings.llm_budgets()
    async with (
        Llm(settings.llm_config()) as llm,
        _store(settings) as store,
        Sender(settings) as sender,
        PolicySetLog(settings, plan.contracts.name) as sets,
    ):
        shared: Any = {"prefix": settings.topic_prefix, "failures": STORE_FAILURES}
        role = Parse(
            topic=plan.parse.name,
            journal=plan.journal.name,
            partitions=settings.partitions,
            llm=llm,
            cache=ReadingCache(store.client, ttl=settings.llm_cache_ttl, **shared),
            budget=Budget(store.client, everyone=everyone, service=each, **shared),
            batches=Batches(llm, prices, settings.llm_cut()),
            expired=settings.reading_deadline,
            policy_sets=sets,
            sender=sender,
            dead_letters=_dead_letters(settings),
        )
        worker = Worker(settings, "parse", plan.parse, health)
        worker.assignment(lambda _: None, lambda: None)
        worker.consume(role.handle)
        await worker.run(stop, role.follow())


_ROLES: Final[dict[Role, Callable[[Settings, asyncio.Event, Health], Awaitable[None]]]] = {
    "ingest": ingest,
    "evaluate": evaluate,
    "parse": parse,
}


def _raw(message: Any) -> Raw:
    timestamp = 0 if message.timestamp is None else round(message.timestamp * 1000)
    return Raw(message.partition, message.offset, timestamp, message.value, message.topic)


def _dead_letters(settings: Settings) -> DeadLetters:
    topic = topics.plan(settings).dead_letters
    return DeadLetters(
        topic.name,
        partitions=topic.partitions,
        max_bytes=min(topic.max_message_bytes, settings.max_message_bytes),
        halt=settings.dead_letter_halt,
    )


def _broken(trajectory: str, error: Exception) -> None:
    """The fold broke on an arrival: its trajectory is closed, unassessed, and the others go on."""
    log.error("trajectory %s ends as fold_error: %r", trajectory, error, exc_info=error)


@contextlib.asynccontextmanager
async def _store(settings: Settings) -> AsyncIterator[RedisStore]:
    """The store, checked: nothing may evict, and the partition counts agree."""
    store = await RedisStore.connect(
        settings.redis_url,
        access=settings.redis_args(),
        prefix=settings.topic_prefix,
        partitions=settings.partitions,
        ttl=2 * settings.state_ttl + settings.allowed_lag,
    )
    try:
        for warning in await store.check():
            log.warning("state store: %s", warning)
        topic = await topics.journal_partitions(settings)
        topics.check_partitions(settings.partitions, topic, await store.partitions())
        yield store
    finally:
        await store.close()


# -- the process -----------------------------------------------------------------------------


def run_worker(settings: Settings, roles: Sequence[str]) -> None:
    """Runs roles until SIGTERM or SIGINT. Ends the process with status 1 when one fails."""
    known = [role for role in get_args(Role) if role in roles]
    logs.to_stderr(settings, known[0] if len(known) == 1 else "")
    if len(known) == 1:
        _run(settings, known[0])
    else:
        sys.exit(until_stopped(lambda stop: _children(settings, known, stop)))


def _run(settings: Settings, role: Role) -> None:
    try:
        until_stopped(lambda stop: _checked(settings, role, stop))
    except UserError:
        raise
    except Exception as error:
        log.critical("%s ends: %s: %s", role, type(error).__name__, words(error), exc_info=error)
        # Faust's consumer thread may still wait for a broker that is gone: do not wait for it.
        logging.shutdown()
        os._exit(_FAILED)


async def _checked(settings: Settings, role: Role, stop: asyncio.Event) -> None:
    topic = await topics.journal_partitions(settings)
    topics.check_partitions(settings.partitions, topic, None)
    await topics.check_session(settings)
    began = time.monotonic()
    health = Health(role, start=join_within(settings) + PATIENCE)
    metrics.tell(role=role, version=version("agenttrust-monitor"), fold_version=str(FOLD_VERSION))
    async with serving(settings.http_listen, health), telemetry.sending(settings, role):
        try:
            await _ROLES[role](settings, stop, health)
        except Exception as error:
            metrics.count("halts", reason=_halt(error))
            raise
    log.info("%s stopped after %.0f s", role, time.monotonic() - began)


def _halt(error: Exception) -> str:
    """Why a worker ends itself, in the words of the metric."""
    kinds: tuple[tuple[type[Exception], str], ...] = (
        (StalledError, "stalled"),
        (NothingReadableError, "dead_letters"),
        (StoreBehind, "store"),
        (StoreCorrupt, "store"),
        (StoreUnsafe, "store"),
        (Fenced, "fenced"),
    )
    return next((name for kind, name in kinds if isinstance(error, kind)), "error")


async def _children(settings: Settings, roles: Sequence[Role], stop: asyncio.Event) -> int:
    """One process a role, each ending with this one; when one ends, so do the others."""
    given = {}
    if settings.contracts is not None:
        given[variable("contracts")] = str(settings.contracts.resolve())
    children = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streams.child", str(os.getpid())),
            *(sys.executable, "-m", "streams", "worker", "--roles", role),
            env=os.environ
            | given
            | {variable("http_listen"): offset(settings.http_listen, number)},
        )
        for number, role in enumerate(roles)
    ]
    waits = {asyncio.ensure_future(child.wait()): child for child in children}
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([*waits, stopping], return_when=asyncio.FIRST_COMPLETED)
    asked = stop.is_set()
    stopping.cancel()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
    _, late = await asyncio.wait(waits, timeout=2 * _GRACE)
    for wait in late:
        waits[wait].kill()
    await asyncio.gather(*waits)
    return 0 if asked and not late else _FAILED
