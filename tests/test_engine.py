"""The engine on the memory ports: effects, fences, limits, reloads, broken folds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from monitor.contract import Limits, PolicySet
from monitor.engine import Engine, Fenced, Gap, StoreBehind
from monitor.head import decode_head
from monitor.label import Label, encode
from monitor.memory import Crash, Fuse, MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Close, Lost, Observed, Pin, Record, Span, Unknown
from monitor.ports import StoreCorrupt, Watermark
from tests.traces import (
    ROOT,
    SECOND,
    TRACE,
    Run,
    contract,
    llm,
    other,
    raise_fold_error,
    root,
    says,
    span_id,
    tool,
)

OTHER = "1af7651916cd43dd8448eb211c80319c"
EMPTY = PolicySet([contract()])


def elsewhere(span: Span) -> Observed:
    return Observed(msgspec.structs.replace(span, trajectory=OTHER))


def records(*arrivals: Any, first: int = 0, policy_set: PolicySet = EMPTY) -> list[Record]:
    items = [Observed(a) if isinstance(a, Span) else a for a in arrivals]
    return [
        Record(first + n, 1_000 + first + n, policy_set.digest, (item,))
        for n, item in enumerate(items)
    ]


class World:
    def __init__(self, *sets: PolicySet, fuse: Fuse | None = None) -> None:
        self.fuse = fuse or Fuse()
        self.store, self.publisher = MemoryStore(self.fuse), MemoryPublisher(self.fuse)
        self.sets = sets or (EMPTY,)
        self.broken: list[str] = []

    def engine(self) -> Engine:
        return Engine(
            self.store,
            self.publisher,
            MemoryPolicySets(*self.sets),
            on_fold_error=lambda trajectory, _: self.broken.append(trajectory),
        )

    def apply(self, given: Sequence[Record], *, epoch: int = 0, silent: bool = False) -> None:
        asyncio.run(self.engine().apply(0, given, epoch=epoch, silent=silent))


# -- records and fences ------------------------------------------------------------------------


def test_records_that_are_folded_are_skipped() -> None:
    world = World()
    given = records(llm(1, ans="ok"), root())
    world.apply(given)
    before = list(world.publisher.events)
    world.apply(given)
    assert world.publisher.events == before


@pytest.mark.parametrize("offsets", [(0, 2), (1, 0), (0, 0)])
def test_records_must_be_consecutive(offsets: tuple[int, int]) -> None:
    one, two = (Record(n, 1_000, EMPTY.digest, ()) for n in offsets)
    with pytest.raises(Gap):
        World().apply([one, two])


def test_a_record_after_a_hole_is_refused() -> None:
    world = World()
    world.apply(records(llm(1, ans="ok")))
    with pytest.raises(Gap, match="folded up to 0, the next record is 5"):
        world.apply(records(root(), first=5))


def test_another_owner_that_is_ahead_fences_this_one() -> None:
    world = World()
    world.apply(records(llm(1, ans="ok")))
    stale = world.engine()

    class Racing(MemoryStore):
        async def load(self, partition: int, wanted: Any) -> Any:
            found = await world.store.load(partition, wanted)
            world.store.watermarks[0] = Watermark(0, 9, 1, 9_000)
            return found

        async def save(self, *args: Any) -> Any:
            return await world.store.save(*args)

    stale.store = Racing()
    with pytest.raises(Fenced):
        asyncio.run(stale.apply(0, records(root(), first=1), epoch=0))


def test_a_store_that_lost_writes_is_not_written_to() -> None:
    world = World()
    world.apply(records(llm(1, ans="ok")))

    class Forgetful(MemoryStore):
        async def load(self, partition: int, wanted: Any) -> Any:
            found = await world.store.load(partition, wanted)
            world.store.watermarks.clear()
            return found

        async def save(self, *args: Any) -> Any:
            return await world.store.save(*args)

    engine = world.engine()
    engine.store = Forgetful()
    with pytest.raises(StoreBehind):
        asyncio.run(engine.apply(0, records(root(), first=1), epoch=0))


@pytest.mark.parametrize("part", ["head", "content"])
def test_state_that_cannot_be_read_is_given_up_and_folded_again(part: str) -> None:
    """The same events come out as if nothing had been, and none contradicts another."""
    spans = llm(2, req=[("a", "t")]), tool(3, "a", "t"), llm(4, ans="ok"), tool(1, "b", "t"), root()
    given = records(*spans, Close(TRACE, "root_settled", 4))  # the fourth comes late
    whole, broken = World(), World()
    whole.apply(given)
    broken.apply(given[:3])
    entry = broken.store.entries[0][TRACE]
    if part == "head":
        entry.head = entry.head[:20]
    else:
        entry.content = {name: data[:5] for name, data in entry.content.items()}
    with pytest.raises(StoreCorrupt, match=f"partition 0: .* of {TRACE}"):
        broken.apply(given[3:])
    assert broken.store.watermarks == {}
    broken.apply(given[:3], silent=True)
    broken.apply(given[3:])
    assert [e.id for e in broken.publisher.events] == [e.id for e in whole.publisher.events]


def test_a_close_that_finds_state_which_cannot_be_read_gives_it_up() -> None:
    world = World()
    world.apply(records(llm(1, ans="ok"), root()))
    world.store.entries[0][TRACE].head = b"\xff"
    with pytest.raises(StoreCorrupt, match=f"partition 0: state of {TRACE}"):
        asyncio.run(world.engine().closes(0, 10**12))
    assert world.store.watermarks == {}


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_any_offset() -> None:
    world = World()
    world.apply(records(llm(1, ans="ok")), epoch=3)
    with pytest.raises(Fenced):
        world.apply(records(root(), first=1), epoch=2)
    world.apply(records(root()), epoch=4)
    assert world.store.watermarks[0] == Watermark(4, 0, 1, 1_000)


def test_a_silent_rebuild_wins_the_state_back_and_publishes_nothing() -> None:
    given = records(llm(1, ans="T-9"), root(), Close(TRACE, "root_settled", 1))
    live, rebuilt = World(), World()
    live.apply(given)
    rebuilt.apply(given, silent=True)
    assert rebuilt.publisher.events == []
    assert rebuilt.store.entries == live.store.entries


def test_a_large_record_is_saved_in_parts_and_resumed_within() -> None:
    big = [tool(n, f"c{n}", "a", "x" * 150_000) for n in range(1, 31)]
    record = Record(0, 1_000, EMPTY.digest, tuple(Observed(s) for s in big))
    whole = World()
    whole.apply([record])
    for at in range(whole.fuse.count):
        world = World(fuse=Fuse(at))
        for _ in range(2):
            try:
                world.apply([record])
            except Crash:
                continue
        assert world.store.entries == whole.store.entries
        assert {e.id for e in world.publisher.events} == {e.id for e in whole.publisher.events}


def test_a_batch_that_holds_too_much_lets_go_and_gives_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = [tool(n, f"c{n}", "a", "x" * 50_000) for n in range(1, 6)]
    rest = [llm(9, ans="ok"), *(tool(n, f"c{n}", "a") for n in (6, 7)), root(), llm(8, ans="so")]
    worlds = []
    for limit in (10**9, 60_000):
        monkeypatch.setattr("monitor.engine.HOLD_LIMIT", limit)
        world = World()
        world.apply(records(*early, *map(elsewhere, early)))
        later = [arrival for span in rest for arrival in (span, elsewhere(span))]
        world.apply(records(*later, first=10))
        worlds.append(world)
    kept, let_go = worlds
    assert let_go.store.entries == kept.store.entries
    assert list(map(encode, let_go.publisher.events)) == list(map(encode, kept.publisher.events))
    assert let_go.store.content_loads > kept.store.content_loads


def test_a_failing_port_is_not_a_verdict() -> None:
    class Away(MemoryStore):
        async def load(self, partition: int, wanted: Any) -> Any:
            if any(want.content for want in wanted.values()):
                raise ConnectionError("store is away")
            return await MemoryStore.load(self, partition, wanted)

    world = World()
    world.store = Away()
    world.apply(records(llm(2, ans="ok")))
    with pytest.raises(ConnectionError):
        world.apply(records(llm(1, req=[("c1", "a")]), first=1))
    assert world.broken == []
    assert [e.body.verdict for e in world.publisher.events if isinstance(e.body, Label)] == ["open"]


# -- the fold breaks -----------------------------------------------------------------------------


def test_an_error_in_the_fold_ends_one_trajectory_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import monitor.fold

    def explode(_work: Any, _head: Any, span: Span, *args: Any, **more: Any) -> None:
        if span.name == "poison":
            raise ZeroDivisionError
        real(_work, _head, span, *args, **more)

    real = monitor.fold._add
    monkeypatch.setattr(monitor.fold, "_add", explode)
    world = World(PolicySet([contract(forbidden_tools=["z"])]))
    poison = msgspec.structs.replace(tool(3, "c3", "a"), name="poison")
    items = (
        Observed(llm(1, req=[("c1", "z")])),
        elsewhere(llm(1, ans="fine")),
        Observed(poison),
        Observed(root()),
        elsewhere(root()),
        Close(OTHER, "root_settled", 0),
    )
    world.apply([Record(0, 1_000, world.sets[0].digest, items)])
    assert world.broken == [TRACE]
    last = {e.trajectory: e.body for e in world.publisher.events if isinstance(e.body, Label)}
    assert last[OTHER].verdict == "trusted"
    assert last[TRACE].closed == "fold_error"
    assert last[TRACE].coverage.reasons == ("fold_error",)
    assert last[TRACE].layers["grounding"] == "unassessed"


# -- limits and expiry ---------------------------------------------------------------------------


def test_byte_limit() -> None:
    run = Run(contract(), limits=Limits(max_bytes=20_000))
    for n in range(1, 12):
        run.feed(tool(n, f"c{n}", "a", "x" * 5_000))
    assert run.label.closed == "byte_limit"
    assert run.label.verdict == "unassessed"
    assert sum(len(d) for d in run.store.entries[0][TRACE].content.values()) <= 20_000


def test_age_limit() -> None:
    run = Run(contract(), limits=Limits(max_age=10_000, state_ttl=10_000_000))
    run.feed(llm(1, req=[("c1", "a")]))
    run.time += 20_000
    run.feed(tool(2, "c1", "a"))
    assert run.label.closed == "age_limit"
    assert run.label.verdict == "unassessed"


def test_a_limit_after_the_close_takes_trust_away() -> None:
    run = Run(contract(), limits=Limits(max_bytes=20_000))
    run.feed(llm(1, ans="ok"), root())
    assert says(run.close()) == ["trusted final"]
    assert says(run.feed(tool(0, "c1", "a", "x" * 30_000))) == ["unassessed final"]
    assert run.label.coverage.reasons == ("byte_limit", "late")
    assert run.label.closed == "root_settled"


def test_a_trace_of_100_000_spans_is_counted_not_kept() -> None:
    run = Run(contract(), limits=Limits(max_steps=50))
    for first in range(0, 100_000, 5_000):
        run.feed(*(tool(n, f"c{n}", "a") for n in range(first, first + 5_000)))
    entry = run.store.entries[0][TRACE]
    assert len(entry.content) == 50
    head = decode_head(entry.head)
    assert head.ignored == 100_000 - 50
    assert run.label.closed == "step_limit"
    assert len(run.labels) == 2


def test_state_older_than_its_time_to_live_counts_as_absent() -> None:
    limits = Limits(max_age=1_000_000, state_ttl=5_000_000)
    run = Run(contract(), limits=limits)
    run.feed(tool(1, "c1", "a"))
    run.time += 6_000_000
    run.feed(llm(2, ans="ok"), root())
    assert run.label.steps == 1
    assert set(run.store.entries[0][TRACE].content) == {span_id(2), ROOT}


# -- arrivals ------------------------------------------------------------------------------------


def test_two_different_spans_with_one_id_the_later_end_wins_in_any_order() -> None:
    early = tool(1, "c1", "a", "T-1", end=2 * SECOND)
    late = tool(1, "c1", "a", "T-2", end=3 * SECOND)
    for order in ([early, late], [late, early], [late, early, late]):
        run = Run(contract())
        run.feed(*order, llm(4, ans="see T-2"), root())
        run.close()
        assert run.label.verdict == "trusted", order
        head = decode_head(run.store.entries[0][TRACE].head)
        assert head.conflicts > 0


def test_an_unknown_kind_of_arrival_makes_the_label_partial() -> None:
    run = Run(contract())
    run.feed(llm(1, ans="ok"), root())
    assert says(run.feed(Unknown(TRACE, "telepathy"))) == ["unassessed prov"]
    run.close()
    assert run.label.coverage.reasons == ("unknown_arrival",)


def test_a_pin_fixes_a_trajectory_that_has_none_yet() -> None:
    old, new = PolicySet([contract("c", 1)]), PolicySet([contract("c", 2)])
    world = World(old, new)
    world.apply(records(Pin(TRACE, old.digest), llm(1, ans="ok"), root(), policy_set=new))
    world.apply(records(Pin(OTHER, new.digest), first=3, policy_set=old))
    labels = [e.body for e in world.publisher.events if isinstance(e.body, Label)]
    assert {label.policy_set for label in labels} == {old.digest}
    world.apply(records(elsewhere(llm(1, ans="ok")), first=4, policy_set=old))
    last = world.publisher.events[-1].body
    assert (last.trajectory_id, last.policy_set) == (OTHER, new.digest)  # type: ignore[union-attr]


def test_lost_after_the_close_is_late() -> None:
    run = Run(contract())
    run.feed(llm(1, ans="ok"), root())
    run.close()
    assert says(run.feed(Lost(TRACE, "bytes", "t:0:1:0"))) == ["unassessed final"]
    assert run.label.coverage.reasons == ("late", "lost_arrival")


def test_a_late_skeleton_that_changes_nothing_gives_no_revision() -> None:
    run = Run(contract())
    run.feed(llm(1, ans="ok"), root())
    run.close()
    assert run.feed(other(2, parent=ROOT)) == []
    assert says(run.feed(other(3, parent=span_id(99)))) == ["unassessed final"]
    assert says(run.feed(other(4, parent=ROOT, span=span_id(99)))) == ["trusted final"]


def test_a_parent_cycle_is_never_a_run() -> None:
    run = Run(contract())
    run.feed(
        llm(1, ans="ok", span=span_id(1), parent=span_id(2)),
        other(2, span=span_id(2), parent=span_id(1)),
    )
    run.feed(tool(0, "c1", "a", span=span_id(3), parent=span_id(3)))
    run.close("idle")
    assert run.label.verdict == "unassessed"
    assert run.label.coverage.reasons == ("missing_span",)


def test_closes_are_conditional_on_what_their_writer_had_seen() -> None:
    run = Run(contract())
    run.feed(llm(1, ans="ok"), root())
    due = run.closes()
    assert [(c.reason, c.after) for c in due] == [("root_settled", 1)]
    run.feed(llm(1, ans="ok"))  # a duplicate is an arrival too
    assert run.feed(*due) == []
    assert run.label.phase == "provisional"
    again = run.closes()
    assert says(run.feed(*again)) == ["trusted final"]
    assert run.feed(*again) == []
    assert run.closes() == []


# -- policy sets ---------------------------------------------------------------------------------


def test_a_reload_in_mid_run_and_a_crash_across_it_give_what_a_replay_gives() -> None:
    """Ingest stamps records with the new set from the third on; a crash strikes at each effect."""
    old = PolicySet([contract("c", 1, forbidden_tools=["z"])])
    new = PolicySet([contract("c", 2, forbidden_tools=["a"], expected_trajectory=["b"])])
    journal = [
        *records(llm(1, req=[("c1", "a")]), elsewhere(other(1)), policy_set=old),
        *records(
            tool(2, "c1", "a"),
            llm(3, ans="ok"),
            root(),
            elsewhere(llm(4, ans="ok")),
            elsewhere(root()),
            Close(TRACE, "root_settled", 4),
            first=2,
            policy_set=new,
        ),
    ]
    replayed = World(old, new)
    replayed.apply(journal)
    expected = [(e.id, encode(e)) for e in replayed.publisher.events]
    for at in range(60):
        world = World(old, new, fuse=Fuse(at))
        for part in (journal[:1], journal[1:4], journal[4:]):
            while True:
                try:
                    world.apply(part)
                except Crash:
                    continue
                break
        told = [(e.id, encode(e)) for e in world.publisher.events]
        assert list(dict.fromkeys(told)) == expected, at
    assert {e.body.policy_set for e in replayed.publisher.events if isinstance(e.body, Label)} == {
        old.digest
    }


def test_events_carry_the_attributes_and_evidence_that_the_deployment_wants() -> None:
    given: Any = {"attributes": {"deployment.environment": "prod", "host": "h1"}}
    for how, wanted in (("plain", "see T-9"), ("off", None)):
        run = Run(contract(), evidence=how, event_attributes=["deployment.environment"])
        run.feed(llm(1, ans="see T-9", **given), root(**given))
        assert run.violations[0].evidence == wanted
        assert run.violations[0].attributes == {"deployment.environment": "prod"}
        assert run.label.attributes == {"deployment.environment": "prod"}
    hashed = Run(contract(), evidence="hash")
    hashed.feed(llm(1, ans="see T-9"), root())
    evidence = hashed.violations[0].evidence
    assert evidence is not None
    assert len(evidence) == 32
    assert "T-9" not in evidence


def test_no_contract_at_all() -> None:
    run = Run()
    run.feed(llm(1, ans="ok"), root())
    assert run.events == []
    assert says(run.close()) == ["unassessed final"]
    assert run.label.coverage.reasons == ("no_contract",)


def test_a_contract_that_never_matches() -> None:
    run = Run(contract(applies_to={"service": "elsewhere"}))
    run.feed(llm(1, ans="ok"), root())
    run.close()
    assert run.label.contract is None
    assert run.label.coverage.reasons == ("no_contract",)


def test_the_driver_of_tests_lets_no_error_of_the_fold_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        raise_fold_error(TRACE, ZeroDivisionError())


def test_spans_in_reverse_order_cannot_turn_seconds_of_work_into_hours() -> None:
    run = Run(contract(), limits=Limits(max_derived=500))
    run.feed(root())
    for n in range(60, 0, -1):
        run.feed(tool(n, f"c{n}", "a"))
    assert run.label.closed == "step_limit"
    assert run.label.verdict == "unassessed"
    assert run.engine.counters.contents <= 60


def test_a_long_batch_pauses_now_and_then() -> None:
    world = World()
    pauses = 0

    async def pause() -> None:
        nonlocal pauses
        pauses += 1

    engine = world.engine()
    engine.pause = pause
    items = tuple(Observed(tool(n, f"c{n}", "a")) for n in range(100))
    asyncio.run(engine.apply(0, [Record(0, 1_000, EMPTY.digest, items)], epoch=0))
    assert pauses == 7
