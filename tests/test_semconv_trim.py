from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.model import Message
from monitor.semconv.trim import JsonHistory, trim

S, U, V = ("system", "s"), ("user", "u"), ("user", "v")


def message(role: str, what: str) -> dict:
    if what.startswith("c"):
        part = {"type": "tool_call", "id": what, "name": "t", "arguments": {}}
    elif what.startswith("r"):
        part = {"type": "tool_call_response", "id": what, "response": "x"}
    else:
        part = {"type": "text", "content": what}
    return {"role": role, "parts": [part]}


def history(*messages: tuple[str, str]) -> JsonHistory:
    return JsonHistory([msgspec.Raw(json.dumps(message(*m)).encode()) for m in messages])


def names(messages: tuple[Message, ...]) -> str:
    found = []
    for m in messages:
        found += [c.call_id for c in m.calls] + [r.call_id for r in m.results]
        found += [m.text] if m.text is not None else []
    return " ".join(found)


A = ("assistant", "a")


def call(n: int) -> tuple[str, str]:
    return ("assistant", f"c{n}")


def result(n: int, role: str = "tool") -> tuple[str, str]:
    return (role, f"r{n}")


@pytest.mark.parametrize(
    ("messages", "kept", "at", "count"),
    [
        ([], "", 0, 0),
        ([U], "u", 0, 0),
        ([S, U], "s u", 0, 0),
        ([S, U, V], "s u v", 0, 0),  # no answer yet: all that was said counts
        ([S, U, call(1), result(1)], "s u c1 r1", 0, 0),
        ([S, U, call(1), result(1), call(2), result(2)], "s u c2 r2", 2, 2),
        ([S, U, call(1), result(1), call(2), result(2), result(3)], "s u c2 r2 r3", 2, 2),
        ([S, U, call(1), result(1, "user"), call(2), result(2, "user")], "s u c2 r2", 2, 2),
        ([U, call(1), result(1), call(2), call(3), result(2)], "u c2 c3 r2", 1, 2),
        ([U, A, V, call(1), result(1)], "u c1 r1", 1, 2),
        ([U, A, V], "u a v", 0, 0),  # the user spoke: what precedes is context
        ([U, A, V, result(1)], "u a v r1", 0, 0),
        ([S, S, U, call(1), result(1)], "s u c1 r1", 2, 1),
        ([call(1), result(1), call(2), result(2)], "c2 r2", 0, 2),
        ([A, U, call(1), result(1)], "u c1 r1", 1, 1),
        ([U, A], "u a", 0, 0),
    ],
)
def test_what_is_kept(messages, kept, at, count):
    found, omitted, unseen = trim(history(*messages))
    assert (names(found), unseen) == (kept, None)
    assert (omitted and (omitted.at, omitted.count)) == ((at, count) if count else None)


def test_a_span_without_parent_keeps_everything():
    messages = [S, U, call(1), result(1), call(2), result(2)]
    found, omitted, _ = trim(history(*messages), everything=True)
    assert names(found) == "s u c1 r1 c2 r2"
    assert omitted is None


def test_instructions_beside_the_history_are_its_first_message():
    messages = [S, U, call(1), result(1), call(2), result(2)]
    found, omitted, _ = trim(history(*messages), system=Message("system", "I"))
    assert names(found) == "I u c2 r2"
    assert (omitted.at, omitted.count) == (2, 3)


def test_the_digest_tells_omitted_histories_apart():
    tail = [call(8), result(8)]
    found = {
        trim(history(S, U, *middle, *tail))[1].digest
        for middle in ([call(1), result(1)], [call(2), result(2)], [call(1), result(2)], [A, V])
    }
    assert len(found) == 4


@given(st.lists(st.sampled_from([S, U, V, A, call(1), result(1), result(1, "user")]), max_size=12))
def test_nothing_after_the_last_answer_is_ever_left_out(messages):
    whole, _, _ = trim(history(*messages), everything=True)
    found, omitted, _ = trim(history(*messages))
    assert len(found) + (omitted.count if omitted else 0) == len(messages)
    last = max((i for i, m in enumerate(whole) if m.role == "assistant"), default=0)
    assert found[len(found) - len(whole[last:]) :] == whole[last:]
    for role in ("system", "user"):
        first = next((m for m in whole if m.role == role), None)
        assert first is None or first in found or role == "system"


def test_a_long_history_costs_a_scan_and_not_a_reading():
    long = [S, U]
    for n in range(2000):
        long += [call(n), result(n)]
    found = history(*long)
    reads = 0

    class Counted(JsonHistory):
        def read(self, index):
            nonlocal reads
            reads += 1
            return super().read(index)

    kept, omitted, _ = trim(Counted(found._items))
    assert (len(kept), omitted.count) == (4, 3998)
    assert reads == 4
