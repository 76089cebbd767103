from __future__ import annotations

import asyncio
import itertools

import pytest

from monitor.contract import PolicySet
from streams import policy_sets, topics
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

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert caplog.messages[-1].endswith("the files hold it again")


def _gone(folder):
    (folder / "desk.yaml").unlink()
    folder.rmdir()


def _larger_than_a_message(folder):
    tools = ", ".join(f"tool_{n:0100}" for n in range(9000))
    for n in range(9):
        (folder / f"large{n}.yaml").write_text(
            f"contract: large{n}\nversion: 1\nallowed_tools: [{tools}]\n"
        )


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (_gone, "No such file"),
        (lambda folder: (folder / "lost.yaml").symlink_to("nowhere"), "lost.yaml"),
        (lambda folder: (folder / "self.yaml").symlink_to("self.yaml"), "self.yaml"),
        (lambda folder: (folder / "null.yaml").symlink_to("/dev/null"), "is no file"),
        (lambda folder: (folder / "folder.yaml").mkdir(), "folder.yaml"),
        (_larger_than_a_message, "together; allowed: at most 8323072 bytes"),
    ],
)
def test_whatever_is_wrong_with_the_files_the_old_set_stays(contracts, mistake, told):
    async def scenario():
        topic = Topic()
        policy = source(contracts, topic)
        await policy.refresh()
        before = policy.digest
        mistake(contracts)
        await policy.refresh()
        assert told in policy.failed
        assert policy.digest == before
        assert len(topic.written) == 1

    asyncio.run(scenario())


def test_a_folder_that_goes_while_it_is_empty_is_told_too(contracts):
    async def scenario():
        (contracts / "desk.yaml").unlink()
        policy = source(contracts, Topic())
        await policy.refresh()
        contracts.rmdir()
        await policy.refresh()
        assert "No such file" in policy.failed

    asyncio.run(scenario())


def test_without_a_contract_a_warning_says_what_follows(contracts, caplog):
    async def scenario():
        policy = source(contracts, Topic())
        await policy.refresh()
        assert not caplog.messages
        (contracts / "desk.yaml").unlink()
        await policy.refresh()

    asyncio.run(scenario())
    assert caplog.messages == ["there is no contract: every label will be unassessed, no_contract"]


def test_files_that_are_being_written_are_not_read_yet(contracts, monkeypatch):
    looks, read = [1, 1, 2, 3, 3], []
    policy = source(contracts, Topic())
    seen = []

    def look(_):
        seen.append(looks.pop(0))
        return seen[-1]

    async def refresh():
        read.append(seen[-1])

    monkeypatch.setattr(policy_sets, "_EVERY", 0)
    monkeypatch.setattr(policy_sets, "_signature", look)
    monkeypatch.setattr(policy, "refresh", refresh)
    with pytest.raises(IndexError):
        asyncio.run(policy.follow())
    assert read == [1, 3]


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
