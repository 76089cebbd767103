"""A run of 200 turns whose every model call repeats the history costs what is new in it.

Journal bytes are linear in the distinct messages, and so is the fold; only decoding is linear in the
bytes received.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.index import RECENT
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import Message, Observed, Record, RequestedCall, ReturnedResult, Span
from monitor.prefix import derive
from monitor.semconv import RawEvent, RawLog, RawSpan, normalise
from monitor.semconv.logs import normalise_logs
from tests.services import ROOT
from tests.traces import contract

TRACE = "ab" * 16
TURNS = 200
RESULT = "x" * 400


def history(turns: int) -> Iterator[dict[str, Any]]:
    """Chat messages before the turn of this number."""
    yield {"role": "system", "content": "Be brief."}
    yield {"role": "user", "content": "Count to 200."}
    for n in range(turns):
        function = {"name": "count", "arguments": json.dumps({"n": n})}
        yield {
            "role": "assistant",
            "tool_calls": [{"id": f"c{n}", "type": "function", "function": function}],
        }
        yield {"role": "tool", "tool_call_id": f"c{n}", "content": f"{n} {RESULT}"}


def span(turn: int, attributes: dict[str, Any], **more: Any) -> Span:
    return normalise(
        RawSpan(
            TRACE,
            f"{turn + 1:016x}",
            parent="f" * 16,
            start=turn,
            end=turn + 1,
            attributes=attributes,
            **more,
        )
    )


def attributes(turn: int) -> Span:
    messages = json.dumps(list(history(turn)))
    return span(turn, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": messages})


def flattened(turn: int) -> Span:
    found: dict[str, Any] = {"openinference.span.kind": "LLM"}
    for n, message in enumerate(history(turn)):
        before = f"llm.input_messages.{n}.message"
        for key, value in message.items():
            if key == "tool_calls":
                at = f"{before}.tool_calls.0.tool_call"
                found[f"{at}.id"] = value[0]["id"]
                found[f"{at}.function.name"] = "count"
                found[f"{at}.function.arguments"] = value[0]["function"]["arguments"]
            else:
                found[f"{before}.{key}"] = value
    return span(turn, found)


def ai_sdk(turn: int) -> Span:
    messages = json.dumps(list(history(turn)))
    operation = "ai.generateText.doGenerate"
    return span(turn, {"ai.operationId": operation, "ai.prompt.messages": messages})


def _event(message: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"gen_ai.{message['role']}.message", {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in message.items()
    }


def events(turn: int) -> Span:
    found = tuple(RawEvent(*_event(message)) for message in history(turn))
    return span(turn, {"gen_ai.operation.name": "chat"}, events=found)


def records(turn: int) -> Span:
    told = [
        RawLog(TRACE, f"{turn + 1:016x}", f"gen_ai.{m['role']}.message", n + 1, m)
        for n, m in enumerate(history(turn))
    ]
    return next(normalise_logs(told))


@pytest.mark.parametrize("write", [attributes, flattened, ai_sdk, events, records])
def test_journal_bytes_grow_with_what_is_new(write: Callable[[int], Span]) -> None:
    encode = msgspec.msgpack.encode
    sizes = [len(encode(Observed(write(turn)))) for turn in (100, 199)]
    assert sizes[1] < 1.1 * sizes[0]
    last = write(199)
    assert last.omitted is not None
    assert [message.role for message in last.inputs] == ["system", "user", "assistant", "tool"]
    assert last.inputs[-1].results[0].result == f"198 {RESULT}"


def _run(turns: int, order: str) -> Iterator[Span]:
    """A run of which log records tell the messages, under an agent that ends last."""
    root = "f" * 16
    for turn in range(turns):
        model, tool = (f"{2 * turn + n:016x}" for n in (1, 2))
        asked = list(history(turn + 1))[-2]
        told = [(f"gen_ai.{message['role']}.message", message) for message in history(turn)]
        told.append(("gen_ai.choice", {"index": 0, "message": asked}))
        log = next(normalise_logs(RawLog(TRACE, model, name, 10 * turn + 2, m) for name, m in told))
        chat = {"gen_ai.operation.name": "chat"}
        llm = _span(model, root, 10 * turn, 10 * turn + 3, chat)
        executed = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "count",
            "gen_ai.tool.call.id": f"c{turn}",
            "gen_ai.tool.call.arguments": json.dumps({"n": turn}),
            "gen_ai.tool.call.result": f"{turn} {RESULT}",
        }
        ran = _span(tool, root, 10 * turn + 4, 10 * turn + 5, executed)
        yield from {"before": (log, llm, ran), "after": (llm, log, ran), "late": (llm, ran, log)}[
            order
        ]
    yield _span(root, None, 0, 10 * turns, {"gen_ai.operation.name": "invoke_agent"})


def _span(span_id: str, parent: str | None, start: int, end: int, told: dict[str, Any]) -> Span:
    return normalise(RawSpan(TRACE, span_id, parent=parent, start=start, end=end, attributes=told))


@pytest.mark.parametrize("order", ["before", "after", "late"])
def test_a_run_told_by_log_records_is_not_derived_for_each(order: str) -> None:
    policy_set = PolicySet([contract("path", expected_trajectory=["count"], grounding="off")])
    store, publisher = MemoryStore(), MemoryPublisher()
    engine = Engine(store, publisher, MemoryPolicySets(policy_set))
    for n, found in enumerate(_run(TURNS, order)):
        record = Record(n, n, policy_set.digest, (Observed(found),))
        asyncio.run(engine.apply(0, [record], epoch=1))
    assert engine.counters.derived <= 4
    assert store.content_loads <= 4
    prefix = asyncio.run(engine.prefix(0, TRACE))
    assert [call.call_id for call in prefix.calls] == [f"c{n}" for n in range(TURNS)]
    assert all(call.requested and call.executed for call in prefix.calls)


@pytest.mark.parametrize("write", ["flattened", "attributes", "ai_sdk", "events", "records"])
def test_a_span_is_the_same_bytes_in_every_process(write: str) -> None:
    """What is left out is named by a digest, which may rest on no order of a set."""
    code = (
        "import msgspec, tests.test_linear_history as t;"
        f"print(msgspec.msgpack.encode(t.{write}(50)).hex())"
    )
    written = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True,
        ).stdout
        for seed in ("0", "1", "2")
    }  # fmt: skip
    assert len(written) == 1


@pytest.mark.parametrize("order", ["before", "after", "late"])
def test_what_is_kept_beside_a_run_does_not_grow_with_it(order: str) -> None:
    policy_set = PolicySet([contract("path", expected_trajectory=["count"], grounding="off")])
    store = MemoryStore()
    engine = Engine(store, MemoryPublisher(), MemoryPolicySets(policy_set))
    sizes = []
    for n, found in enumerate(_run(TURNS, order)):
        record = Record(n, n, policy_set.digest, (Observed(found),))
        asyncio.run(engine.apply(0, [record], epoch=1))
        sizes.append(len(store.entries[0][TRACE].fields.get(RECENT, b"")))
    middle = len(sizes) // 2
    assert 0 < max(sizes[middle:-1]) <= max(sizes[:middle])


def test_a_request_without_an_id_keeps_none_whatever_a_history_calls_it() -> None:
    """Else a tool span with that id would join it where it arrives last, and not where it came first."""
    asked = RequestedCall("count", None, '{"n": 1}')
    quoted = RequestedCall("count", "c1", '{"n": 1}')
    told = (
        Message("assistant", None, (quoted,)),
        Message("tool", None, (), (ReturnedResult("c1"),)),
    )
    first = Span(TRACE, "1" * 16, "llm", end=1, outputs=(Message("assistant", None, (asked,)),))
    second = Span(TRACE, "2" * 16, "llm", start=5, end=6, inputs=told)
    (call,) = derive({span.span_id: span for span in (first, second)}).calls
    assert call.call_id is None
