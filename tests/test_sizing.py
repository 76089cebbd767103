"""The table of docs/operations.md that says what a finished trajectory takes in Redis."""

from __future__ import annotations

import asyncio
import re
import secrets

import pytest
import redis

from monitor.contract import PolicySet
from monitor.engine import Engine
from monitor.memory import MemoryPolicySets, MemoryPublisher
from monitor.model import Close, Message, Observed, Record, RequestedCall, ReturnedResult, Span
from streams.store import RedisStore
from tests.services import ROOT, redis_server_url  # noqa: F401
from tests.traces import SECOND, contract

TRAJECTORIES = 25


def run(number: int, calls: int, result_bytes: int):
    """Spans of a run as instrumentations report it: each LLM span repeats the result before it."""
    # Random, as text is to a store that does not compress; the same length in each run.
    trace = f"{number:08x}{secrets.token_hex(12)}"
    root, at, tail = f"{number:08x}ffffffff", 0, ()
    user = Message("user", "what is the state of T-1?")
    for n in range(calls):
        result = secrets.token_hex(result_bytes // 2)
        call = RequestedCall("get_ticket", f"call_{secrets.token_hex(12)}", '{"ticket_id": "T-1"}')
        said = Message("assistant", None, (call,))
        yield Span(
            trace, f"{number:08x}{2 * n:08x}", "llm", "chat", root, start=at * SECOND,
            end=(at + 1) * SECOND, service="desk", inputs=(user, *tail), outputs=(said,),
        )  # fmt: skip
        yield Span(
            trace, f"{number:08x}{2 * n + 1:08x}", "tool", "execute_tool get_ticket", root,
            start=(at + 1) * SECOND, end=(at + 2) * SECOND, service="desk", tool="get_ticket",
            call_id=call.call_id, arguments=call.arguments, result=result,
        )  # fmt: skip
        returned = ReturnedResult(call.call_id, "get_ticket", result)
        tail = (said, Message("tool", None, (), (returned,)))
        at += 2
    yield Span(
        trace, f"{number:08x}fffffffe", "llm", "chat", root, start=at * SECOND,
        end=(at + 1) * SECOND, service="desk", inputs=(user, *tail),
        outputs=(Message("assistant", "The ticket is open."),),
    )  # fmt: skip
    yield Span(
        trace, root, "agent", "invoke_agent desk", start=0, end=(at + 2) * SECOND, agent="desk",
        service="desk",
    )  # fmt: skip


async def stored(url: str, calls: int, result_bytes: int) -> float:
    """Bytes of Redis memory that a finished trajectory takes, of many."""
    policy = PolicySet([contract("desk", allowed_tools=["get_ticket"])])
    store = await RedisStore.connect(url, prefix=secrets.token_hex(4), partitions=1, ttl=9_000)
    client = redis.Redis.from_url(url)
    try:
        engine = Engine(store, MemoryPublisher(), MemoryPolicySets(policy))
        client.flushdb()
        before = client.info("memory")["used_memory"]
        offset = 0
        for number in range(TRAJECTORIES):
            for span in run(number, calls, result_bytes):
                record = Record(offset, offset, policy.digest, (Observed(span),))
                await engine.apply(0, [record], epoch=1)
                offset += 1
            close = Close(span.trajectory, "root_settled", offset - 1)
            await engine.apply(0, [Record(offset, offset, policy.digest, (close,))], epoch=1)
            offset += 1
        assert not await store.due(0, 2**53, 1), "all are finished"
        return (client.info("memory")["used_memory"] - before) / TRAJECTORIES
    finally:
        client.close()
        await store.close()


def table() -> list[tuple[int, int, int]]:
    """(tool calls, bytes of a result, kilobytes in Redis) of each row of the page."""
    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| (\d+) B \| ([\d ]+) kB \|$", text, re.MULTILINE)
    return [(int(calls), int(size), int(kb.replace(" ", ""))) for calls, size, kb in rows]


def test_the_page_has_rows():
    assert len(table()) >= 4


@pytest.mark.services
@pytest.mark.parametrize(("calls", "result_bytes", "kilobytes"), [r for r in table() if r[0] < 200])
def test_a_finished_trajectory_takes_what_the_page_says(
    redis_server_url,  # noqa: F811
    calls,
    result_bytes,
    kilobytes,
):
    measured = asyncio.run(stored(redis_server_url, calls, result_bytes)) / 1000
    assert 0.7 * kilobytes <= measured <= 1.15 * kilobytes, f"{measured:.1f} kB"
