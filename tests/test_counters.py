"""What the engine counts of its own work, for metrics."""

from __future__ import annotations

import asyncio

import msgspec

from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Close, Lost, Record
from tests.test_engine import records
from tests.traces import TRACE, contract, llm, root, tool

FORBIDS = PolicySet([contract(forbidden_tools=("b",), grounding="off")])


def world() -> tuple[Engine, MemoryPublisher]:
    publisher = MemoryPublisher()
    return Engine(MemoryStore(), publisher, MemoryPolicySets(FORBIDS)), publisher


def given(*arrivals: object, first: int = 0) -> list[Record]:
    return records(*arrivals, first=first, policy_set=FORBIDS)


def test_arrivals_events_and_closes_are_counted() -> None:
    engine, publisher = world()
    step, answer = tool(1, "c1", "b"), llm(2, ans="ok")
    run = given(step, step, answer, root(), Close(TRACE, "root_settled", 3), Lost(TRACE, "r", "s"))
    asyncio.run(engine.apply(0, run, epoch=0))
    counters = engine.counters
    assert counters.arrivals == {"span": 4, "close": 1, "lost": 1}
    assert counters.duplicates == 1
    assert counters.extended + counters.derived >= 3
    assert counters.closed == {"root_settled": 1}
    assert counters.violations == {("POLICY_TOOL_FORBIDDEN", "raised"): 1}
    assert sum(counters.labels.values()) + 1 == len(publisher.events)
    assert counters.fold_errors == counters.conflicts == counters.ignored == 0


def test_what_is_folded_silently_is_counted_apart_and_publishes_nothing() -> None:
    engine, _ = world()
    asyncio.run(engine.apply(0, given(tool(1, "c1", "b"), root()), epoch=0, silent=True))
    assert engine.counters.refolded == 2
    assert not engine.counters.arrivals
    assert not engine.counters.labels


def test_conflicts_errors_and_what_comes_after_them_are_counted(monkeypatch) -> None:
    engine, _ = world()
    step = tool(1, "c1", "b")
    other = msgspec.structs.replace(step, end=step.end + 5)
    asyncio.run(engine.apply(0, given(step, other), epoch=0))
    assert engine.counters.conflicts == 1

    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("monitor.fold._add", explode)
    asyncio.run(engine.apply(0, given(llm(2, ans="ok"), root(), first=2), epoch=0))
    assert engine.counters.fold_errors == 1
    assert engine.counters.closed == {"fold_error": 1}
    assert engine.counters.ignored == 1
