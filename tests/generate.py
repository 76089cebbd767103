"""Generated traces: runs of agents as instrumentations report them, whole or with holes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from monitor.model import Message, RequestedCall, ReturnedResult, Span
from tests.traces import ROOT, SECOND, TRACE, span_id

TOOLS = ("a", "b", "update_c", "z")
TEXTS = (
    "ok",
    "see T-1",
    "T-2 has 48 items",
    'it says "hello there"',
    "has been updated",
    "  ",
    "x",
)
RESULTS: tuple[Any, ...] = (
    "T-1",
    {"n": 48, "t": ["hello there"]},
    [],
    "T-2",
    {"k": None, "b": True, "f": 48.0},
)


@dataclass
class Trace:
    """What happened and the spans that tell of it, in the order in which they ended."""

    spans: list[Span] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answer: str = ""


def told_again(draw: st.DrawFn, span: Span, name: str) -> list[Span]:
    """An LLM span that names its response, and perhaps another one that names the same."""
    response = draw(st.sampled_from((f"m{span.start}", "m")))
    span = replace(span, response=response, writer="one")
    how = draw(st.sampled_from(("alone", "hidden", "the same", "another")))
    if how == "alone":
        return [span]
    start = draw(st.sampled_from((span.start - 1, span.start + 1, span.end)))
    again = replace(
        span, span_id=name, start=start, end=start + draw(st.sampled_from((1, SECOND))),
        parent=draw(st.sampled_from((ROOT, span.parent, span.span_id))),
        writer=draw(st.sampled_from(("two", "two", "one"))),
    )  # fmt: skip
    if how == "hidden":
        again = replace(again, inputs=(), outputs=(), unseen={"output": "content_hidden"})
    elif how == "another":
        again = replace(again, outputs=(Message("assistant", draw(st.sampled_from(TEXTS))),))
    return draw(st.permutations([span, again]))


@st.composite
def runs(draw: st.DrawFn, *, plain: bool = False) -> Trace:
    """A run under a root agent. `plain`: no sub-agents, everything shown, every call ran."""
    trace = Trace()
    clock = 0
    number = 0
    ids = 0
    wrapped = draw(st.booleans()) and not plain
    nameless = not plain and draw(st.integers(0, 3)) == 0
    stacked = not plain and draw(st.integers(0, 2)) == 0

    def tick(seconds: int = 1) -> int:
        nonlocal clock
        clock += seconds
        return clock

    def new_span() -> str:
        nonlocal number
        number += 1
        return span_id(number)

    def agent_loop(parent: str, depth: int, user: str) -> str:
        nonlocal ids
        history: tuple[Message, ...] = (Message("user", user),)
        tail: tuple[Message, ...] = ()
        turns = draw(st.integers(0, 3))
        for turn in range(turns + 1):
            here = parent
            if wrapped and draw(st.booleans()):
                here = new_span()
            start = tick()
            calls = []
            if turn < turns:
                for _ in range(draw(st.integers(1, 3))):
                    ids += 1
                    tool = draw(st.sampled_from(TOOLS))
                    arguments = draw(st.sampled_from(({}, {"x": 1}, {"x": "", "y": None})))
                    with_id = plain or draw(st.integers(0, 9)) > 0
                    calls.append((f"c{ids}" if with_id else None, tool, arguments))
            text = draw(st.sampled_from(TEXTS)) if not calls else None
            said = Message(
                "assistant", text, tuple(RequestedCall(t, c, json.dumps(a)) for c, t, a in calls)
            )
            hidden = not plain and draw(st.integers(0, 14)) == 0
            shows = (history[:1] + tail) if tail else history
            ended = tick()
            trace.spans.append(
                Span(TRACE, new_span(), "llm", name="chat", parent=here, start=start * SECOND,
                     end=ended * SECOND, service="svc",
                     inputs=() if hidden else shows, outputs=() if hidden else (said,),
                     unseen={"output": "content_hidden"} if hidden else {})
            )  # fmt: skip
            if stacked:
                trace.spans += told_again(draw, trace.spans.pop(), new_span())
            results = []
            waiting: list[Span] = []
            for call_id, tool, arguments in calls:
                result = draw(st.sampled_from(RESULTS))
                ran = plain or draw(st.integers(0, 9)) > 0
                error = "broke" if draw(st.integers(0, 9)) == 0 else None
                span = new_span()
                begin = tick()
                if not plain and depth == 0 and draw(st.integers(0, 7)) == 0:
                    inner = new_span()
                    begun = tick()
                    prose = agent_loop(inner, depth + 1, "task")
                    result = prose
                    trace.spans.append(
                        Span(TRACE, inner, "agent", name="sub", agent="sub", parent=span,
                             start=begun * SECOND, end=tick() * SECOND, service="svc")
                    )  # fmt: skip
                shown = plain or draw(st.integers(0, 14)) > 0
                if ran:
                    waiting.append(
                        Span(TRACE, span, "tool", name=tool, tool=tool,
                             call_id=call_id if plain or not (nameless or draw(st.integers(0, 9)) == 0)
                             else None,
                             parent=here, start=begin * SECOND, end=tick() * SECOND,
                             service="svc", arguments=json.dumps(arguments) if shown else None,
                             result=json.dumps(result) if shown else None, error=error)
                    )  # fmt: skip
                trace.calls.append(
                    {"tool": tool, "parameters": arguments, "result": result, "error": error,
                     "call_id": call_id}
                )  # fmt: skip
                results.append(ReturnedResult(call_id, tool, json.dumps(result)))
            if draw(st.booleans()):
                waiting.reverse()
            trace.spans += waiting
            tail = (said, Message("tool", None, (), tuple(results))) if calls else ()
            if here != parent:
                trace.spans.append(
                    Span(TRACE, here, "other", name="node", parent=parent, start=start * SECOND,
                         end=tick() * SECOND, service="svc")
                )  # fmt: skip
            if text is not None:
                return text
        raise AssertionError

    trace.answer = agent_loop(ROOT, 0, "please")
    trace.spans.append(
        Span(TRACE, ROOT, "agent", name="desk", agent="desk", start=0, end=tick() * SECOND,
             service="svc")
    )  # fmt: skip
    if not plain and draw(st.integers(0, 5)) == 0:
        # No model is seen: the agents show what they were asked and what they said.
        trace.spans = [
            replace(
                span,
                inputs=(Message("user", "please"),),
                outputs=(Message("assistant", draw(st.sampled_from(TEXTS))),),
            )
            if span.kind == "agent"
            else span
            for span in trace.spans
            if span.kind != "llm"
        ]
    return trace
