"""A prefix as people read it: the steps of a trajectory with what was said, asked and returned."""

from __future__ import annotations

from typing import Any

import msgspec

from monitor.calls import LogicalCall
from monitor.model import Step
from monitor.prefix import Answer, Prefix, Request


def steps(prefix: Prefix) -> list[Step]:
    """The steps in causal order."""
    found: list[tuple[int, Step]] = [(r.step, _request(r)) for r in prefix.requests]
    found += [(call.step, _call(call, prefix)) for call in prefix.calls]
    found += [(a.step, _answer(a)) for a in prefix.answers if a.text is not None]
    found.sort(key=lambda pair: pair[0])
    if len(prefix.roots) < 2:
        return [step for _, step in found]
    return [msgspec.structs.replace(step, run=_run(step, prefix)) for _, step in found]


def _run(step: Step, prefix: Prefix) -> str | None:
    """The root of the run that a step is part of; None where the way up to it is not known."""
    at = prefix.places.get(step.span_id or "")
    return at.root if at is not None else None


def user_request(prefix: Prefix) -> str | None:
    """What the user asked first."""
    return prefix.requests[0].text.strip() if prefix.requests else None


def final_answer(prefix: Prefix) -> str | None:
    """The last text of the outermost agent."""
    answer = prefix.answer
    return answer.text.strip() if answer is not None and answer.text is not None else None


def value(text: str | None) -> Any:
    """What JSON text says; other text, or JSON nested too deeply to read, as it is."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _request(request: Request) -> Step:
    return Step("user_request", agent=request.agent, span_id=request.span_id, text=request.text)


def _call(call: LogicalCall, prefix: Prefix) -> Step:
    ran = call.executed or (call.returned and not prefix.tools_seen)
    return Step(
        "tool_call",
        tool=call.tool,
        call_id=call.call_id,
        arguments=value(call.arguments),
        result=value(call.result),
        error=call.error,
        requested_only=not ran,
        agent=call.agent,
        span_id=call.span_id,
    )


def _answer(answer: Answer) -> Step:
    return Step("answer", agent=answer.agent, span_id=answer.span_id, text=answer.text)
