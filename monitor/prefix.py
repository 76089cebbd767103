"""Spans -> prefix: the ordered steps of a trajectory, as far as its spans are known.

`derive` is the specification: a pure function of the *set* of spans, so that neither the order nor
the batching nor the duplication of arrivals can change what it says. (`monitor.extend` goes on from
its result where a span arrives in order, and must then agree with it.)

It goes from spans to places, from places to turns, from turns and tool spans to calls. Answers are
texts without calls of the outermost agent, never of one that a tool delegates to.

Source: OpenTelemetry GenAI semantic conventions,
https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monitor.calls import (
    Context,
    LogicalCall,
    find_groups,
    find_requested,
    name_calls,
    quoted_results,
    run,
)
from monitor.logs import joined
from monitor.model import Span, Unseen
from monitor.places import Place, Position, find_roots, locate
from monitor.turns import (
    Turn,
    find_turns,
    last_assistant,
    marks,
    preceding,
    request_text,
    user_text,
)


class Answer(msgspec.Struct, gc=False):
    """A final text of the outermost agent. `text` is None when the turn's output is hidden."""

    span_id: str
    position: Position
    agent: str | None
    text: str | None
    unseen: Unseen | None = None
    step: int = 0


class Request(msgspec.Struct, gc=False):
    """What the user asked for."""

    span_id: str
    position: Position
    agent: str | None
    text: str
    step: int = 0


class Prefix(msgspec.Struct):
    """What a set of spans tells. Calls, answers and requests are in causal order."""

    places: dict[str, Place]
    turns: list[Turn]
    calls: list[LogicalCall]
    answers: list[Answer]
    depth: int | None
    """Number of agents around the turns that answer."""
    requests: list[Request]
    steps: int
    roots: list[str]
    missing: set[str]
    """Parents that are named and not known."""
    gaps: int
    """Turns whose history quotes a preceding turn that is not known."""
    context: Context
    """What the first turn's history tells of the time before this trajectory: evidence."""
    tools_seen: bool
    loose: Position | None
    """Where the last tool span stands that no id joined to a call."""
    context_unseen: Unseen | None = None
    """Why the first turn's history, which may hold evidence, cannot be read whole."""

    @property
    def answer(self) -> Answer | None:
        return self.answers[-1] if self.answers else None

    @property
    def answered(self) -> bool:
        """The last answer follows every known call."""
        if not self.answers:
            return False
        return not self.calls or self.answers[-1].position > self.calls[-1].position


def derive(spans: Mapping[str, Span]) -> Prefix:
    """The prefix of a set of spans, given by span id. Takes a few microseconds a span."""
    spans = joined(spans)
    places, missing = locate(spans)
    roots = find_roots(spans, places, missing)
    turns = find_turns(spans, places)
    groups = find_groups(spans, places)
    calls = find_requested(turns)
    loose = run(calls, groups, spans, places)
    resumed = _resumed(turns, {group.call_id for group in groups})
    context = quoted_results(calls, turns, resumed=resumed)
    calls.sort(key=lambda call: call.position)
    name_calls(calls)
    answers, depth = _answers(turns)
    requests = _requests(turns)
    steps: list[LogicalCall | Answer | Request] = [*requests, *calls]
    steps += [answer for answer in answers if answer.text is not None]
    for number, step in enumerate(sorted(steps, key=lambda step: step.position)):
        step.step = number
    return Prefix(
        places=places,
        turns=turns,
        calls=calls,
        answers=answers,
        depth=depth,
        requests=requests,
        steps=len(steps),
        roots=roots,
        missing=missing,
        gaps=_gaps(turns, context.aliases, resumed=resumed),
        context=context,
        tools_seen=bool(groups),
        loose=loose,
        context_unseen=next(
            (turn.span.unseen.get("input") for turn in turns if turn.place.kind == "llm"), None
        ),
    )


def _answers(turns: list[Turn]) -> tuple[list[Answer], int | None]:
    """Texts of the outermost agent in order; a mute turn counts when it is the last of them."""
    candidates = [
        turn for turn in turns if not turn.place.in_tool and (turn.mute or turn.text is not None)
    ]
    outermost = min((turn.depth for turn in candidates), default=None)
    spoken = [turn for turn in candidates if turn.depth == outermost]
    return [
        Answer(turn.span.span_id, turn.answered_at, turn.place.agent, turn.text, turn.hidden)
        for turn in spoken
        if turn.text is not None or turn is spoken[-1]
    ], outermost


def _requests(turns: list[Turn]) -> list[Request]:
    """What the user asked: before the first turn, and wherever a conversation goes on."""
    requests: list[Request] = []
    for turn in turns:
        if turn.place.in_tool:
            continue
        if text := request_text(turn.span, first=not requests):
            before = turn.place.position(-1_000_000_000)
            requests.append(Request(turn.span.span_id, before, turn.place.agent, text))
    return requests


def _resumed(turns: list[Turn], ran: set[str | None]) -> bool:
    """Whether the first known turn went on from a turn of this trajectory that is not known.

    It did when results were the last thing it was given, and an agent's run encloses it or one of
    the calls ran here. A lone LLM span that was given results is how a client without spans for
    its tools looks; that history is context.
    """
    first = next((turn for turn in turns if turn.place.kind == "llm"), None)
    if first is None:
        return False
    split = last_assistant(first.span)
    if split < 0 or user_text(first.span.inputs[split + 1 :]) is not None:
        return False
    quoted = {call.call_id for call in first.span.inputs[split].calls} - {None}
    return bool(quoted) and (first.place.depth > 0 or not ran.isdisjoint(quoted))


def _gaps(turns: list[Turn], aliases: list[str], *, resumed: bool) -> int:
    """Turns whose preceding turn is not known although their history quotes it.

    The first turn may rest on a history from before this trajectory, if it shows the whole of it.
    """
    llm = [turn for turn in turns if turn.place.kind == "llm"]
    if not llm:
        return 0
    cut = llm[0].span.omitted is not None and last_assistant(llm[0].span) >= 0
    gaps = int(cut or resumed)
    if any(turn.mute for turn in turns):
        return gaps  # which turn a history quotes cannot be told
    said = {mark for turn in turns for mark in marks(turn.span.outputs)}
    said.update(f"c:{alias}" for alias in aliases)
    for turn in llm[1:]:
        quoted = preceding(turn.span)
        gaps += bool(quoted) and said.isdisjoint(quoted)
    return gaps
