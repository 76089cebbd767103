"""Monitors over calls: the window of those that may still change, and the states of those before."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from monitor.bench import Bench, Judge
from monitor.calls import LogicalCall, repeats_an_id
from monitor.head import Head, Standing
from monitor.index import call_mark
from monitor.model import UNSEEN, Call, Execution, Judgement, Unseen

WINDOW: Final = 16
"""Calls kept in the head although they are still open; older ones cost a rebuild to change."""


def as_call(call: LogicalCall, head: Head, ruled: frozenset[str]) -> Call:
    """A logical call as the monitors see it."""
    execution: Execution = "unknown" if call.returned else "requested"
    if ran(call, head):
        execution = "executed"
    return Call(
        key=call.key,
        tool=call.tool,
        arguments=_arguments(call) if call.tool in ruled else UNSEEN,
        execution=execution,
        failed=call.error is not None,
        step=call.step,
        call_id=call.call_id,
        span_id=call.span_id,
        agent=call.agent,
    )


def _arguments(call: LogicalCall) -> Any:
    if call.arguments is None or call.arguments_unseen is not None:
        return UNSEEN
    if not call.arguments.strip():
        return {}
    try:
        return msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return call.arguments


def judgements(
    head: Head, standing: Standing, judge: Judge, ruled: frozenset[str]
) -> tuple[Judgement, Judgement]:
    """What policy and trajectory say of the prefix now."""
    policy, trajectory = standing.policy, standing.trajectory
    checks = judge.checks
    for call in head.window:
        if judge.judges(call.agent):
            seen = as_call(call, head, ruled)
            policy = checks.policy.step(policy, seen)
            if checks.trajectory is not None:
                trajectory = checks.trajectory.step(trajectory, seen)
    path = Judgement() if checks.trajectory is None else checks.trajectory.judge(trajectory)
    return checks.policy.judge(policy), path


def ran(call: LogicalCall, head: Head) -> bool:
    """Its span was seen, or in a run without tool spans its result was quoted."""
    return call.executed or (call.returned and not head.tools_seen)


def is_shown(call: LogicalCall) -> bool:
    return call.arguments is not None and call.arguments_unseen is None


def is_done(call: LogicalCall) -> bool:
    """No later in-order arrival changes what the monitors see of it."""
    return call.executed and call.readable and is_shown(call)


def slim(call: LogicalCall, ruled: frozenset[str]) -> None:
    """Drops texts that nothing in the head reads; an empty text says that there is one."""
    if call.result is not None:
        call.result = ""
    if call.error is not None:
        call.error = ""
    if call.arguments is not None and (call.tool not in ruled or call.arguments_unseen):
        call.arguments = ""


def settle(head: Head, bench: Bench, fields: dict[str, bytes]) -> None:
    """Moves calls that are done, or too many, out of the window into the monitors' states."""
    while head.window and (is_done(head.window[0]) or len(head.window) > WINDOW):
        call = head.window.pop(0)
        _leave(head, call, bench.ruled)
        for standing, judge in zip(head.standings, bench.judges, strict=True):
            if standing.bound and judge.judges(call.agent):
                seen = as_call(call, head, bench.ruled)
                standing.policy = judge.checks.policy.step(standing.policy, seen)
                if judge.checks.trajectory is not None:
                    standing.trajectory = judge.checks.trajectory.step(standing.trajectory, seen)
        if call.call_id is not None and not _shares_its_id(call, head.window):
            fields[f"c:{call.call_id}"] = call_mark(call, "s" if is_done(call) else "u")


def _shares_its_id(call: LogicalCall, window: list[LogicalCall]) -> bool:
    """Another call has the same id, as the index says already."""
    return repeats_an_id(call) or any(other.call_id == call.call_id for other in window)


def _leave(head: Head, call: LogicalCall, ruled: frozenset[str]) -> None:
    """Sums over calls before the window."""
    head.unanswered += not call.answered
    head.not_run += not call.executed
    if ran(call, head) and not call.readable:
        note(head.results_unseen, call.result_unseen or "content_hidden")
    if call.tool in ruled and not is_shown(call):
        head.arguments_unseen[call.tool] = call.arguments_unseen or "content_hidden"


def note(reasons: list[Unseen], reason: Unseen) -> None:
    if reason not in reasons:
        reasons.append(reason)
        reasons.sort()
