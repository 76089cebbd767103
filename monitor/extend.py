"""The prefix, extended: spans that arrive in order.

An LLM span that follows all known steps, a tool span that runs a call which is still open, a span
without agent meaning: the usual arrivals. Each costs the same at step 10 and at step 1 000, because
only the head and the index fields of the ids that the span names are looked at. What these cannot
settle is left to `monitor.rge.rebuild`, with which this must agree wherever it says anything.
"""

from __future__ import annotations

from typing import Any

from monitor.bench import Bench
from monitor.calls import (
    LogicalCall,
    hands_to,
    quote,
    repeats_an_id,
    report,
    unrequested,
)
from monitor.head import NAMES, Head, LastAnswer, content_digest
from monitor.index import (
    Fields,
    Known,
    call_mark,
    encode_known,
    known,
    response_end,
    turn_fields,
    waiting,
)
from monitor.model import Span
from monitor.places import Place, Position, place
from monitor.turns import answer_text, is_mute, preceding, request_text
from monitor.window import note, settle, slim


def extend(
    head: Head, span: Span, digest: str, fields: Fields, bench: Bench
) -> dict[str, bytes] | None:
    """Appends a span. Returns the index fields to write, or None, with the head untouched, when
    the span changes more than the end of the prefix."""
    if span.kind == "log" or _told_by_logs(span, fields):
        return None
    return append(head, span, digest, fields, bench)


def append(
    head: Head, span: Span, digest: str, fields: Fields, bench: Bench
) -> dict[str, bytes] | None:
    """`extend`, of a span that has in it what log records tell of it."""
    if not head.agentic:
        if span.kind != "other":
            return None
        return {f"s:{span.span_id}": encode_known(Known(digest, place(span, None)))}
    waited = fields.get(f"w:{span.span_id}")
    above = known(fields, span.parent) if span.parent is not None else None
    if span.parent == span.span_id or not _stays_below(span, above, waited):
        return None
    at = place(span, above.place if above else None)
    if span.parent is None:
        at.complete = True
    new: dict[str, bytes] = {f"s:{span.span_id}": encode_known(Known(digest, at))}
    if span.kind == "llm":
        if not _append_turn(head, span, at, fields, new, bench):
            return None
    elif span.kind == "tool" and not _append_run(head, span, at, fields, new, bench):
        return None
    if waited:
        head.missing -= 1
        new[f"w:{span.span_id}"] = b""
    if span.parent is not None and above is None:
        before = fields.get(f"w:{span.parent}")
        head.missing += not before
        new[f"w:{span.parent}"] = waiting(before, span)
    head.spans += 1
    if span.kind != "other":
        head.print = None
        for standing in head.standings:
            standing.grounding = None
        settle(head, bench, new)
    return new


def _told_by_logs(span: Span, fields: Fields) -> bool:
    """Log records tell of the span, or stand for a parent that is not known."""
    if fields.get(f"l:{span.span_id}"):
        return True
    return bool(fields.get(f"l:{span.parent}")) and not fields.get(f"s:{span.parent}")


def _stays_below(span: Span, above: Known | None, waited: bytes | None) -> bool:
    """Whether no other span's place changes with this one's arrival."""
    if span.kind == "agent":
        return False
    if waited and (
        span.kind != "other"
        or above is not None
        or span.parent is None
        or span.remote
        or waited != waiting(None, span)
    ):
        return False
    if span.kind == "other":
        return True
    if span.parent is None or (above is None and span.remote and span.kind == "llm"):
        return False
    if above is None:
        return True
    up = above.place
    enclosing = up.within if up.kind == "other" else up.kind
    return up.root is not None and enclosing != span.kind


def _familiar(head: Head, span: Span, agent: str | None) -> bool:
    """The span tells nothing new of whose trajectory this is."""
    if agent is not None and agent not in head.agents:
        return False
    return (span.service, span.attributes) in head.services and (
        head.turned or len(head.services) == 1
    )


def _append_turn(
    head: Head, span: Span, at: Place, fields: Fields, new: dict[str, bytes], bench: Bench
) -> bool:
    here = at.position()
    mute = is_mute(span)
    if at.start < int(fields.get(f"r:{span.response}") or 0):
        return False  # another span may tell of the same response
    if (
        not head.turned
        or head.agent_turns
        or (head.tail is not None and here <= head.tail)
        or not _familiar(head, span, at.agent)
        or (head.agent is None and at.agent is not None)
        or (mute and head.gaps)
        or (not head.mute and not mute and not _follows(span, fields))
    ):
        return False
    if any(message.results for message in span.outputs):
        return False
    quotes = _quotes(head, span, fields)
    asked = [call for message in span.outputs for call in message.calls]
    ids = {call.call_id for call in asked}
    if quotes is None or None in ids or len(ids) < len(asked):
        return False
    if any(fields.get(f"c:{call_id}") for call_id in ids):
        return False
    if asked and head.loose is not None and here <= head.loose:
        return False
    text = answer_text(span)
    answers = not at.in_tool and (mute or text is not None)
    if answers and head.depth is not None and at.depth < head.depth:
        return False
    if answers and any(judge.one_agent for judge in bench.judges):
        return False  # whose answer it is, is not told by the end of the prefix

    for call, quoted in quotes:
        quote(call, quoted, span.unseen.get("input"))
        slim(call, bench.ruled)
    if not head.turn_conversation and span.conversation_id:
        head.conversation, head.turn_conversation = span.conversation_id, True
    if not at.in_tool and request_text(span, first=not head.asked):
        head.steps += 1
        head.asked = True
    head.requested = head.requested or bool(asked)
    head.tail = here
    head.mute = head.mute or mute
    if reason := span.unseen.get("output"):
        note(head.output_unseen, reason)
    for order, request in enumerate(asked, start=1):
        call = LogicalCall(
            key=request.call_id or "",
            tool=request.tool,
            position=at.position(order),
            call_id=request.call_id,
            requested=True,
            arguments=request.arguments,
            agent=at.agent,
            span_id=span.span_id,
        )
        _append_call(head, call, new, bench)
    if answers and head.depth in (None, at.depth):
        head.depth = at.depth
        shown = text is not None
        step = head.steps if shown else 0
        head.answer = LastAnswer(span.span_id, shown, content_digest(text or ""), True, step)
        head.steps += shown
    new.update(turn_fields(span))
    new.update(response_end(span, at, fields))
    return True


def _follows(span: Span, fields: Fields) -> bool:
    """Whether the turn that the history quotes last is known."""
    quoted = preceding(span)
    return not quoted or any(
        (fields.get(mark) or b"").endswith(b"r" if mark.startswith("c:") else b"1")
        for mark in quoted
    )


def _quotes(head: Head, span: Span, fields: Fields) -> list[tuple[LogicalCall, Any]] | None:
    """Calls of the window with the results that a turn's history quotes of them."""
    asked: dict[str, str] = {}
    quotes = []
    for message in span.inputs:
        for request in message.calls:
            if request.call_id is not None:
                asked[request.call_id] = request.tool
                if not fields.get(f"c:{request.call_id}"):
                    return None
        for quoted in message.results:
            mark = fields.get(f"c:{quoted.call_id}")
            if quoted.call_id is None or not mark or mark[:1] not in b"ws":
                return None
            if mark[:1] == b"w":
                call = next(c for c in head.window if c.call_id == quoted.call_id)
                if call.tool != (quoted.tool or asked.get(quoted.call_id, call.tool)):
                    return None
                quotes.append((call, quoted))
    return quotes


def _append_call(head: Head, call: LogicalCall, new: dict[str, bytes], bench: Bench) -> None:
    call.step = head.steps
    head.steps += 1
    head.calls += 1
    if head.answer is not None:
        head.answer.follows = False
    slim(call, bench.ruled)
    head.window.append(call)
    if call.call_id is not None:
        new[f"c:{call.call_id}"] = call_mark(call, "w")
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        if judge.one_agent:
            standing.anonymous = standing.anonymous or call.agent is None
            if standing.answer is not None and judge.judges(call.agent):
                standing.answer.follows = False


def _append_run(
    head: Head, span: Span, at: Place, fields: Fields, new: dict[str, bytes], bench: Bench
) -> bool:
    """A tool span: it runs the one open call that has its id, without an id the one of its tool, or
    a call that nobody requested."""
    if span.tool is None:
        return False
    if not _familiar(head, span, at.agent) or (head.agent is None and at.agent is not None):
        return False
    if span.conversation_id not in (None, head.conversation) and not head.turn_conversation:
        return False
    if not head.tools_seen and (
        head.calls > len(head.window) or any(call.returned for call in head.window)
    ):
        return False
    mark = fields.get(f"c:{span.call_id}") if span.call_id is not None else None
    if mark:
        if mark[:1] != b"w":
            return False
        call = next(c for c in head.window if c.call_id == span.call_id)
        if call.executed or not call.requested or call.tool != span.tool:
            return False
        report(call, [span], at)
        slim(call, bench.ruled)
    else:
        here = at.position()
        if head.requested and (head.not_run or _may_be_delegated(head, span.tool)):
            return False
        if head.loose is not None and here <= head.loose:
            return False
        if any(not call.executed and (call.returned or not call.requested) for call in head.window):
            return False  # a history may have named it otherwise, told by its arguments
        waiting = _waiting(head, span, here)
        if len(waiting) > 1 or any(map(repeats_an_id, waiting)):
            return False  # their arguments tell which; the span is part of the call's key
        if not waiting and head.tail is not None and here <= head.tail:
            return False
        head.loose = here
        if waiting:
            report(waiting[0], [span], at)
            slim(waiting[0], bench.ruled)
        else:
            call = unrequested(span, at, span.call_id)
            report(call, [span], at)
            head.tail = here
            _append_call(head, call, new, bench)
    head.tools_seen = True
    return True


def _waiting(head: Head, span: Span, here: Position) -> list[LogicalCall]:
    """Requested calls that a tool span without their id may have run, when all open ones are."""
    return [
        call
        for call in head.window
        if not call.executed
        and call.tool == span.tool
        and call.position <= here
        and (span.call_id is None or call.call_id is None)
    ]


def _may_be_delegated(head: Head, tool: str) -> bool:
    """An agent may have run calls of this tool, which its own spans would take from it."""
    return len(head.agents) == NAMES or any(hands_to(tool, agent) for agent in head.agents)
