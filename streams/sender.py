"""Writing to Kafka: a message counts as written once every in-sync replica has it.

Faust's own `topic.send` costs four times as much and loses a message when nobody awaits it, so the
workers use aiokafka's producer directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from monitor.label import Event
from monitor.reading import ParseRequest
from streams import metrics, telemetry
from streams.events import EventWriter, Message
from streams.patience import PATIENCE, patiently, words
from streams.requests import RequestWriter
from streams.settings import Settings
from streams.topics import RECORD_BYTES

_LARGEST: Final = 8 * RECORD_BYTES
"""The largest message that anything here writes: a policy set."""
FAILURES: Final = (KafkaError, OSError, TimeoutError)


class NotWrittenError(KafkaError):  # type: ignore[misc]  # the client has no types
    """A broker did not take a message; the text names the place and what went wrong."""

    def __init__(self, message: Message, cause: BaseException) -> None:
        super().__init__(f"{message.topic}:{message.partition}: {words(cause)}")

    def __str__(self) -> str:
        return str(self.args[0])  # the base puts an error code of its own before it


class Sender:
    """A producer that waits for outages and keeps the order within a partition.

    Use as `async with Sender(settings) as sender`.
    """

    def __init__(self, settings: Settings, *, patience: float = PATIENCE) -> None:
        self._producer = AIOKafkaProducer(
            **settings.kafka_args(),
            acks="all",
            linger_ms=2,
            max_batch_size=256 * 1024,
            max_request_size=max(_LARGEST, settings.max_message_bytes) + 64 * 1024,
            request_timeout_ms=30_000,
        )
        self._patience = patience

    async def __aenter__(self) -> Self:
        await patiently("Kafka", self._producer.start, FAILURES, patience=self._patience)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def send(self, messages: Sequence[Message]) -> list[int]:
        """Writes all; returns their offsets, in order. Raises NotWrittenError once patience ends.

        After a failure, its partition's later messages are written again too, so that the last
        copies stand in order; readers know repeats by their ids.
        """
        offsets = [-1] * len(messages)
        left = list(range(len(messages)))

        async def attempt() -> None:
            nonlocal left
            pending = [await self._start(messages[n]) for n in left]
            outcomes = await asyncio.gather(*pending, return_exceptions=True)
            broken: dict[tuple[str, int], tuple[Message, BaseException]] = {}
            again = []
            for n, outcome in zip(left, outcomes, strict=True):
                place = messages[n].topic, messages[n].partition
                if isinstance(outcome, BaseException):
                    broken.setdefault(place, (messages[n], outcome))
                if place in broken:
                    again.append(n)
                elif not isinstance(outcome, BaseException):
                    offsets[n] = outcome
            left = again
            if broken:
                message, error = next(iter(broken.values()))
                if isinstance(error, FAILURES):
                    raise NotWrittenError(message, error) from error
                raise error  # a cancellation, or a defect: nothing to wait for

        if messages:
            with (
                metrics.timed("send_seconds"),
                telemetry.span("Kafka: send", messages=len(messages)),
            ):
                await patiently("writing to Kafka", attempt, FAILURES, patience=self._patience)
        return offsets

    async def _start(self, message: Message) -> asyncio.Future[int]:
        """Hands a message to the producer; what comes back always resolves, to offset or error."""
        result: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            sent: Any = await self._producer.send(
                message.topic,
                message.value,
                key=message.key,
                partition=message.partition,
                headers=message.headers,
            )
        except FAILURES as error:
            result.set_exception(error)
            return result

        def done(future: asyncio.Future[Any]) -> None:
            if result.done():
                return
            if future.cancelled():
                result.cancel()
            elif (error := future.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(future.result().offset)

        sent.add_done_callback(done)
        return result


class KafkaPublisher:
    """`monitor.ports.Publisher` on the topics of labels and violations, and of parse requests."""

    def __init__(self, sender: Sender, writer: EventWriter, requests: RequestWriter) -> None:
        self._sender = sender
        self._writer = writer
        self._requests = requests

    async def publish(self, events: Sequence[Event], requests: Sequence[ParseRequest]) -> None:
        messages = [self._writer.message(event) for event in events]
        messages += (self._requests.message(request) for request in requests)
        await self._sender.send(messages)
