"""Synthetic traces: spans, arrivals and a driver that folds them on the memory ports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from monitor.contract import Contract, Limits, PolicySet
from monitor.engine import Engine
from monitor.label import Event, Label, Violation
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import (
    Arrival,
    Close,
    CloseReason,
    Message,
    Observed,
    Record,
    RequestedCall,
    ReturnedResult,
    Span,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"
SECOND = 1_000_000_000
ROOT = "f000000000000001"


def span_id(number: int) -> str:
    return f"{number:016x}"


def root(name: str | None = "desk", *, span: str = ROOT, start: int = 0, **more: Any) -> Span:
    """An agent span without a parent."""
    given = {"service": "svc", "end": 1_000 * SECOND, **more}
    return Span(TRACE, span, "agent", name=f"invoke_agent {name}", agent=name,
                start=start * SECOND, **given)  # fmt: skip


def llm(
    at: int,
    *,
    req: Sequence[tuple[str, str] | tuple[str, str, Any]] = (),
    ans: str | None = None,
    history: Sequence[tuple[str, str, Any]] = (),
    user: str | None = None,
    **more: Any,
) -> Span:
    """A chat span starting in second `at`. `req`: (call id, tool[, arguments]);
    `history`: (call id, tool, result) of the turn before."""
    calls = tuple(RequestedCall(r[1], r[0], json.dumps(r[2]) if len(r) > 2 else None) for r in req)
    said = () if ans is None and not calls else (Message("assistant", ans, calls),)
    inputs: tuple[Message, ...] = () if user is None else (Message("user", user),)
    if history:
        inputs += (
            Message("assistant", None, tuple(RequestedCall(t, c) for c, t, _ in history)),
            Message("tool", None, (), tuple(
                ReturnedResult(c, t, r if isinstance(r, str) else json.dumps(r))
                for c, t, r in history)),
        )  # fmt: skip
    given = {"parent": ROOT, "service": "svc", "end": (at + 1) * SECOND, **more}
    return Span(TRACE, given.pop("span", span_id(at)), "llm", name="chat", start=at * SECOND,
                inputs=inputs, outputs=said, **given)  # fmt: skip


def tool(at: int, call_id: str | None, name: str, result: Any = "ok", **more: Any) -> Span:
    """A tool span. `arguments` as JSON text; `result` None: not shown."""
    given: dict[str, Any] = {"parent": ROOT, "service": "svc", "arguments": "{}",
                             "end": (at + 1) * SECOND, **more}  # fmt: skip
    text = result if isinstance(result, str) or result is None else json.dumps(result)
    return Span(TRACE, given.pop("span", span_id(at)), "tool", name=f"execute_tool {name}",
                tool=name, call_id=call_id, result=text, start=at * SECOND, **given)  # fmt: skip


def other(at: int, *, parent: str | None = None, **more: Any) -> Span:
    given = {"service": "svc", "end": (at + 1) * SECOND, **more}
    return Span(TRACE, given.pop("span", span_id(at)), "other", name="POST /", parent=parent,
                start=at * SECOND, **given)  # fmt: skip


def contract(name: str = "c", version: int = 1, **rules: Any) -> Contract:
    return Contract.model_validate({"contract": name, "version": version, **rules})


def raise_fold_error(_trajectory: str, error: Exception) -> None:
    """No test but the one of it lets an error of the fold pass as a verdict."""
    raise error


class Run:
    """One trajectory fed arrival by arrival; after each, what was published."""

    def __init__(self, *contracts: Contract, limits: Limits | None = None, **more: Any) -> None:
        self.policy_set = PolicySet(contracts, limits, **more)
        self.store = MemoryStore()
        self.publisher = MemoryPublisher()
        self.sets = MemoryPolicySets(self.policy_set)
        self.engine = Engine(self.store, self.publisher, self.sets, on_fold_error=raise_fold_error)
        self.offset = 0
        self.time = 1_000_000
        self.last_arrival = 0
        self.arrivals: list[tuple[int, Arrival]] = []

    @property
    def events(self) -> list[Event]:
        return self.publisher.events

    def feed(self, *arrivals: Arrival | Span) -> list[Event]:
        """Folds arrivals in one record; returns the events that they caused."""
        before = len(self.events)
        self.offset += 1
        self.time += 1_000
        items = tuple(Observed(a) if isinstance(a, Span) else a for a in arrivals)
        record = Record(self.offset, self.time, self.policy_set.digest, items)
        asyncio.run(self.engine.apply(0, [record], epoch=1))
        if any(not isinstance(item, Close) for item in items):
            self.last_arrival = self.offset
        return self.events[before:]

    def close(self, reason: CloseReason = "root_settled") -> list[Event]:
        return self.feed(Close(TRACE, reason, self.last_arrival))

    def closes(self) -> list[Close]:
        """Closes that the engine would write if no more arrived for a day."""
        return asyncio.run(self.engine.closes(0, self.time + 86_400_000))

    @property
    def labels(self) -> list[Label]:
        return [e.body for e in self.events if isinstance(e.body, Label)]

    @property
    def label(self) -> Label:
        return self.labels[-1]

    @property
    def violations(self) -> list[Violation]:
        return [e.body for e in self.events if isinstance(e.body, Violation)]


def says(events: Iterable[Event]) -> list[str]:
    """`+CODE`, `-CODE` and `verdict phase` of events, in order, for assertions."""
    out = []
    for event in events:
        body = event.body
        if isinstance(body, Violation):
            out.append(("+" if body.state == "raised" else "-") + body.code.split("_", 1)[1])
        else:
            out.append(f"{body.verdict} {'final' if body.phase == 'final' else 'prov'}")
    return out
