"""The RGE state of a trajectory: Requirements, Grounding, Execution, as far as its prefix goes.

There are two ways from one prefix to the next, and they must agree:

- `rebuild` (here) derives everything anew from the spans. It is the specification, and the way for
  what changes the past: a late span, a parent above known steps, a merged call.
- `extend` (monitor.extend) appends what follows all known steps.

Stored of a trajectory are the head (rewritten for every batch), and, only ever added to, the spans
by id (the *content*) and the index fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from monitor.bench import Bench, Judge
from monitor.head import NAMES, Head, LastAnswer, content_digest
from monitor.index import (
    Known,
    call_mark,
    encode_known,
    log_fields,
    response_end,
    turn_fields,
    waiting,
)
from monitor.logs import joined
from monitor.model import Span
from monitor.places import Place
from monitor.prefix import Prefix, derive
from monitor.window import is_done, note, settle, slim

AGENTIC: Final = frozenset({"agent", "llm", "tool"})


def rebuild(
    head: Head, spans: Mapping[str, Span], digests: Mapping[str, str], bench: Bench
) -> tuple[Prefix, dict[str, bytes]]:
    """Derives the prefix anew, sets the head to it, and returns it with all index fields."""
    head.spans = len(spans)
    logs = [span for span in spans.values() if span.kind == "log"]
    spans = joined(spans)
    prefix = derive(spans)
    _keep_keys(head, prefix)
    _identify(head, prefix, spans, bench)
    head.agentic = any(span.kind in AGENTIC for span in spans.values())
    head.roots = prefix.roots[:2]
    head.missing = len(prefix.missing)
    head.gaps = prefix.gaps
    head.tools_seen = prefix.tools_seen
    head.turned = any(turn.place.kind == "llm" for turn in prefix.turns)
    head.agent_turns = any(turn.place.kind == "agent" for turn in prefix.turns)
    head.mute = any(turn.mute for turn in prefix.turns)
    head.asked = bool(prefix.requests)
    head.requested = any(call.requested for call in prefix.calls)
    head.loose = prefix.loose
    head.calls = len(prefix.calls)
    head.steps = prefix.steps
    head.depth = prefix.depth
    head.output_unseen = sorted({turn.hidden for turn in prefix.turns if turn.hidden})
    ends = [turn.answered_at._replace(order=0) for turn in prefix.turns]
    ends += [at.position() for at in prefix.places.values() if at.kind == "agent"]
    ends += [call.position._replace(order=0) for call in prefix.calls]
    head.tail = max(ends, default=None)
    _judge_all(head, prefix, bench)
    return prefix, _index(head, prefix, spans, digests) | log_fields(logs, digests)


def _judge_all(head: Head, prefix: Prefix, bench: Bench) -> None:
    """Answers, window, sums and monitors' states."""
    head.answer = _last_answer(prefix, None)
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        standing.grounding = None
        standing.policy = judge.checks.policy.initial()
        standing.trajectory = (
            None if judge.checks.trajectory is None else judge.checks.trajectory.initial()
        )
        standing.answer = _last_answer(prefix, judge) if judge.one_agent else None
        standing.anonymous = judge.one_agent and any(c.agent is None for c in prefix.calls)
    head.window = [msgspec.structs.replace(call) for call in prefix.calls]
    for call in head.window:
        slim(call, bench.ruled)
    head.unanswered = head.not_run = 0
    head.results_unseen, head.arguments_unseen = [], {}
    if prefix.context_unseen is not None:
        note(head.results_unseen, prefix.context_unseen)
    settle(head, bench, {})


def _last_answer(prefix: Prefix, judge: Judge | None) -> LastAnswer | None:
    """The answer of the outermost agent, or of the one agent that a contract names."""
    text: str | None
    if judge is None:
        last = prefix.answer
        if last is None:
            return None
        follows = not prefix.calls or last.position > prefix.calls[-1].position
        shown, text, step, span_id = last.text is not None, last.text, last.step, last.span_id
    else:
        turns = [t for t in prefix.turns if judge.judges(t.place.agent) and t.text is not None]
        if not turns:
            return None
        calls = [call for call in prefix.calls if judge.judges(call.agent)]
        here = turns[-1].answered_at
        follows = not calls or here > calls[-1].position
        shown, text, span_id = True, turns[-1].text, turns[-1].span.span_id
        step = sum(call.position < here for call in prefix.calls)
    return LastAnswer(span_id, shown, content_digest(text or ""), follows, step)


def _identify(head: Head, prefix: Prefix, spans: Mapping[str, Span], bench: Bench) -> None:
    """Whose trajectory it is, and which contracts that binds."""
    places = sorted(prefix.places.values(), key=Place.position)
    agentic = [(at, spans[at.span_id]) for at in places if at.kind in AGENTIC]
    turns = [pair for pair in agentic if pair[0].kind == "llm"]
    own = [p for p in agentic if p[0].kind != "tool" or not p[1].remote] or agentic
    ranked = turns + [p for p in agentic if p[0].kind == "agent"] + agentic
    head.agent = next((at.agent for at, _ in ranked if at.agent), None)
    talks = next((s.conversation_id for _, s in turns if s.conversation_id), None)
    head.turn_conversation = talks is not None
    head.conversation = talks or next(
        (s.conversation_id for _, s in ranked if s.conversation_id), None
    )
    first = next((p for p in ranked if p in own), None) if own is not agentic else None
    source = first[1] if first else (ranked[0][1] if ranked else None)
    if source is not None:
        head.service, head.attributes = source.service, source.attributes
    services: list[tuple[str | None, dict[str, str]]] = []
    for _, span in own:
        if (span.service, span.attributes) not in services:
            services.append((span.service, span.attributes))
    head.services = services[:NAMES]
    head.agents = sorted({at.agent for at, _ in agentic if at.agent})[:NAMES]
    bind(head, bench)


def bind(head: Head, bench: Bench) -> None:
    """Binds the contracts that apply to what is known of agent, service and attributes."""
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        standing.bound = any(
            judge.contract.applies(service, attributes, head.agents) == "yes"
            for service, attributes in head.services
        )


def undetermined(head: Head, bench: Bench) -> bool:
    """Some contract would bind if an agent were known that is not."""
    return any(
        judge.contract.applies(service, attributes, head.agents) == "undetermined"
        for judge in bench.judges
        for service, attributes in head.services
    )


def _keep_keys(head: Head, prefix: Prefix) -> None:
    """A call keeps the key under which a violation of it was first published."""
    published = {f.call for s in head.standings for f in s.raised.values() if f.call}
    if not published:
        return
    for call in prefix.calls:
        if call.key not in published:
            call.key = next((s for s in call.spans if s in published), call.key)


def _index(
    head: Head, prefix: Prefix, spans: Mapping[str, Span], digests: Mapping[str, str]
) -> dict[str, bytes]:
    """All index fields."""
    fields = {
        f"s:{span_id}": encode_known(Known(digests[span_id], at))
        for span_id, at in prefix.places.items()
        if span_id in digests
    }
    for span_id, at in prefix.places.items():
        fields.update(response_end(spans[span_id], at, fields))
        if at.parent is not None and at.parent in prefix.missing:
            name = f"w:{at.parent}"
            fields[name] = waiting(fields.get(name), spans[span_id])
    inside = {call.key for call in head.window}
    for call in prefix.calls:
        if call.call_id is not None:
            name = f"c:{call.call_id}"
            status = "m" if name in fields else "w" if call.key in inside else ""
            fields[name] = call_mark(call, status or ("s" if is_done(call) else "u"))
    for call_id in prefix.context.call_ids:
        fields.setdefault(f"c:{call_id}", b"x-")
    for turn in prefix.turns:
        fields.update(turn_fields(turn.span))
    return fields
