"""`agenttrust reparse`: which steps are asked for again, and with which attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from monitor.bench import Bench
from monitor.model import Reading
from monitor.ports import Wanted
from monitor.reading import STEP_KINDS, ParseRequest
from monitor.work import Work
from streams.reparse import Again, again
from tests.traces import TRACE, Run, contract, llm, root, tool

STEPS = ["answer", "tool_result", "message"]


def run(*steps: str, **more: Any) -> Run:
    judged = Run(contract(semantic={"mode": "advisory", "steps": steps or STEPS, **more}))
    judged.feed(llm(1, req=[("c1", "order.get")], user="where is A-17?"),
                tool(2, "c1", "order.get", {"id": "A-17"}), llm(3, ans="A-17 is here"))  # fmt: skip
    return judged


def asked_again(judged: Run, only: Collection[Any] = STEP_KINDS) -> Again:
    async def load() -> Work:
        _, loaded = await judged.store.load(0, {TRACE: Wanted(content=True)})
        return Work(TRACE, loaded[TRACE])

    return again(asyncio.run(load()), Bench(judged.policy_set), 7, only)


def attempts(found: Again) -> dict[str, int]:
    return {request.step: request.attempt for request in found.requests}


def reading(request: ParseRequest, attempt: int, **more: Any) -> Reading:
    return Reading(TRACE, f"r{attempt}", request.step, request.content, parser=request.parser,
                   attempt=attempt, **more)  # fmt: skip


def test_every_kind_of_step_is_asked_for_with_the_next_attempt() -> None:
    judged = run()
    judged.feed(root())
    asked = {request.step: request for request in judged.publisher.requests}
    user = "user:" + f"{1:016x}"
    assert set(asked) == {"answer", "c1", user}
    assert attempts(asked_again(judged)) == {"answer": 2, "c1": 2, user: 2}
    judged.feed(reading(asked["c1"], 2), reading(asked[user], 1, status="unassessed"))
    found = asked_again(judged)
    assert attempts(found) == {"answer": 2, "c1": 3, user: 2}
    assert {one.id for one in found.requests}.isdisjoint(one.id for one in asked.values())
    assert all(one.asked == 7 for one in found.requests)


def test_kinds_can_be_chosen() -> None:
    judged = run()
    judged.feed(root())
    assert attempts(asked_again(judged, ("tool_result",))) == {"c1": 2}
    assert attempts(asked_again(judged, ("answer",))) == {"answer": 2}


def test_without_a_contract_that_asks_it_is_said_why() -> None:
    judged = run("tool_result")
    judged.feed(root())
    assert asked_again(judged, ("answer",)).why == "no contract asks for its answer to be read"
    assert attempts(asked_again(judged)) == {"c1": 2}
    judged = run(sample=0.0)
    judged.feed(root())
    assert asked_again(judged).why == "no contract asks for any such step to be read"


def test_a_run_that_goes_on_is_not_asked_for() -> None:
    assert asked_again(run()).why == "its run is not complete"
