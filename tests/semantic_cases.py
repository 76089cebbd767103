"""Answers with the evidence that they were given, from a file to spans, through an LLM, to labels.

A case is a JSON line: `trajectory_id`, `supported`, `user`, `steps` (tool, arguments, result or
error) and `answer`; what `agenttrust judge report --humans` reads is a part of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fakeredis
from redis.exceptions import RedisError

from monitor.contract import Contract, PolicySet
from monitor.engine import Engine
from monitor.label import Label
from monitor.memory import MemoryPolicySets, MemoryPublisher, MemoryStore
from monitor.model import (
    Arrival,
    Close,
    Message,
    Observed,
    Reading,
    Record,
    RequestedCall,
    Span,
)
from streams.batches import Batches, Cut
from streams.dead_letters import DeadLetters
from streams.events import Message as Sent
from streams.journal import decode
from streams.llm import Config, Llm
from streams.parse import Parse
from streams.reading_cache import ReadingCache
from streams.requests import RequestWriter
from streams.spending import Budget, Limits
from streams.topic_log import Raw
from tests.traces import raise_fold_error

REVIEWED = Path(__file__).parent / "data" / "reviewed.jsonl"
_SECOND = 1_000_000_000


def read_cases(path: Path = REVIEWED) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def spans(case: dict[str, Any]) -> list[Span]:
    """A run: each step requested by a turn and run by a tool span, then the answer, then the root."""
    trace, root = case["trajectory_id"], "f" * 16
    found: list[Span] = []

    def turn(at: int, said: Message, user: str | None) -> None:
        heard = () if user is None else (Message("user", user),)
        found.append(
            Span(trace, f"{2 * at:016x}", "llm", "chat", root, start=2 * at * _SECOND,
                 end=(2 * at + 1) * _SECOND, service="svc", inputs=heard, outputs=(said,))
        )  # fmt: skip

    user = case.get("user")
    for at, step in enumerate(case["steps"], 1):
        arguments = json.dumps(step["arguments"])
        call = RequestedCall(step["tool"], f"c{at}", arguments)
        turn(at, Message("assistant", None, (call,)), user if at == 1 else None)
        result = step.get("result")
        found.append(
            Span(trace, f"{2 * at + 1:016x}", "tool", "t", root, start=(2 * at + 1) * _SECOND,
                 end=(2 * at + 2) * _SECOND, service="svc", tool=step["tool"], call_id=f"c{at}",
                 arguments=arguments, error=step.get("error"),
                 result=result if isinstance(result, str) or result is None else json.dumps(result))
        )  # fmt: skip
    last = len(case["steps"]) + 1
    turn(last, Message("assistant", case["answer"]), user if last == 1 else None)
    found.append(Span(trace, root, "agent", "a", None, start=0, end=999 * _SECOND, agent="a",
                      service="svc"))  # fmt: skip
    return found


class Judged:
    """Cases through fold, role `parse` and fold again, in one process."""

    def __init__(self, contract: Contract, config: Config, cut: Cut) -> None:
        self.set = PolicySet([contract])
        self.publisher = MemoryPublisher()
        self.engine = Engine(
            MemoryStore(), self.publisher, MemoryPolicySets(self.set),
            on_fold_error=raise_fold_error,
        )  # fmt: skip
        self.config = config
        self.cut = cut
        self.offset = 0
        self.written: list[Sent] = []
        self.counts: dict[str, int] = {}

    async def latest(self) -> str:
        return self.set.digest

    async def send(self, messages: Sequence[Sent]) -> list[int]:
        self.written += messages
        return []

    async def fold(self, arrivals: Sequence[Arrival]) -> None:
        self.offset += 1
        record = Record(self.offset, 1_000_000, self.set.digest, tuple(arrivals))
        await self.engine.apply(0, [record], epoch=1)

    async def run(self, cases: Sequence[dict[str, Any]]) -> None:
        for case in cases:
            await self.fold([Observed(span) for span in spans(case)])
            await self.fold([Close(case["trajectory_id"], "root_settled", self.offset)])
        await self.read()
        for reading in self.readings:
            await self.fold([reading])

    async def read(self) -> None:
        redis = fakeredis.FakeAsyncRedis()
        async with Llm(self.config) as llm:
            role = Parse(
                topic="parse", journal="journal", partitions=1, llm=llm,
                cache=ReadingCache(redis, prefix="x", ttl=60, failures=(RedisError,)),
                budget=Budget(redis, prefix="x", everyone=Limits(), service=Limits(),
                              failures=(RedisError,)),
                batches=Batches(llm, {}, self.cut), expired=300, policy_sets=self, sender=self,
                dead_letters=DeadLetters("d", partitions=1, max_bytes=9_999, halt=10),
                clock=lambda: 1_000.0,
            )  # fmt: skip
            writer = RequestWriter("parse", 1)
            await role.handle(
                [Raw(0, n, 1, writer.message(r).value)
                 for n, r in enumerate(self.publisher.requests)]
            )  # fmt: skip
            self.counts = dict(role.counts)

    @property
    def readings(self) -> list[Reading]:
        return [
            a for m in self.written for a in decode(m.value, m.partition, 1).arrivals
            if isinstance(a, Reading)
        ]  # fmt: skip

    @property
    def labels(self) -> list[Label]:
        """The last label of each trajectory."""
        return list(
            {e.trajectory: e.body for e in self.publisher.events
             if isinstance(e.body, Label)}.values()
        )  # fmt: skip


def judge(cases: Sequence[dict[str, Any]], contract: Contract, config: Config, cut: Cut) -> Judged:
    judged = Judged(contract, config, cut)
    asyncio.run(judged.run(cases))
    return judged
