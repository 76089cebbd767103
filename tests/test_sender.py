from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError

from streams.events import Message
from streams.sender import NotWrittenError, Sender
from streams.settings import Settings


class Producer:
    """As aiokafka's; fails each message as often as `failures` says, by its value."""

    def __init__(self, failures):
        self.failures = dict(failures)
        self.log = []

    async def send(self, topic, value, *, key, partition, headers):
        left = self.failures.get(value, 0)
        self.failures[value] = left - 1
        future = asyncio.get_running_loop().create_future()
        if left > 0 and value.startswith(b"now"):
            raise KafkaTimeoutError
        if left > 0:
            future.set_exception(KafkaConnectionError())
        else:
            self.log.append((partition, value))
            future.set_result(type("Metadata", (), {"offset": len(self.log) - 1}))
        return future


def send(values, failures, patience=5.0):
    async def scenario():
        sender = Sender(Settings(), patience=patience)
        await sender._producer.stop()
        sender._producer = Producer(failures)
        messages = [Message("t", partition, None, value) for partition, value in values]
        return await sender.send(messages), sender._producer.log

    return asyncio.run(scenario())


def test_every_message_is_written_and_its_offset_told():
    offsets, log = send([(0, b"a"), (1, b"b"), (0, b"c")], {})
    assert offsets == [0, 1, 2]
    assert log == [(0, b"a"), (1, b"b"), (0, b"c")]


@pytest.mark.parametrize("first", [b"later", b"now"])
def test_after_a_failure_the_last_copies_stand_in_order(first):
    values = [(0, b"a"), (0, first), (0, b"b"), (1, b"c"), (0, b"d")]
    offsets, log = send(values, {first: 2})
    zero = [value for partition, value in log if partition == 0]
    assert zero[-3:] == [first, b"b", b"d"]
    assert [value for partition, value in log if partition == 1] == [b"c"]
    assert [log[offset][1] for offset in offsets] == [value for _, value in values]


def test_a_failure_without_end_is_raised():
    with pytest.raises(NotWrittenError, match=r"^t:0: KafkaConnectionError$") as caught:
        send([(0, b"a")], {b"a": 10**6}, patience=0.2)
    assert isinstance(caught.value.__cause__, KafkaConnectionError)


def test_what_is_waited_for_is_told_by_the_topic_that_refuses(caplog):
    with pytest.raises(NotWrittenError):
        send([(0, b"a"), (3, b"later")], {b"later": 10**6}, patience=0.2)
    assert caplog.messages[0] == (
        "writing to Kafka: t:3: KafkaConnectionError; waiting and trying again"
    )


def test_nothing_to_send_is_nothing():
    assert send([], {}) == ([], [])
