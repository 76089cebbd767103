"""The roles of a worker, each put together from its parts. Read this first.

    role      consumer group      reads       writes                         keeps
    ingest    <prefix>-ingest     spans, logs journal, contracts, dead letters   nothing
    evaluate  <prefix>-evaluate   journal     labels, violations, parse requests,    state in Redis
                                              journal (closes)
    parse     <prefix>-parse      requests    journal (readings)                     nothing

A role is one Faust app (`streams.app`), because an app is one consumer group. A worker of several
roles is one child process a role: two apps in one process would share one core and one fate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, Final, get_args

from monitor.engine import Engine, Fenced, StoreBehind
from monitor.model import FOLD_VERSION
from monitor.ports import StoreCorrupt
from streams import logs, metrics, preflight, telemetry, topics
from streams.app import GRACE, Role, Worker, join_within
from streams.batches import Batches
from streams.dead_letters import DeadLetters, NothingReadableError
from streams.errors import UserError
from streams.evaluate import Evaluate
from streams.events import EventWriter
from streams.health import Health, offset, serving
from streams.ingest import Ingest
from streams.journal_clock import JournalClock
from streams.llm import Llm
from streams.parse import Parse
from streams.patience import PATIENCE, words
from streams.policy_sets import PolicySetLog, PolicySource
from streams.processes import until_stopped
from streams.reading_cache import ReadingCache
from streams.requests import RequestWriter
from streams.sender import KafkaPublisher, Sender
from streams.settings import Settings, variable
from streams.spending import Budget
from streams.store import FAILURES as STORE_FAILURES
from streams.store import RedisStore, StoreUnsafe
from streams.watchdog import StalledError

log = logging.getLogger(__name__)

_FAILED: Final = 1


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
        clock = JournalClock()
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
            clock=clock,
        )

        async def follow() -> None:
            await clock.set_by(worker.log, range(settings.partitions))
            await role.follow()

        worker.assignment(role.assign, role.revoke)
        handle = clock.reading(role.handle)
        worker.consume(handle, lane=lambda event: event.message.partition)
        await worker.run(stop, follow())


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
    await preflight.check(settings, role)
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
    _, late = await asyncio.wait(waits, timeout=2 * GRACE)
    for wait in late:
        waits[wait].kill()
    await asyncio.gather(*waits)
    return 0 if asked and not late else _FAILED
