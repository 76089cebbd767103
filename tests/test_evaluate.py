"""Taking partitions over, folding, closing: against a log and a broker in memory."""

from __future__ import annotations

import asyncio

import fakeredis
import pytest

from monitor.contract import Contract, PolicySet
from monitor.engine import Engine, Fenced, StoreBehind
from monitor.memory import MemoryPolicySets, MemoryPublisher
from monitor.model import Arrival, Close, Lost, Message, Observed, Span
from streams.dead_letters import DeadLetters, NothingReadableError
from streams.evaluate import Evaluate
from streams.journal import decode, encode
from streams.store import RedisStore
from streams.topic_log import Raw, TopicLog

P = 4
HOUR = 3_600_000
SETTLE, IDLE = 1_000, 60_000
POLICY = PolicySet([Contract(contract="c", version=1, forbidden_tools=("purge",), grounding="off")])


def trajectory(number: int, partition: int = 1) -> str:
    return f"{number * P + partition:016x}" + "a" * 16


def tool(owner: str, number: int = 1, name: str = "search") -> Observed:
    return Observed(Span(owner, f"{number:016x}", "tool", parent="f" * 16, tool=name, end=number))


def run_of(owner: str, name: str = "search") -> list[Observed]:
    """A whole run: tool call, answer, root."""
    said = (Message("assistant", "It is done."),)
    answer = Span(owner, "e" * 16, "llm", parent="f" * 16, start=5, end=6, outputs=said)
    root = Span(owner, "f" * 16, "agent", agent="desk", end=9)
    return [tool(owner, name=name), Observed(answer), Observed(root)]


class Log:
    """The journal with its broker's clock, retention, and the group's commits."""

    replaced = TopicLog.replaced

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.records: dict[int, list[Raw]] = {p: [] for p in range(P)}
        self.starts = dict.fromkeys(range(P), 0)
        self.commits: dict[int, int] = {}

    def append(self, partition: int, value: bytes | None) -> Raw:
        records = self.records[partition]
        records.append(Raw(partition, self.starts[partition] + len(records), self.now, value))
        return records[-1]

    def retain(self, partition: int, start: int) -> None:
        """Retention removes everything before an offset."""
        self.records[partition] = [r for r in self.records[partition] if r.offset >= start]
        self.starts[partition] = start

    def recreate(self, partition: int) -> None:
        """The topic is deleted and made again: its commits go with it."""
        self.records[partition], self.starts[partition] = [], 0
        self.commits.pop(partition, None)

    async def committed(self, partition):
        return self.commits.get(partition)

    async def start(self, partition):
        return self.starts[partition]

    async def ends(self, partitions):
        return {p: self.starts[p] + len(self.records[p]) for p in partitions}

    async def since(self, partition, timestamp):
        found = self.records[partition]
        return next((r.offset for r in found if r.timestamp >= timestamp), None)

    async def lacks(self, partition, timestamp):
        return all(r.timestamp > timestamp for r in self.records[partition])

    async def at(self, partition, offset):
        if offset < self.starts[partition]:
            return "before"
        return next((r for r in self.records[partition] if r.offset == offset), "beyond")

    async def read(self, partition, first, stop):
        for record in list(self.records[partition]):
            if first <= record.offset < stop:
                yield [record]


class Sets(MemoryPolicySets):
    async def latest(self) -> str:
        return POLICY.digest


class World:
    """A worker that owns every partition, its store, and what it publishes."""

    def __init__(self) -> None:
        self.log = Log()
        self.letters: list[bytes] = []
        self.published = MemoryPublisher()
        self.redis = fakeredis.FakeAsyncRedis()
        self.store = RedisStore(self.redis, prefix="t", partitions=P, ttl=10**6, patience=0)
        self.worker = self.another()

    def another(self) -> Evaluate:
        """A new process on the same store and log."""
        sets = Sets(POLICY)
        worker = Evaluate(
            journal="j",
            partitions=P,
            state_ttl=48 * HOUR / 1000,
            engine=Engine(self.store, self.published, sets, settle_delay=SETTLE, idle_timeout=IDLE),
            store=self.store,
            journal_log=self.log,
            policy_sets=sets,
            sender=self,
            dead_letters=DeadLetters("dead", partitions=P, max_bytes=10_000, halt=5),
            clock=lambda: self.log.now / 1000,
        )
        worker.assign(range(P))
        return worker

    def restart(self) -> None:
        self.worker = self.another()

    async def send(self, messages):
        """As `Sender`."""
        offsets = []
        for message in messages:
            if message.topic == "dead":
                self.letters.append(message.value)
                offsets.append(len(self.letters) - 1)
            else:
                offsets.append(self.log.append(message.partition, message.value).offset)
        return offsets

    def write(self, *arrivals: Arrival, after: int = 10) -> list[Raw]:
        """Arrivals of one partition reach the journal as one record."""
        self.log.now += after
        return [self.log.append(p, v) for p, v in encode(POLICY.digest, arrivals, P)]

    async def deliver(self, *records: Raw, commit: bool = True) -> frozenset[int]:
        done = await self.worker.handle(records) if records else frozenset()
        for record in records:
            if commit and record.partition in done:
                self.log.commits[record.partition] = record.offset + 1
        return done

    async def deliver_rest(self, partition: int = 1) -> None:
        """What the group has not committed, as Kafka would."""
        position = self.log.commits.get(partition, self.log.starts[partition])
        rest = [r for r in self.log.records[partition] if r.offset >= position]
        if rest:
            await self.deliver(*rest)

    def written(self, kind: type, partition: int = 1) -> list[Arrival]:
        found = [decode(r.value, partition, P).arrivals for r in self.log.records[partition]]
        return [a for arrivals in found for a in arrivals if isinstance(a, kind)]

    def ids(self) -> list[str]:
        return [event.id for event in self.published.events]

    def labels(self, owner: str) -> list[tuple[str, str]]:
        return [
            (e.body.verdict, e.body.phase)
            for e in self.published.events
            if e.trajectory == owner and e.type.endswith("label.v1")
        ]

    def final(self, owner: str):
        return [e.body for e in self.published.events if e.trajectory == owner][-1]


@pytest.fixture
def world():
    return World()


@pytest.fixture
def run():
    with asyncio.Runner() as runner:
        yield runner.run


A, B = trajectory(1), trajectory(2)


# -- folding ---------------------------------------------------------------------------------


def test_a_run_is_folded_closed_and_labelled(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        await world.worker.close_due()
        assert world.written(Close) == []
        world.log.now += SETTLE
        await world.worker.close_due()
        assert world.written(Close) == [Close(A, "root_settled", 0)]
        await world.deliver_rest()
        assert world.labels(A)[-1] == ("trusted", "final")

    run(scenario())


def test_a_partition_that_is_held_up_holds_up_no_other(world, run):
    async def scenario():
        free = asyncio.Event()
        watermark = world.store.watermark

        async def slow(partition):
            if partition == 0:
                await free.wait()
            return await watermark(partition)

        world.store.watermark = slow
        owners = [trajectory(1, p) for p in range(P)]
        records = [r for owner in owners for r in world.write(*run_of(owner, "purge"))]
        held, *others = [asyncio.ensure_future(world.deliver(r)) for r in records]
        assert await asyncio.wait_for(asyncio.gather(*others), 10) == [{1}, {2}, {3}]
        assert not held.done()
        free.set()
        assert await held == {0}
        assert all(world.labels(owner)[-1][0] == "violated" for owner in owners)

    run(scenario())


def test_records_that_come_twice_or_out_of_order_are_folded_once(world, run):
    async def scenario():
        records = [r for arrival in run_of(A, "purge") for r in world.write(arrival)]
        await world.deliver(records[1], records[0], records[1], records[2], records[0])
        once = world.ids()
        assert once
        await world.deliver(*records)
        world.restart()
        await world.deliver(*records)
        assert world.ids() == once

    run(scenario())


def test_records_that_the_group_skipped_are_read_beside_it(world, run):
    async def scenario():
        first, skipped, last = (world.write(arrival)[0] for arrival in run_of(A, "purge"))
        await world.deliver(first)
        await world.deliver(last)
        assert world.final(A).phase == "provisional"
        world.log.now += SETTLE
        await world.worker.close_due()
        assert world.written(Close) == [Close(A, "root_settled", last.offset)]
        assert skipped.offset == 1

    run(scenario())


@pytest.mark.parametrize("given", [(0, 2, 5), (1, 5, 0), (0, 4, 5, 2)])
def test_records_left_out_within_a_batch_are_read_beside_it(world, run, given):
    async def scenario():
        arrivals = [*run_of(A, "purge"), *run_of(B, "purge")]
        records = [world.write(arrival)[0] for arrival in arrivals]
        await world.deliver(records[0])
        await world.deliver(*(records[n] for n in given))
        return world.ids()

    async def plain():
        world = World()
        for arrival in [*run_of(A, "purge"), *run_of(B, "purge")]:
            await world.deliver(*world.write(arrival))
        return world.ids()

    assert run(scenario()) == run(plain())


def test_one_bad_arrival_is_dead_and_its_neighbours_live(world, run):
    async def scenario():
        world.log.append(1, b"junk")
        await world.deliver(world.log.records[1][0], *world.write(*run_of(A, "purge")))
        assert world.letters == [b"junk"]
        assert world.labels(A)[-1][0] == "violated"

    run(scenario())


def test_nothing_but_bad_records_stops_the_worker(world, run):
    async def scenario():
        for _ in range(6):
            world.log.append(1, b"junk")
        with pytest.raises(NothingReadableError, match="5 dead letters in a row"):
            await world.deliver(*world.log.records[1])

    run(scenario())


# -- closes ----------------------------------------------------------------------------------


def test_a_close_is_written_once(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        world.log.now += SETTLE
        for _ in range(3):
            await world.worker.close_due()
        assert len(world.written(Close)) == 1

    run(scenario())


def test_a_close_is_written_once_where_ends_are_reported_too_low(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        world.log.now += SETTLE
        world.log.ends = _too_low
        for _ in range(3):
            await world.worker.close_due()
        assert len(world.written(Close)) == 1
        await world.deliver_rest()
        assert world.final(A).closed == "root_settled"

    async def _too_low(partitions):
        return dict.fromkeys(partitions, 0)

    run(scenario())


def test_a_lagging_worker_closes_nothing(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        world.log.now += SETTLE
        world.write(tool(A, 7))
        await world.worker.close_due()
        assert world.written(Close) == []
        await world.deliver_rest()
        world.log.now += SETTLE
        await world.worker.close_due()
        assert world.written(Close) == [Close(A, "root_settled", 1)]

    run(scenario())


def test_an_idle_topic_still_closes(world, run):
    async def scenario():
        await world.deliver(*world.write(tool(A), run_of(A)[1]))
        world.log.now += IDLE - 1
        await world.worker.close_due()
        assert world.written(Close) == []
        world.log.now += 1
        world.restart()  # a worker that has read nothing yet, and will read nothing
        await world.worker.close_due()
        assert world.written(Close) == [Close(A, "idle", 0)]

    run(scenario())


def test_only_the_owner_writes_closes(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        world.log.now += SETTLE
        world.worker.revoke()
        await world.worker.close_due()
        assert world.written(Close) == []

    run(scenario())


# -- ownership -------------------------------------------------------------------------------


def test_a_partition_that_is_not_ours_is_left_alone(world, run):
    async def scenario():
        world.worker.assign([0])
        assert await world.deliver(*world.write(tool(A))) == frozenset()
        assert await world.store.watermark(1) is None

    run(scenario())


async def _overtaken(world: World, *, revoked: bool) -> frozenset[int]:
    """Another owner folds the same records while this one is between load and save."""
    records = world.write(*run_of(A, "purge"))
    publish = world.published.publish

    async def meanwhile(events, requests=()):
        world.published.publish = publish
        if revoked:
            world.worker.revoke()
        more = world.write(tool(B))
        await world.another().handle([*records, *more])
        await publish(events, requests)

    world.published.publish = meanwhile
    return await world.deliver(*records)


def test_an_overtaken_worker_that_lost_the_partition_goes_on(world, run):
    assert run(_overtaken(world, revoked=True)) == frozenset()
    before = run(world.store.watermark(1))
    assert before.offset == 1


def test_an_overtaken_worker_that_believes_to_own_the_partition_ends(world, run):
    with pytest.raises(Fenced):
        run(_overtaken(world, revoked=False))


# -- taking over -----------------------------------------------------------------------------


async def _story(world: World) -> None:
    """Two runs, one of them still open, then the end of both."""
    await world.deliver(*world.write(*run_of(A, "purge")), *world.write(tool(B)))
    await world.deliver(*world.write(tool(A, 7)))


async def _ending(world: World) -> list[str]:
    await world.deliver_rest()
    await world.deliver(*world.write(*run_of(B, "purge")))
    world.log.now += IDLE
    await world.worker.close_due()
    await world.deliver_rest()
    return world.ids()


def undisturbed(run) -> list[str]:
    async def scenario():
        world = World()
        await _story(world)
        return await _ending(world)

    return run(scenario())


def test_a_flushed_store_is_noticed_and_rebuilt_without_publishing_again(world, run):
    async def scenario():
        await _story(world)
        before = world.ids()
        await world.redis.flushall()
        with pytest.raises(StoreBehind):
            await world.worker.close_due()
        with pytest.raises(StoreBehind):
            await world.deliver(*world.write(tool(B, 3)))
        world.log.records[1].pop()
        world.restart()
        await world.worker.close_due()
        assert world.ids() == before
        return await _ending(world)

    assert run(scenario()) == undisturbed(run)


def test_a_store_that_was_rolled_back_is_folded_up_to_the_commit(world, run):
    async def scenario():
        first = world.write(*run_of(A, "purge")), world.write(tool(B))
        await world.deliver(*first[0], *first[1])
        saved = {key: await world.redis.dump(key) for key in await world.redis.keys()}
        await world.deliver(*world.write(tool(A, 7)))
        before = world.ids()
        await world.redis.flushall()
        for key, value in saved.items():
            await world.redis.restore(key, 10**6, value)
        world.restart()
        await world.worker.close_due()
        assert world.ids() == before
        return await _ending(world)

    assert run(scenario()) == undisturbed(run)


def test_events_of_records_that_were_not_committed_come_again_the_same(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)))
        await world.deliver(*world.write(*run_of(B, "purge")), commit=False)
        once = world.published.events[:]
        await world.redis.flushall()
        world.restart()
        await world.deliver_rest()
        again = world.published.events[len(once) :]
        assert again
        assert again == [event for event in once if event.trajectory == B]

    run(scenario())


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_a_log_that_was_made_again_starts_a_new_epoch(world, run, length, caplog):
    async def scenario():
        for _ in range(2):
            await world.deliver(*world.write(tool(A)))
        world.log.recreate(1)
        for n in range(length):
            world.write(*run_of(B, "purge"), after=n)
        world.restart()
        await world.deliver_rest()
        await world.worker.close_due()
        mark = await world.store.watermark(1)
        assert mark.epoch == (1 if length else 0)
        assert mark.offset == (length - 1 if length else 1)
        assert "has a new log" in caplog.text
        assert ("violated" in [verdict for verdict, _ in world.labels(B)]) is bool(length)
        assert list(await world.store.due(1, 2**50, 9)) == ([B] if length else [])

    run(scenario())


def test_a_log_made_again_is_folded_from_its_start_where_the_old_one_s_commit_outlives_it(
    world, run
):
    """Nothing more may come for it: what lies before the commit is not waited for."""

    async def scenario():
        for _ in range(2):
            await world.deliver(*world.write(tool(A)))
        commit = world.log.commits[1]
        world.log.recreate(1)
        world.log.commits[1] = commit
        for arrival in run_of(B, "purge"):
            world.write(arrival)
        world.restart()
        await world.worker.close_due()
        assert (await world.store.watermark(1)).offset == 2
        assert "violated" in [verdict for verdict, _ in world.labels(B)]

    run(scenario())


def test_what_began_before_a_rebalance_does_not_meet_what_begins_after_it(world, run):
    """Both find the new log; the second must not forget what the first has folded of it."""

    async def scenario():
        for _ in range(2):
            await world.deliver(*world.write(tool(A)))
        world.log.recreate(1)
        world.restart()
        gates = [asyncio.Event(), asyncio.Event()]
        asked = iter(gates)
        at = world.log.at

        async def slow(partition, offset):
            if gate := next(asked, None):
                await gate.wait()
            return await at(partition, offset)

        world.log.at = slow
        before = asyncio.ensure_future(world.worker.close_due())
        for _ in range(20):
            await asyncio.sleep(0)
        world.worker.assign(range(P))
        after = asyncio.ensure_future(world.deliver(*world.write(*run_of(B, "purge"))))
        for _ in range(20):
            await asyncio.sleep(0)
        gates[0].set()
        await before
        gates[1].set()
        await after
        world.log.now += IDLE
        await world.worker.close_due()
        await world.deliver_rest()
        assert world.labels(B)[-1] == ("violated", "final")

    run(scenario())


@pytest.mark.parametrize("length", [0, 1, 2, 3, 5])
def test_a_log_made_again_under_a_living_worker_is_noticed_however_long_it_is(world, run, length):
    """Its consumer goes on at the old position, which the new log may have reached or passed."""

    async def scenario():
        for _ in range(2):
            await world.deliver(*world.write(tool(A)))
        world.log.recreate(1)
        world.log.now += 2_000
        for arrival in [*run_of(B, "purge"), tool(B), tool(B)][:length]:
            world.write(arrival)
        await world.deliver(*world.log.records[1][2:])
        world.log.now += 6_000
        await world.worker.close_due()
        mark = await world.store.watermark(1)
        assert mark.epoch == (1 if length else 0)
        assert mark.offset >= (length - 1 if length else 1)
        assert ("violated" in [verdict for verdict, _ in world.labels(B)]) is bool(length)

    run(scenario())


def test_what_retention_took_unread_makes_open_trajectories_partial(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A)), *world.write(tool(B)))
        for arrival in run_of(B):
            world.write(arrival)
        world.log.retain(1, 4)
        world.restart()
        await world.deliver_rest()
        assert {lost.trajectory for lost in world.written(Lost)} == {A, B}
        await world.deliver_rest()
        world.log.now += IDLE
        await world.worker.close_due()
        await world.deliver_rest()
        for owner in (A, B):
            body = world.final(owner)
            assert (body.phase, body.verdict) == ("final", "unassessed")
            assert "history_lost" in body.coverage.reasons

    run(scenario())


def test_an_empty_store_and_a_log_that_begins_too_late_is_told(world, run):
    async def scenario():
        await world.deliver(*world.write(tool(A)), *world.write(*run_of(B)))
        await world.deliver(*world.write(*run_of(A)[1:]))
        world.log.retain(1, 1)
        await world.redis.flushall()
        world.restart()
        await world.worker.close_due()
        assert {lost.trajectory for lost in world.written(Lost)} == {A, B}
        await world.deliver_rest()
        world.log.now += IDLE
        await world.worker.close_due()
        await world.deliver_rest()
        for owner in (A, B):
            body = world.final(owner)
            assert (body.phase, body.verdict) == ("final", "unassessed")
            assert "history_lost" in body.coverage.reasons

    run(scenario())


def test_a_new_group_on_a_log_whose_start_is_gone_trusts_nothing_of_it(world, run):
    async def scenario():
        world.write(tool(A))
        world.write(*run_of(A)[1:])
        world.log.retain(1, 1)
        await world.deliver_rest()
        await world.deliver_rest()
        world.log.now += IDLE
        await world.worker.close_due()
        await world.deliver_rest()
        body = world.final(A)
        assert (body.phase, body.verdict) == ("final", "unassessed")
        assert "history_lost" in body.coverage.reasons
        fresh = "0" * 15 + "9" + "b" * 16
        await world.deliver(*world.write(*run_of(fresh)))
        world.log.now += IDLE
        await world.worker.close_due()
        await world.deliver_rest()
        assert world.final(fresh).verdict == "trusted"

    run(scenario())


def test_retention_behind_the_watermark_changes_nothing(world, run):
    async def scenario():
        await _story(world)
        world.log.retain(1, 3)
        world.restart()
        await world.worker.close_due()
        assert (await world.store.watermark(1)).epoch == 0
        return await _ending(world)

    assert run(scenario()) == undisturbed(run)


def test_a_rebuild_reaches_back_as_far_as_state_lives(world, run):
    async def scenario():
        await world.deliver(*world.write(*run_of(A, "purge")))
        await world.deliver(*world.write(tool(B), after=49 * HOUR))
        await world.redis.flushall()
        world.restart()
        await world.worker.close_due()
        assert list(await world.store.due(1, 2**50, 9)) == [B]

    run(scenario())
