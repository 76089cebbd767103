"""The laws of docs/guarantees.md as properties of the engine on the memory ports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.bench import Bench
from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.extend import extend
from monitor.head import NOT_DERIVED, Head, carry, decode_head, encode_head, new_head, revive
from monitor.index import RECENT, names, span_digest
from monitor.label import Label, Violation, encode
from monitor.memory import Crash, Fuse, MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Arrival, Close, Observed, Record, Span
from monitor.rge import rebuild
from tests import oracle
from tests.generate import Trace, runs
from tests.traces import TRACE, Run, contract, llm, raise_fold_error, root, tool

CONTRACTS = (
    contract("strict", expected_trajectory=["a", "b"], forbidden_tools=["z"]),
    contract(
        "relaxed",
        expected_trajectory=["a", "update_c"],
        trajectory_mode="relaxed",
        forbidden_intermediates=["z"],
        no_repeats=["b"],
        parameter_rules={"a": {"required": ["x"], "forbidden": ["y"]}},
    ),
    contract("guard", grounding="off", allowed_tools=["a", "b", "update_c"]),
    contract("sub", applies_to={"agent": "sub"}, no_repeats=["a"]),
)
SET = PolicySet(CONTRACTS)
BENCH = Bench(SET)
WHOLE = PolicySet(CONTRACTS[:3])
"""Without a contract for one agent, under which an answer is no end of the prefix."""

# Thousands of generated traces: minutes on a machine that does something else as well.
pytestmark = pytest.mark.timeout(900)


def law(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def _records(items: Sequence[Any], cuts: Iterable[int], first: int = 1) -> list[Record]:
    bounds = sorted({cut % (len(items) + 1) for cut in cuts} | {0, len(items)})
    groups = [items[a:b] for a, b in pairwise(bounds)]
    return [
        Record(first + n, 1_000_000 + n, SET.digest, tuple(group))
        for n, group in enumerate(groups)
        if group
    ]


class World:
    """An engine on memory ports, restarted after each crash as a supervisor would."""

    def __init__(self, crash_at: int = -1) -> None:
        self.fuse = Fuse(crash_at)
        self.store = MemoryStore(self.fuse)
        self.publisher = MemoryPublisher(self.fuse)

    def apply(self, records: Sequence[Record]) -> None:
        while True:
            engine = Engine(
                self.store,
                self.publisher,
                MemoryPolicySets(SET, WHOLE),
                on_fold_error=raise_fold_error,
            )
            try:
                asyncio.run(engine.apply(0, records, epoch=1))
            except Crash:
                continue
            return

    @property
    def last(self) -> dict[str, Label]:
        return {
            e.body.contract.name if e.body.contract else "": e.body
            for e in self.publisher.events
            if isinstance(e.body, Label)
        }

    @property
    def standing(self) -> set[tuple[Any, ...]]:
        """Violations raised and not withdrawn, by contract, code, step and tool."""
        found: dict[str, Violation] = {}
        for event in self.publisher.events:
            if isinstance(event.body, Violation):
                found[event.body.id] = event.body
        return {
            (v.contract.name, v.code, v.step, v.tool) for v in found.values() if v.state == "raised"
        }


def fed(spans: Sequence[Span], cuts: Iterable[int] = (), crash_at: int = -1) -> World:
    world = World(crash_at)
    records = _records([Observed(span) for span in spans], cuts)
    for record in records:
        world.apply([record])
    last = records[-1].offset
    world.apply([Record(last + 1, 2_000_000, SET.digest, (Close(TRACE, "idle", last),))])
    return world


def outcome(world: World) -> dict[str, Any]:
    """What law 1 compares: all but revision and `late`."""
    labels = {
        name: (
            label.verdict, label.phase, label.layers, label.steps, sorted(label.violations),
            [reason for reason in label.coverage.reasons if reason != "late"],
            label.agent, label.service, label.conversation_id,
        )
        for name, label in world.last.items()
    }  # fmt: skip
    return {"labels": labels, "violations": world.standing}


@law(300)
@given(runs(), st.data())
def test_law_1_order_batching_and_duplicates_change_nothing(trace: Trace, data: Any) -> None:
    expected = outcome(fed(trace.spans))
    shuffled = data.draw(st.permutations(trace.spans))
    doubled = shuffled + data.draw(st.lists(st.sampled_from(trace.spans), max_size=4))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=5))
    assert outcome(fed(doubled, cuts)) == expected


@law(200)
@given(runs(), st.data())
def test_law_1_spans_after_the_close_lead_to_the_same_label(trace: Trace, data: Any) -> None:
    expected = outcome(fed(trace.spans))
    shuffled = data.draw(st.permutations(trace.spans))
    early = data.draw(st.integers(1, len(shuffled)))
    world = fed(shuffled[:early])
    late: list[Arrival] = [Observed(span) for span in shuffled[early:]]
    offset = world.store.watermarks[0].offset
    # A trajectory without an agent span was forgotten at its close and begins anew; here the
    # spans that came before it come again, as they do when an exporter retries.
    if all(span.kind == "other" for span in shuffled[:early]):
        late = [Observed(span) for span in shuffled]
    for arrival in [*late, Close(TRACE, "idle", 10_000)]:
        offset += 1
        world.apply([Record(offset, 3_000_000 + offset, SET.digest, (arrival,))])
    assert outcome(world) == expected


def _journal(spans: Sequence[Span], close_at: int) -> list[Record]:
    """A record for each span, some of them after the close."""
    arrivals: list[Any] = [Observed(span) for span in spans]
    arrivals.insert(close_at, Close(TRACE, "idle", close_at - 1))
    return [Record(n, 1_000 + n, SET.digest, (arrival,)) for n, arrival in enumerate(arrivals)]


@law(100)
@given(runs(), st.data())
def test_batching_changes_no_event(trace: Trace, data: Any) -> None:
    """The same journal read in other batches gives the same events, byte for byte."""
    spans = data.draw(st.permutations(trace.spans))
    records = _journal(spans, data.draw(st.integers(1, len(spans))))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=6))
    one_by_one, batched = World(), World()
    for record in records:
        one_by_one.apply([record])
    bounds = sorted({cut % (len(records) + 1) for cut in cuts} | {0, len(records)})
    for a, b in pairwise(bounds):
        batched.apply(records[a:b])
    assert _bytes(batched) == _bytes(one_by_one)


def _bytes(world: World) -> list[tuple[str, int, bytes]]:
    return [(event.id, event.time, encode(event)) for event in world.publisher.events]


@law(10)
@given(runs(), st.data())
def test_law_2_a_crash_at_any_effect_loses_nothing_and_repeats_are_identical(
    trace: Trace, data: Any
) -> None:
    spans = data.draw(st.permutations(trace.spans))
    cuts = data.draw(st.lists(st.integers(0, 40), max_size=4))
    whole = fed(spans, cuts)
    expected = dict.fromkeys(_bytes(whole))
    for at in range(whole.fuse.count):
        crashed = fed(spans, cuts, crash_at=at)
        assert dict.fromkeys(_bytes(crashed)) == expected, at
        assert crashed.store.entries == whole.store.entries, at


@law(100)
@given(runs(), st.data())
def test_law_3_a_replay_of_the_journal_equals_live(trace: Trace, data: Any) -> None:
    """Live: batches, a crash, a restart. Replay: all at once from an empty store."""
    spans = data.draw(st.permutations(trace.spans))
    records = _journal(spans, data.draw(st.integers(1, len(spans))))
    live, replay = World(crash_at=data.draw(st.integers(0, 30))), World()
    for record in records:
        live.apply([record])
    replay.apply(records)
    assert list(dict.fromkeys(_bytes(live))) == _bytes(replay)


LAW_4: tuple[dict[str, Any], ...] = (
    {"expected_trajectory": ["a", "b"], "forbidden_tools": ["z"]},
    {"expected_trajectory": ["a", "update_c"], "trajectory_mode": "relaxed", "no_repeats": ["b"]},
    {"forbidden_intermediates": ["z"], "filtered_fields": ["items"]},
    {"allowed_tools": ["a", "b", "update_c"],
     "parameter_rules": {"a": {"required": ["x"], "forbidden": ["y"],
                               "allowed_values": {"x": [1, "ok"]}}}},
)  # fmt: skip


@law(20_000)
@given(runs(plain=True), st.integers(0, len(LAW_4) - 1))
def test_law_4_the_verdict_at_the_close_is_the_papers(trace: Trace, which: int) -> None:
    """Each generated trace under one of four contracts, against the plain transcription."""
    rules = LAW_4[which]
    sets = PolicySet([contract("c", **rules)])
    world = World()
    items = tuple(Observed(span) for span in trace.spans)
    engine = Engine(
        world.store, world.publisher, MemoryPolicySets(sets), on_fold_error=raise_fold_error
    )
    records = [
        Record(0, 1_000, sets.digest, items),
        Record(1, 2_000, sets.digest, (Close(TRACE, "root_settled", 0),)),
    ]
    asyncio.run(engine.apply(0, records, epoch=1))
    label = world.last["c"]
    assert label.phase == "final"
    assert label.coverage.state == "complete", label.coverage
    reason = _paper(trace, rules)
    assert label.verdict == ("trusted" if reason is None else "violated")
    assert (label.violations[0] if label.violations else None) == reason


def _paper(trace: Trace, rules: dict[str, Any]) -> str | None:
    calls = [{"tool": c["tool"], "parameters": c["parameters"]} for c in trace.calls]
    backing = [call for call, c in zip(calls, trace.calls, strict=True) if c["error"] is None]
    results: dict[str, Any] = {}
    for n, c in enumerate(trace.calls):
        results[f"{c['tool']}#{n}"] = (
            c["result"] if c["error"] is None else [c["result"], c["error"]]
        )
    answer = trace.answer
    return (
        oracle.policy({**rules, "mock_trace": {"tool_calls": calls}})
        or oracle.grounding(
            {
                **rules,
                "mock_trace": {
                    "tool_calls": backing,
                    "tool_results": results,
                    "final_answer": answer,
                },
            }
        )
        or oracle.trajectory({**rules, "mock_trace": {"tool_calls": calls}})
    )


@law(300)
@given(runs(), st.data())
def test_law_5_less_content_never_makes_a_label_trusted(trace: Trace, data: Any) -> None:
    before = fed(trace.spans).last
    spans = list(trace.spans)
    index = data.draw(st.integers(0, len(spans) - 1))
    spans[index : index + 1] = data.draw(st.sampled_from(_poorer(spans, index)))
    if not spans:
        return
    after = fed(spans).last
    for name, label in after.items():
        if label.verdict == "trusted":
            assert name in before
            assert before[name].verdict == "trusted"


def _poorer(spans: list[Span], index: int) -> list[list[Span]]:
    """Ways to lose something of a span: its content, or the span when another refers to it."""
    span = spans[index]
    replace = msgspec.structs.replace
    ways = [[span]]
    if span.kind == "tool":
        ways += [
            [replace(span, arguments=None)],
            [replace(span, result=None)],
            [replace(span, result=(span.result or "")[:2], unseen={"result": "content_truncated"})],
            [replace(span, arguments="{", unseen={"arguments": "content_truncated"})],
            [replace(span, result=None, unseen={"result": "attributes_dropped"})],
        ]
    if span.kind == "llm":
        ways += [
            [replace(span, outputs=(), unseen={"output": "content_hidden"})],
            [replace(span, outputs=span.outputs, unseen={"output": "content_truncated"})],
        ]
    if any(_refers(other, span) for other in spans):
        ways.append([])
    return ways


def _refers(one: Span, to: Span) -> bool:
    """By its parent id, by a call id, or by the history that it quotes."""
    if one.span_id == to.span_id:
        return False
    if one.parent == to.span_id:
        return True
    asked = {c.call_id for m in one.outputs for c in m.calls} - {None}
    told = {c.call_id for m in one.inputs for c in m.calls} - {None}
    if to.kind == "tool":
        return to.call_id in asked | told
    return bool(told & {c.call_id for m in to.outputs for c in m.calls})


LEAN = (
    contract("strict", expected_trajectory=["a", "b"], forbidden_tools=["z"]),
    contract("rules", no_repeats=["b"], parameter_rules={"a": {"forbidden": ["y"]}}),
)


def test_law_6_an_in_order_arrival_costs_the_same_at_any_length() -> None:
    """Counted, not timed: bytes saved, round trips and reads of the spans."""
    costs = []
    for earlier in (10, 100, 1_000):
        run = Run(*LEAN)
        run.feed(*(_step(n) for n in range(earlier)))
        store = run.store
        store.loads = store.content_loads = store.bytes_saved = 0
        run.feed(_step(earlier))
        assert store.loads == 1
        assert store.content_loads == 0
        costs.append(store.bytes_saved)
        head = store.entries[0][TRACE].head
        assert len(head) <= 8_192
    assert max(costs) <= 1.05 * min(costs)


def _step(n: int) -> Span:
    return tool(n + 1, f"c{n}", "a", "x" * 1_000)


@law(400)
@given(runs(), st.data())
def test_extending_equals_deriving_anew(trace: Trace, data: Any) -> None:
    """The shortcut for spans in order agrees with the specification, step by step."""
    spans = trace.spans
    if data.draw(st.booleans()):
        i = data.draw(st.integers(0, len(spans) - 1))
        spans = spans[:i] + spans[i + 1 :] + [spans[i]]
    _extend_each(spans, Bench(data.draw(st.sampled_from((SET, WHOLE)))))


def _extend_each(spans: Sequence[Span], bench: Bench) -> None:
    """Whatever a span extends, the stored state is the specification's."""
    head = new_head(TRACE, bench, 0)
    fields: dict[str, bytes] = {}
    known: dict[str, Span] = {}
    digests: dict[str, str] = {}
    for span in spans:
        digest = span_digest(msgspec.msgpack.encode(span))
        asked = {n: fields[n] for n in names(span) if fields.get(n)}
        new = extend(head, span, digest, asked, bench)
        known[span.span_id], digests[span.span_id] = span, digest
        if new is None:
            _, fields = rebuild(head, known, digests, bench)
            continue
        fields = {**fields, **new}
        if not head.agentic:
            continue
        fresh = decode_head(encode_head(head))
        revive(fresh, bench)
        _, derived = rebuild(fresh, known, digests, bench)
        assert {n: d for n, d in fields.items() if d} == derived
        assert msgspec.to_builtins(head) == msgspec.to_builtins(fresh)


@pytest.mark.parametrize("ran_by", [(("a", "c4"), ("b", None)), (("a", "c4"), ("b", "c3"))])
def test_a_repeated_call_id_extends_as_if_derived_anew(ran_by: Any) -> None:
    """Its calls leave the window one by one; tool spans with and without the id run the second."""
    before = llm(1, req=[("c3", "b", {})], user="please")
    again = llm(3, req=[("c4", "a", {}), ("c3", "b", {})], user="please")
    tools = [tool(5 + n, call_id, name) for n, (name, call_id) in enumerate(ran_by)]
    _extend_each([before, tool(2, "c3", "b"), again, *tools, root()], Bench(WHOLE))


def _apart(span: Span) -> list[Span]:
    """An LLM span without its messages, and the log records that tell them."""
    bare = msgspec.structs.replace(
        span, inputs=(), outputs=(), unseen={"input": "content_hidden", "output": "content_hidden"}
    )
    told = Span(
        span.trajectory, f"e{span.span_id[1:]}", "log", parent=span.span_id, start=span.start,
        end=span.end, service=span.service, inputs=span.inputs, outputs=span.outputs,
    )  # fmt: skip
    return [bare, told]


@law(400)
@given(runs(), st.data())
def test_what_logs_tell_extends_as_if_derived_anew(trace: Trace, data: Any) -> None:
    """Log records before, after and far from their spans: the stored state is the specification's."""
    spans: list[tuple[int, Span]] = []
    for n, span in enumerate(trace.spans):
        if span.kind == "llm" and span.outputs and data.draw(st.integers(0, 3)):
            bare, told = _apart(span)
            spans += [(10 * n, bare), (10 * n + data.draw(st.integers(-40, 40)), told)]
        else:
            late = data.draw(st.sampled_from((0, 0, 0, 0, 0, 0, 0, 15, 60)))
            spans.append((10 * n + late, span))
    order = [span for _, span in sorted(spans, key=lambda pair: pair[0])]
    policy_set = data.draw(st.sampled_from((SET, WHOLE, WHOLE)))
    records = [
        Record(n, 1_000_000 + n, policy_set.digest, (Observed(span),))
        for n, span in enumerate(order)
    ]
    bench = Bench(policy_set)
    step = data.draw(st.integers(1, 4))
    world = World()
    for n in range(0, len(records), step):
        world.apply(records[n : n + step])
        entry = world.store.entries[0][TRACE]
        head, fresh = decode_head(entry.head), decode_head(entry.head)
        if not head.agentic:
            continue
        revive(fresh, bench)
        known = {
            name: msgspec.msgpack.decode(raw, type=Span) for name, raw in entry.content.items()
        }
        digests = {name: span_digest(raw) for name, raw in entry.content.items()}
        _, fields = rebuild(fresh, known, digests, bench)
        stored = {name: raw for name, raw in entry.fields.items() if raw and name != RECENT}
        assert stored == fields
        for one, two in zip(head.standings, fresh.standings, strict=True):
            two.grounding = one.grounding
        assert msgspec.to_builtins(head) == msgspec.to_builtins(decode_head(encode_head(fresh)))


@given(runs(plain=True))
@settings(max_examples=5, deadline=None)
def test_every_part_of_the_head_follows_from_the_spans_or_is_carried(trace: Trace) -> None:
    """A field that is neither would be lost where an earlier state is extended again."""
    head = new_head(TRACE, BENCH, 0)
    kept = {"trajectory", "policy_set", "first", "standings", "print", *NOT_DERIVED}
    derived = set(Head.__struct_fields__) - kept
    for name in derived:
        setattr(head, name, ...)
    spans = {span.span_id: span for span in trace.spans}
    digests = {i: span_digest(msgspec.msgpack.encode(span)) for i, span in spans.items()}
    rebuild(head, spans, digests, BENCH)
    assert not {name for name in derived if getattr(head, name) is ...}
    carried = new_head(TRACE, BENCH, 0)
    for name in NOT_DERIVED:
        setattr(head, name, ...)
    carry(head, carried)
    assert all(getattr(carried, name) is ... for name in NOT_DERIVED)
