from __future__ import annotations

import asyncio
import itertools

import pytest

from monitor.contract import PolicySet
from streams import topics
from streams.errors import UserError
from streams.events import Message
from streams.policy_sets import PolicySetLog, PolicySource, policy_set
from streams.sender import Sender
from streams.settings import Settings
from tests.deployment import CONTRACT, settings
from tests.services import broker  # noqa: F401

NUMBERS = itertools.count()


@pytest.fixture
def contracts(tmp_path):
    folder = tmp_path / "contracts"
    folder.mkdir()
    (folder / "desk.yaml").write_text(CONTRACT)
    return folder


class Topic:
    """The contracts topic, as `Sender` would write it."""

    def __init__(self):
        self.written = []

    async def send(self, messages):
        self.written += messages
        return [0] * len(messages)


def source(contracts, topic) -> PolicySource:
    return PolicySource(Settings(contracts=contracts), "contracts", topic)


def test_a_set_is_in_the_topic_before_its_digest_is_used(contracts):
    async def scenario():
        topic = Topic()
        policy = source(contracts, topic)
        await policy.refresh()
        [message] = topic.written
        assert message.key.decode() == policy.digest == PolicySet.decode(message.value).digest
        assert PolicySet.decode(message.value) == policy_set(Settings(contracts=contracts))
        await policy.refresh()
        assert len(topic.written) == 1

    asyncio.run(scenario())


def test_a_set_that_cannot_be_written_is_not_used(contracts):
    async def scenario():
        topic = Topic()
        policy = source(contracts, topic)
        await policy.refresh()
        before = policy.digest
        (contracts / "desk.yaml").write_text(CONTRACT.replace("version: 1", "version: 2"))
        send, topic.send = topic.send, None
        with pytest.raises(TypeError):
            await policy.refresh()
        assert policy.digest == before
        topic.send = send
        await policy.refresh()
        assert policy.digest == topic.written[-1].key.decode() != before

    asyncio.run(scenario())


def test_files_are_read_again_when_they_change(contracts):
    async def scenario():
        topic = Topic()
        policy = source(contracts, topic)
        await policy.refresh()
        first = policy.digest
        (contracts / "more.yaml").write_text("contract: more\nversion: 1\nforbidden_tools: [x]\n")
        await policy.refresh()
        second = policy.digest
        (contracts / "more.yaml").unlink()
        await policy.refresh()
        assert len({first, second}) == 2
        assert policy.digest == first
        assert [m.key.decode() for m in topic.written] == [first, second, first]

    asyncio.run(scenario())


def test_a_broken_file_keeps_the_old_set_and_says_so_once(contracts, caplog):
    async def scenario():
        policy = source(contracts, Topic())
        await policy.refresh()
        before = policy.digest
        (contracts / "broken.yaml").write_text("contract: [")
        for _ in range(3):
            await policy.refresh()
        assert policy.digest == before
        assert "broken.yaml" in policy.failed
        assert caplog.text.count("the old ones stay in force") == 1
        (contracts / "broken.yaml").unlink()
        await policy.refresh()
        assert policy.failed is None

    asyncio.run(scenario())


def test_without_an_old_set_a_broken_file_is_an_error(contracts):
    (contracts / "broken.yaml").write_text("contract: [")
    with pytest.raises(UserError, match=r"broken\.yaml"):
        asyncio.run(source(contracts, Topic()).refresh())


@pytest.mark.services
def test_a_set_is_found_by_digest_and_waited_for(broker, contracts):  # noqa: F811
    chosen = settings(broker, "redis://x", f"sets{next(NUMBERS)}", contracts=contracts)
    name = topics.plan(chosen).contracts.name

    async def scenario():
        await topics.create(chosen)
        async with Sender(chosen) as sender, PolicySetLog(chosen, name) as sets:
            late = asyncio.create_task(sets.get(policy_set(chosen).digest))
            latest = asyncio.create_task(sets.latest())
            await sender.send([Message(name, 0, b"junk", b"junk")])
            assert not late.done()
            await PolicySource(chosen, name, sender).refresh()
            async with asyncio.timeout(20):
                assert await late == policy_set(chosen)
                assert await latest == policy_set(chosen).digest

    asyncio.run(scenario())
