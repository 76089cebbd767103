"""A synthetic fleet for benchmarks: runs of thirty spans, three labels each, in the order in which
an agent's exporter sends them. Seeded by nothing: the same spans every time."""

from __future__ import annotations

import json
from collections.abc import Iterator

from monitor.model import Message, RequestedCall, ReturnedResult, Span
from tests.traces import SECOND

TURNS = 14
SPANS = 2 * TURNS + 2
RESULT = json.dumps({"ticket_id": "T-1", "status": "open", "text": "word " * 40})


def run(number: int) -> Iterator[Span]:
    """One agent's run: turns with one tool call each, the answer, the root."""
    trajectory = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}{number:016x}"
    root = f"{number:08x}ffffffff"
    at = 1_700_000_000 * SECOND

    def name(index: int) -> str:
        return f"{number:08x}{index:08x}"

    tail: tuple[Message, ...] = ()
    user = Message("user", "what is the state of T-1?")
    for turn in range(TURNS):
        call_id = f"call-{number}-{turn}"
        call = RequestedCall("get_ticket", call_id, '{"ticket_id":"T-1"}')
        said = Message("assistant", None, (call,))
        yield Span(
            trajectory, name(2 * turn), "llm", "chat", root, start=at, end=at + SECOND,
            agent="desk", service="desk", inputs=(user, *tail), outputs=(said,),
        )  # fmt: skip
        yield Span(
            trajectory, name(2 * turn + 1), "tool", "execute_tool get_ticket", root,
            start=at + SECOND, end=at + 2 * SECOND, agent="desk", service="desk",
            tool="get_ticket", call_id=call_id, arguments='{"ticket_id":"T-1"}', result=RESULT,
        )  # fmt: skip
        tail = (said, Message("tool", None, (), (ReturnedResult(call_id, "get_ticket", RESULT),)))
        at += 3 * SECOND
    yield Span(
        trajectory, name(2 * TURNS), "llm", "chat", root, start=at, end=at + SECOND, agent="desk",
        service="desk", inputs=(user, *tail), outputs=(Message("assistant", "T-1 is open"),),
    )  # fmt: skip
    yield Span(
        trajectory, root, "agent", "invoke_agent desk", start=1_700_000_000 * SECOND - 1,
        end=at + 2 * SECOND, agent="desk", service="desk",
    )  # fmt: skip


def interleaved(runs: int, *, width: int = 20) -> Iterator[Span]:
    """Spans of `runs` runs, `width` of them under way at a time."""
    for first in range(0, runs, width):
        group = [list(run(number)) for number in range(first, min(first + width, runs))]
        for index in range(SPANS):
            for spans in group:
                yield spans[index]
