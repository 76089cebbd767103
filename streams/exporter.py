"""A span exporter for the OpenTelemetry SDK of agents, which writes to Kafka without a Collector.

    OTEL_TRACES_EXPORTER=agenttrust_kafka AGENTTRUST_KAFKA_BOOTSTRAP=kafka:9092 \\
        opentelemetry-instrument python agent.py

Each message of the spans topic holds one trace's spans of one batch, keyed by trace id, as the
Collector writes them with `partition_traces_by_id`.

The agent comes first. `export` encodes and queues, nothing more; a thread of its own with an event
loop of its own writes. The queue is bounded in spans and bytes: while Kafka is away it fills, then
new spans are dropped, so that what was recorded of a trace stays its beginning. Drops are counted
and logged once a minute at most. Nothing is raised, not even for settings that cannot be used.

After a fork the child begins with an empty queue, and connects once it has something to write.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from opentelemetry import context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, format_trace_id, set_span_in_context

from streams.errors import UserError
from streams.patience import words
from streams.sdk_spans import requests
from streams.security import refusal
from streams.settings import Settings, load
from streams.topics import plan

log = logging.getLogger(__name__)

MAX_SPANS: Final = 20_000
MAX_BYTES: Final = 32 * 1024**2
_DELIVERY: Final = 10.0
"""Seconds within which the brokers acknowledge."""
_AT_ONCE: Final = 100
"""Messages under way at a time."""
_END, _END_FAILING, _STOP = 5.0, 1.0, 0.5
"""Seconds that `shutdown` waits: for the queue, for it while Kafka is away, for the connections."""
_FIRST, _LONGEST = 0.1, 5.0
"""Seconds between two attempts to connect."""
_QUIET: Final = 60.0
"""Seconds between two lines about the same trouble."""
_THREAD: Final = "agenttrust-kafka-exporter"
_OWN: Final = RandomIdGenerator().generate_trace_id()
"""Trace id of whatever an instrumentation of the Kafka client records about the writing itself.
Exporting that would give rise to the next span."""
_CLIENT: Final = ("", ".conn", ".cluster", ".producer.producer", ".producer.sender")
"""Loggers of the Kafka client, below `aiokafka`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    key: bytes
    value: bytes
    spans: int
    number: int


class KafkaSpanExporter(SpanExporter):
    """Writes spans to Kafka; settings come from `AGENTTRUST_*` unless given."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        max_spans: int = MAX_SPANS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._settings = settings or _from_environment()
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._closed = False
        self._renew()
        if hasattr(os, "register_at_fork"):
            renew = weakref.WeakMethod(self._renew)
            os.register_at_fork(after_in_child=lambda: _call(renew()))
        with self._changed:
            self._start()  # now: while the interpreter ends, threads can no longer be started

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Queues the spans. FAILURE when some had to be dropped."""
        traces: dict[int, list[ReadableSpan]] = {}
        for span in spans:
            if span.context is not None and span.context.trace_id != _OWN:
                traces.setdefault(span.context.trace_id, []).append(span)
        if self._settings is None:
            return SpanExportResult.FAILURE if traces else SpanExportResult.SUCCESS
        whole = True
        for trace_id, group in traces.items():
            key = format_trace_id(trace_id).encode()
            for value, count in requests(group, self._settings.max_message_bytes):
                whole = self._put(key, value, count) and whole
        return SpanExportResult.SUCCESS if whole else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Whether everything that was queued before the call has left the queue in time."""
        with self._changed:
            last = self._last
            self._wake()
            return self._changed.wait_for(
                lambda: not self._queue or self._queue[0].number > last,
                max(0.0, timeout_millis / 1000),
            )

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Writes what is queued if that takes no more than 5 seconds, or 1 while Kafka is away."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._wake()
            limit = _END_FAILING if self._failing else _END
            self._changed.wait_for(
                lambda: not self._queue, max(0.0, min(limit, timeout_millis / 1000))
            )
            thread, end = self._thread, self._end
        if thread is not None:
            if end is not None:
                end()
            thread.join(2 * _STOP)
        with self._changed:
            for message in self._queue:
                self._drop("not written before the end", message.spans)
            self._queue.clear()
            self._changed.notify_all()
        self._tell(0.0)

    @property
    def dropped(self) -> int:
        """Spans lost since the start."""
        return self._dropped.total()

    # -- the queue ---------------------------------------------------------------------------

    def _renew(self) -> None:
        """An empty queue and no thread: at the start, and in a child after a fork, which has no
        threads, and whose locks may be held by one that it does not have."""
        self._changed = threading.Condition()
        self._queue: deque[_Message] = deque()
        self._spans = self._bytes = self._last = 0
        self._thread: threading.Thread | None = None
        self._hurry: Callable[[], object] | None = None
        self._end: Callable[[], object] | None = None
        self._failing = False
        self._dropped: Counter[str] = Counter()
        self._told = 0
        self._told_at = self._warned_at = -_QUIET

    def _start(self) -> None:
        """Has the thread started; `_changed` is held."""
        if self._thread is None and not self._closed and self._settings is not None:
            thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or the process may have no more threads
                return
            self._thread = thread

    def _put(self, key: bytes, value: bytes | None, spans: int) -> bool:
        with self._changed:
            if self._closed:
                reason = "exported after the end"
            elif value is None:
                reason = "cannot be written as OTLP"
            elif (
                self._spans + spans > self._max_spans or self._bytes + len(value) > self._max_bytes
            ):
                reason = "the queue is full"
            else:
                self._last += 1
                self._queue.append(_Message(key, value, spans, self._last))
                self._spans += spans
                self._bytes += len(value)
                self._start()
                if not self._failing:  # else it is paced
                    self._wake()
                return True
        self._drop(reason, spans)
        return False

    def _drop(self, reason: str, spans: int) -> None:
        with self._changed:
            self._dropped[reason] += spans

    def _head(self) -> list[_Message]:
        with self._changed:
            return list(islice(self._queue, _AT_ONCE))

    def _wake(self) -> None:
        if self._hurry is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._hurry()

    def _settle(self, batch: Sequence[_Message], again: Sequence[_Message]) -> None:
        """Takes a batch from the queue's head and puts back what is to be written again."""
        with self._changed:
            for message in batch:
                self._queue.popleft()
                self._spans -= message.spans
                self._bytes -= len(message.value)
            for message in reversed(again):
                self._queue.appendleft(message)
                self._spans += message.spans
                self._bytes += len(message.value)
            self._changed.notify_all()

    def _tell(self, quiet: float = _QUIET) -> None:
        """Logs the drops since the last line about them."""
        now = time.monotonic()
        if self.dropped > self._told and now - self._told_at >= quiet:
            with self._changed:
                reasons = ", ".join(f"{count} {reason}" for reason, count in self._dropped.items())
                self._told, self._told_at = self.dropped, now
            log.warning("%d spans dropped since the start: %s", self._told, reasons)

    # -- the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        for name in _CLIENT:  # it tells of each attempt, also at error level
            logging.getLogger(f"aiokafka{name}").addFilter(_of_others)
        own = SpanContext(_OWN, RandomIdGenerator().generate_span_id(), is_remote=False)
        context.attach(set_span_in_context(NonRecordingSpan(own)))
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._write())

    async def _write(self) -> None:
        """Writes what is queued until cancelled."""
        loop, task, woken = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
        assert task is not None
        with self._changed:
            self._hurry = lambda: loop.call_soon_threadsafe(woken.set)
            self._end = lambda: loop.call_soon_threadsafe(task.cancel)
        producer: AIOKafkaProducer | None = None
        delay = _FIRST
        try:
            while True:
                self._tell()
                try:
                    producer = producer or await self._connected()
                    await self._send(producer, self._head())
                except Exception as error:  # noqa: BLE001 - the thread must outlive any failure
                    await self._warn(error, connected=producer is not None)
                    await _stopped(producer)
                    producer = None
                    pause, delay = delay * random.uniform(0.5, 1), min(2 * delay, _LONGEST)  # noqa: S311
                else:
                    self._works()
                    pause, delay = (0.0 if self._queue else _QUIET), _FIRST
                if pause:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(woken.wait(), pause)
                woken.clear()
        finally:
            await _stopped(producer)

    async def _connected(self) -> AIOKafkaProducer:
        assert self._settings is not None
        producer = AIOKafkaProducer(
            **self._settings.kafka_args(),
            acks="all",
            linger_ms=5,
            max_batch_size=256 * 1024,
            max_request_size=plan(self._settings).spans.max_message_bytes,
            request_timeout_ms=int(_DELIVERY * 1000),
        )
        try:
            await producer.start()
        except BaseException:
            await _stopped(producer)
            raise
        return producer

    async def _send(self, producer: AIOKafkaProducer, batch: list[_Message]) -> None:
        """Raises the last failure of those that are worth another attempt."""
        assert self._settings is not None
        topic = self._settings.spans_topic
        outcomes = await asyncio.gather(
            *(producer.send_and_wait(topic, m.value, key=m.key) for m in batch),
            return_exceptions=True,
        )
        again = []
        failure: Exception | None = None
        for message, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, MessageSizeTooLargeError):
                self._drop("larger than the topic's max.message.bytes", message.spans)
            elif isinstance(outcome, KafkaError | OSError | TimeoutError):
                again.append(message)
                failure = outcome
            elif isinstance(outcome, BaseException):
                self._drop(f"refused as {type(outcome).__name__}", message.spans)
        self._settle(batch, again)
        if failure is not None:
            raise failure

    async def _warn(self, error: Exception, *, connected: bool) -> None:
        self._failing = True
        now = time.monotonic()
        if now - self._warned_at < _QUIET:
            return
        self._warned_at = now
        why = words(error)
        if not connected and self._settings is not None:
            with suppress(Exception):
                async with asyncio.timeout(_DELIVERY):
                    why = await refusal(self._settings.kafka_args())
        log.warning("spans wait in the agent, Kafka cannot be written to: %s", why)

    def _works(self) -> None:
        if self._failing:
            self._failing, self._warned_at = False, -_QUIET
            log.warning("Kafka can be written to again")


class _Loop(asyncio.SelectorEventLoop):
    """Runs at once what others hand to a thread: it has one of its own, and while the interpreter
    ends, when short runs write their spans, resolving a name in a new one would fail."""

    def run_in_executor(  # type: ignore[override]  # a future of this loop, as there
        self,
        executor: object,  # noqa: ARG002 - asyncio's
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - whoever awaits gets it
            future.set_exception(error)
        return future


def _from_environment() -> Settings | None:
    try:
        return load()
    except UserError as error:
        log.error("no spans are written to Kafka: %s", error)  # noqa: TRY400 - the text is all
        return None


async def _stopped(producer: AIOKafkaProducer | None) -> None:
    if producer is not None:
        with suppress(Exception):
            await asyncio.wait_for(producer.stop(), _STOP)


def _of_others(record: logging.LogRecord) -> bool:
    return record.threadName != _THREAD


def _call(function: Callable[[], object] | None) -> None:
    if function is not None:
        function()
