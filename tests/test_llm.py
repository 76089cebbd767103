"""The LLM client against a scripted server: each way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from monitor.reading import batch_schema
from streams.llm import Breaker, Config, Failed, Llm, Reply, retry_after
from tests.llm_server import Asked, LlmServer, Script, completion, never, refusal

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


class Slept:
    """Waits that took no time."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


def ask(script: Script, **config: Any) -> tuple[Reply | Failed, LlmServer, Llm, list[float]]:
    deadline = config.pop("deadline", 5.0)
    slept = Slept()

    async def run() -> tuple[Reply | Failed, LlmServer, Llm, list[float]]:
        async with LlmServer(script) as server:
            llm = Llm(Config(server.url, "m", **config), sleep=slept, jitter=lambda: 1.0)
            async with llm:
                try:
                    outcome: Reply | Failed = await llm.ask(
                        MESSAGES, batch_schema("answer"), items=2, until=time.monotonic() + deadline
                    )
                except Failed as failed:
                    outcome = failed
            return outcome, server, llm, slept.waits

    return asyncio.run(run())


def failed(script: Script, **config: Any) -> Failed:
    outcome = ask(script, **config)[0]
    assert isinstance(outcome, Failed)
    return outcome


def in_turn(*answers: Any) -> Script:
    left = list(answers)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


def test_an_answer_with_what_it_cost() -> None:
    reply, server, _, _ = ask(lambda _: completion({"items": []}))
    assert isinstance(reply, Reply)
    assert (reply.text, reply.model) == ('{"items": []}', "scripted-1.2")
    assert (reply.input_tokens, reply.output_tokens) == (100, 20)
    (asked,) = server.asked
    assert asked["response_format"]["json_schema"]["schema"] == batch_schema("answer")
    assert asked["temperature"] == 0
    assert asked["max_tokens"] == 2 * Config("", "").output_tokens
    assert reply.decoding["mode"] == "json_schema"


def test_a_server_that_never_answers_costs_the_deadline_and_no_more() -> None:
    began = time.monotonic()
    assert failed(never, deadline=0.3).reason == "timeout"
    assert time.monotonic() - began < 3


def test_a_server_that_drips_its_answer_is_held_to_the_same_deadline() -> None:
    async def drip(asked: Asked) -> Any:
        await asyncio.sleep(2)
        return completion("late")

    assert failed(drip, deadline=0.3).reason == "timeout"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_may_pass_is_asked_again(status: int) -> None:
    reply, server, _, waits = ask(in_turn(refusal(status), refusal(status), completion("{}")))
    assert isinstance(reply, Reply)
    assert len(server.asked) == 3
    assert waits == [0.5, 1.0]


def test_retry_after_is_obeyed() -> None:
    _, _, _, waits = ask(in_turn(refusal(429, retry_after="3"), completion("{}")))
    assert waits == [3.0]


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    outcome, server, _, waits = ask(lambda _: refusal(429, retry_after="3600"))
    assert isinstance(outcome, Failed)
    assert (outcome.reason, waits, len(server.asked)) == ("timeout", [], 1)


def test_retry_after_as_a_date_or_as_nonsense() -> None:
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_what_will_not_pass_is_not_asked_again_nor_divided(status: int) -> None:
    outcome, server, _, _ = ask(lambda _: refusal(status, "out of credit"))
    assert isinstance(outcome, Failed)
    assert (outcome.reason, outcome.divisible, len(server.asked)) == ("refused", False, 1)
    assert f"HTTP {status}" in outcome.detail
    assert "out of credit" in outcome.detail


def test_a_batch_that_is_refused_may_be_divided() -> None:
    assert failed(lambda _: refusal(400, "context length")).divisible


def test_a_server_that_keeps_failing_is_given_up() -> None:
    outcome, server, _, _ = ask(lambda _: refusal(500), breaker_failures=100)
    assert isinstance(outcome, Failed)
    assert (outcome.reason, len(server.asked)) == ("refused", 5)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: completion("{", finish="length"), "truncated"),
        (lambda: completion("", finish="content_filter"), "refused"),
        (lambda: completion("x", message={"refusal": "I will not"}), "refused"),
        (lambda: completion(""), "invalid"),
        (lambda: completion("{}", choices=[]), "invalid"),
    ],
)
def test_an_answer_that_is_none(answer: Any, reason: str) -> None:
    outcome = failed(lambda _: answer())
    assert outcome.reason == reason
    assert outcome.divisible
    assert outcome.tokens == (100, 20)


def test_a_server_that_speaks_no_json() -> None:
    from aiohttp import web

    outcome = failed(lambda _: web.Response(text="<html>gateway</html>", content_type="text/html"))
    assert outcome.reason == "invalid"


def test_nobody_listens() -> None:
    async def run() -> Failed:
        async with Llm(Config("http://127.0.0.1:9/v1", "m"), sleep=Slept()) as llm:
            with pytest.raises(Failed) as caught:
                await llm.ask(MESSAGES, {}, items=1, until=time.monotonic() + 5)
            return caught.value

    assert asyncio.run(run()).reason in ("timeout", "breaker")


def test_a_server_without_json_schema_is_asked_by_tool_then_in_words() -> None:
    def script(asked: Asked) -> Any:
        if "response_format" in asked:
            return refusal(400, "response_format json_schema is not supported")
        if "tools" in asked:
            return refusal(400, "tools are not supported")
        return completion("{}")

    reply, server, _, _ = ask(script)
    assert isinstance(reply, Reply)
    assert reply.decoding["mode"] == "text"
    assert len(server.asked) == 3


def test_an_answer_by_tool_call() -> None:
    def script(asked: Asked) -> Any:
        if "response_format" in asked:
            return refusal(400, "unknown field response_format")
        call = {"id": "t", "type": "function",
                "function": {"name": "readings", "arguments": '{"items": [1]}'}}  # fmt: skip
        return completion("", message={"content": None, "tool_calls": [call]}, finish="tool_calls")

    reply = ask(script)[0]
    assert isinstance(reply, Reply)
    assert reply.text == '{"items": [1]}'


def test_parameters_that_a_server_does_not_know_are_left_out() -> None:
    def script(asked: Asked) -> Any:
        if "max_tokens" in asked:
            return refusal(400, "use max_completion_tokens instead of max_tokens")
        if "temperature" in asked:
            return refusal(400, "temperature does not support 0")
        return completion("{}")

    reply, server, _, _ = ask(script)
    assert isinstance(reply, Reply)
    assert "max_completion_tokens" in server.asked[-1]
    assert "temperature" not in reply.decoding


def test_the_breaker_opens_looks_again_and_closes() -> None:
    now = [0.0]
    breaker = Breaker(2, 10.0, lambda: now[0])
    breaker.failure("a")
    assert breaker.allows()
    breaker.failure("b")
    assert breaker.open
    assert not breaker.allows()
    now[0] = 10.0
    assert breaker.allows()
    assert not breaker.allows()  # one look at a time
    breaker.success()
    assert breaker.allows()
    assert not breaker.open
    assert breaker.opened == 1


def test_an_open_breaker_asks_nothing() -> None:
    async def run() -> tuple[list[str], int]:
        async with LlmServer(lambda _: refusal(402)) as server:
            config = Config(server.url, "m", breaker_failures=2, breaker_pause=60)
            async with Llm(config, sleep=Slept()) as llm:
                reasons = []
                for _ in range(4):
                    with pytest.raises(Failed) as caught:
                        await llm.ask(MESSAGES, {}, items=1, until=time.monotonic() + 5)
                    reasons.append(caught.value.reason)
            return reasons, len(server.asked)

    assert asyncio.run(run()) == (["refused", "refused", "breaker", "breaker"], 2)


def test_no_more_calls_at_once_than_allowed() -> None:
    async def slow(asked: Asked) -> Any:
        await asyncio.sleep(0.05)
        return completion("{}")

    async def run() -> int:
        async with (
            LlmServer(slow) as server,
            Llm(Config(server.url, "m", concurrency=2)) as llm,
        ):
            until = time.monotonic() + 10
            await asyncio.gather(*(llm.ask(MESSAGES, {}, items=1, until=until) for _ in range(6)))
            return server.most

    assert asyncio.run(run()) == 2
