"""Spans -> prefix: the ordered steps of a trajectory, as far as its spans are known.

`derive` is the specification: a pure function of the *set* of spans, so that neither the order nor
the batching nor the duplication of arrivals can change what it says. (`monitor.rge` extends its
result without starting anew where a span arrives in order, and must then agree with it.)

How the steps are found:

1. *Places*. Spans form trees by their parent ids. A span of another process than its parent keeps
   no clock in common with it, so its times are moved into its parent's interval; between spans of
   one process the start decides, then the span id.
2. *Turns*. An LLM span is one turn of a model: the calls it requested, or the text it answered.
   A turn nested in another one, without an agent or a tool between, is the same turn reported by a
   second instrumentation. An agent span that shows messages stands in where no turn below does.
3. *Calls*. One logical call has up to three reporters: a turn requested it, tool spans ran it
   (several, when layers are instrumented), a later turn's history quotes its result. They are
   matched by call id and tool; ids can repeat between turns; without an id by tool, arguments and
   order. A call stands where it was requested, else where its span started.
4. *Answers*. Texts without calls of the outermost agent, never of one that a tool delegates to.

Sources: OpenTelemetry GenAI semantic conventions,
https://github.com/open-telemetry/semantic-conventions-genai
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from monitor.model import Message, RequestedCall, ReturnedResult, Span, SpanKind, Unseen, digest


class Position(NamedTuple):
    """Where a step stands: time in its run, its anchor's own start and id, order at the anchor."""

    start: int
    own_start: int
    span_id: str
    order: int = 0


class Place(msgspec.Struct, array_like=True, gc=False):
    """A span in its tree, and all that spans below it need to know. Times are nanoseconds."""

    span_id: str
    kind: SpanKind
    parent: str | None
    own_start: int
    start: int
    """In the clock of the process at the top."""
    end: int
    service: str | None = None
    agent: str | None = None
    """Nearest enclosing agent, or the one that the span names; an agent span's own name."""
    depth: int = 0
    """Number of agent spans above."""
    in_tool: bool = False
    root: str | None = None
    """The run root above; None while the way up is unknown, or when it leads to none."""
    complete: bool = False
    """Every ancestor is known."""
    within: SpanKind | None = None
    """Kind of the nearest agent, LLM or tool span above."""

    def position(self, order: int = 0) -> Position:
        return Position(self.start, self.own_start, self.span_id, order)


def place(span: Span, above: Place | None) -> Place:
    """The place of `span` below `above`; without one, what the span says by itself."""
    start, end = span.start, max(span.end, span.start)
    at = Place(
        span.span_id, span.kind, span.parent, span.start, start, end, span.service, span.agent
    )
    if above is not None:
        if span.remote or span.service != above.service:
            at.start = min(max(start, above.start), above.end)
            at.end = at.start + end - start
        if span.agent is None and span.kind != "agent":
            at.agent = above.agent
        at.depth = above.depth + (above.kind == "agent")
        at.in_tool = above.in_tool or above.kind == "tool"
        at.root = above.root
        at.complete = above.complete
        at.within = above.within if above.kind == "other" else above.kind
    return at


class Turn(msgspec.Struct, gc=False):
    """What a model said once: it requested calls, or it answered with a text."""

    span: Span
    place: Place

    @property
    def depth(self) -> int:
        return self.place.depth + (self.place.kind == "agent")

    @property
    def hidden(self) -> Unseen | None:
        """Why its output, or a part of it, cannot be read."""
        return self.span.unseen.get("output")

    @property
    def text(self) -> str | None:
        return answer_text(self.span)

    @property
    def mute(self) -> bool:
        """Nobody can tell whether it answered."""
        return is_mute(self.span)


def answer_text(span: Span) -> str | None:
    """The text with which a turn ends; None for a turn with calls or one that shows no text.

    The output of an agent span is its whole run, so there only the last message counts.
    """
    said = span.outputs[-1:] if span.kind == "agent" else span.outputs
    if any(m.calls or m.results for m in said):
        return None
    texts = [m.text for m in said if m.text is not None]
    return "".join(texts) if texts else None


def is_mute(span: Span) -> bool:
    """Its output is hidden to the point that neither a call nor a text is left of it."""
    return (
        "output" in span.unseen
        and answer_text(span) is None
        and not any(message.calls for message in span.outputs)
    )


def last_assistant(span: Span) -> int:
    """Index in `inputs` of the last assistant message, -1 without one."""
    for index in range(len(span.inputs) - 1, -1, -1):
        if span.inputs[index].role == "assistant":
            return index
    return -1


def user_text(messages: Iterable[Message]) -> str | None:
    """Text of the last message that is a user's own and not a tool's result."""
    found = None
    for message in messages:
        if message.role == "user" and message.text is not None and not message.results:
            found = message.text
    return found


class LogicalCall(msgspec.Struct, array_like=True, gc=False):
    """One tool call and all that is known of it.

    `arguments` and `result` are texts as shown, the tool span's before the request's; None while
    nobody shows them. The reason beside one says why it is missing or not whole.
    """

    key: str
    tool: str
    position: Position
    call_id: str | None = None
    requested: bool = False
    executed: bool = False
    returned: bool = False
    """A later turn's history quotes a result."""
    arguments: str | None = None
    arguments_unseen: Unseen | None = None
    result: str | None = None
    result_unseen: Unseen | None = None
    error: str | None = None
    agent: str | None = None
    span_id: str | None = None
    spans: tuple[str, ...] = ()
    """Tool spans that reported it, outermost first."""
    evidence: bool = True
    """Its span descends from the run root, or may."""
    step: int = 0

    @property
    def answered(self) -> bool:
        return self.executed or self.returned

    @property
    def readable(self) -> bool:
        """Its result, or its failure, can be read whole."""
        return self.error is not None or (self.result is not None and self.result_unseen is None)


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
    context: list[str]
    """Results in the first turn's history: evidence from before this trajectory."""
    tools_seen: bool

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
    places, missing = _places(spans)
    roots = _roots(spans, places, missing)
    turns = _turns(spans, places)
    groups = _groups(spans, places)
    calls = _requested(turns)
    _run(calls, groups, spans, places)
    context = _quoted(calls, turns)
    calls.sort(key=lambda call: call.position)
    _name(calls)
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
        gaps=_gaps(turns),
        context=context,
        tools_seen=bool(groups),
    )


# -- 1. places -----------------------------------------------------------------------------


def _places(spans: Mapping[str, Span]) -> tuple[dict[str, Place], set[str]]:
    """Places, parents before children, and missing parents. A cycle is cut at its least span."""
    places: dict[str, Place] = {}
    missing: set[str] = set()
    for first in sorted(spans.values(), key=lambda s: (s.start, s.span_id)):
        chain: dict[str, Span] = {}
        span: Span | None = first
        while span is not None and span.span_id not in places and span.span_id not in chain:
            chain[span.span_id] = span
            span = spans.get(span.parent) if span.parent else None
        top = next(reversed(chain)) if chain else None
        above = places.get(span.span_id) if span is not None else None
        if top is not None and above is None and spans[top].parent is not None:
            missing.add(spans[top].parent or top)
        for below in reversed(chain.values()):
            at = place(below, above)
            if above is None:
                at.complete = below.parent is None
            places[below.span_id] = above = at
    return places, missing


def _roots(spans: Mapping[str, Span], places: dict[str, Place], missing: set[str]) -> list[str]:
    """Run roots: topmost, an agent or LLM span or above one, with no parent, or a remote one that
    the trace does not hold. The parent of such a root is not missing."""
    top_of: dict[str, str] = {}
    agentic: dict[str, bool] = {}
    for span_id, at in places.items():
        parent = at.parent
        top = top_of[parent] if parent is not None and parent in top_of else span_id
        top_of[span_id] = top
        agentic[top] = agentic.get(top, False) or at.kind in ("agent", "llm")
    roots = {
        top
        for top, runs in agentic.items()
        if runs
        and (spans[top].parent is None or (spans[top].remote and spans[top].parent not in places))
    }
    lacking = {spans[top].parent for top in agentic if top not in roots}
    for root in roots:
        parent = spans[root].parent
        if parent is not None and parent not in lacking:
            missing.discard(parent)
    for span_id, at in places.items():
        if top_of[span_id] in roots:
            at.root, at.complete = top_of[span_id], True
        else:
            at.complete = places[top_of[span_id]].complete
    return sorted(roots, key=lambda root: places[root].position())


def _above(places: Mapping[str, Place], at: Place) -> Iterator[Place]:
    """Ancestors, nearest first."""
    seen = {at.span_id}
    while at.parent is not None and at.parent in places and at.parent not in seen:
        at = places[at.parent]
        seen.add(at.span_id)
        yield at


# -- 2. turns ------------------------------------------------------------------------------


def _turns(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[Turn]:
    """Turns in causal order: LLM spans, and agent spans that show what none below them shows."""
    turns: dict[str, Turn] = {}
    told: set[str] = set()
    for span_id, at in places.items():  # outer spans first
        span = spans[span_id]
        if span.kind != "llm":
            continue
        enclosing = next((up for up in _above(places, at) if up.kind != "other"), None)
        if enclosing is not None and enclosing.kind == "llm" and enclosing.span_id in turns:
            if spans[enclosing.span_id].outputs or not span.outputs:
                continue
            del turns[enclosing.span_id]
        turns[span_id] = Turn(span, at)
    for turn in turns.values():
        if turn.span.outputs:
            told.update(up.span_id for up in _above(places, turn.place) if up.kind == "agent")
    for span_id, at in places.items():
        if at.kind == "agent" and span_id not in told and spans[span_id].outputs:
            turns[span_id] = Turn(spans[span_id], at)
    return sorted(turns.values(), key=lambda turn: turn.place.position())


# -- 3. calls ------------------------------------------------------------------------------


class _Group(msgspec.Struct, gc=False):
    """Tool spans that report one call: a span and those below it that name the same tool."""

    place: Place
    layers: list[Span]
    call_id: str | None = None


def _groups(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[_Group]:
    groups: dict[str, _Group] = {}
    for span_id, at in places.items():  # outer spans first
        if at.kind != "tool":
            continue
        span = spans[span_id]
        outer = None
        for up in _above(places, at):
            if up.kind in ("agent", "llm"):
                break
            if up.kind == "tool" and spans[up.span_id].tool == span.tool:
                outer = groups[up.span_id]
                break
        if outer is None:
            groups[span_id] = _Group(at, [span], span.call_id)
        else:
            outer.layers.append(span)
            outer.call_id = outer.call_id or span.call_id
            groups[span_id] = outer
    distinct = {group.place.span_id: group for group in groups.values()}
    return sorted(distinct.values(), key=lambda group: group.place.position())


def _requested(turns: list[Turn]) -> list[LogicalCall]:
    """A call for each one that a turn requested, in order."""
    calls: list[LogicalCall] = []
    said: dict[tuple[str, str], tuple[LogicalCall, Place]] = {}
    for turn in turns:
        index = 0
        for message in turn.span.outputs:
            for asked in message.calls:
                index += 1
                if asked.call_id is not None:
                    # One turn reported by two instrumentations overlaps itself.
                    before = said.get((asked.call_id, asked.tool))
                    if before is not None and turn.place.start < before[1].end:
                        _show_arguments(before[0], asked.arguments, None)
                        continue
                call = _call(asked, turn, index)
                if asked.call_id is not None:
                    said[asked.call_id, asked.tool] = (call, turn.place)
                calls.append(call)
    return calls


def _call(asked: RequestedCall, turn: Turn, index: int) -> LogicalCall:
    return LogicalCall(
        key=asked.call_id or f"{turn.span.span_id}:{index}",
        tool=asked.tool,
        position=turn.place.position(index),
        call_id=asked.call_id,
        requested=True,
        arguments=asked.arguments,
        agent=turn.place.agent,
        span_id=turn.span.span_id,
    )


def _show_arguments(call: LogicalCall, text: str | None, unseen: Unseen | None) -> None:
    """A reporter shows arguments: whole ones replace none and cut ones."""
    if text is not None and unseen is None:
        call.arguments, call.arguments_unseen = text, None
    elif call.arguments is None:
        call.arguments, call.arguments_unseen = text, unseen or call.arguments_unseen


def _run(
    calls: list[LogicalCall],
    groups: list[_Group],
    spans: Mapping[str, Span],
    places: Mapping[str, Place],
) -> None:
    """Tells which calls ran: each group of tool spans joins the call that it reports."""
    by_id: dict[tuple[str, str], list[LogicalCall]] = {}
    by_tool: dict[str, list[LogicalCall]] = {}
    for call in calls:
        by_tool.setdefault(call.tool, []).append(call)
        if call.call_id is not None:
            by_id.setdefault((call.call_id, call.tool), []).append(call)
    named: list[_Group] = []
    loose: list[_Group] = []
    for group in groups:
        tool = group.layers[0].tool or ""
        call_id = group.call_id
        named_here = call_id is not None and (call_id, tool) in by_id
        (named if named_here else loose).append(group)
    for group in named:
        candidates = by_id[group.call_id or "", group.layers[0].tool or ""]
        before = [call for call in candidates if call.position <= group.place.position()]
        report(before[-1] if before else candidates[0], group.layers, group.place)
    alone: dict[tuple[str, str], LogicalCall] = {}
    for group in loose:
        tool = group.layers[0].tool or ""
        match = _by_arguments(by_tool.get(tool, ()), group)
        if match is None and group.call_id is not None:
            match = alone.get((group.call_id, tool))
        if match is None:
            match = unrequested(group.layers[0], group.place, group.call_id)
            calls.append(match)
            if group.call_id is not None:
                alone[group.call_id, tool] = match
        report(match, group.layers, group.place)
    _delegate(calls, spans, places)


def unrequested(span: Span, at: Place, call_id: str | None) -> LogicalCall:
    """A call of which only its span tells."""
    return LogicalCall(
        key=call_id or span.span_id,
        tool=span.tool or "",
        position=at.position(),
        call_id=call_id,
        agent=at.agent,
    )


def _by_arguments(candidates: Iterable[LogicalCall], group: _Group) -> LogicalCall | None:
    """The request that a group without a common id runs: same tool, before it, not yet run.

    Equal arguments win, then order. Ids on both sides that differ are different calls.
    """
    first = None
    shown = next((s.arguments for s in group.layers if s.arguments is not None), None)
    for call in candidates:
        if call.executed or call.position > group.place.position():
            continue
        if group.call_id is not None and call.call_id is not None:
            continue
        if shown is not None and call.arguments == shown:
            return call
        first = first or call
    return first


def report(call: LogicalCall, layers: list[Span], at: Place) -> None:
    """Tool spans, outermost first, report that a call ran, with what, and what came of it."""
    outer = layers[0]
    call.executed = True
    call.span_id = call.spans[0] if call.spans else outer.span_id
    call.spans += tuple(span.span_id for span in layers)
    call.evidence = at.root is not None or not at.complete
    if call.error is None:
        call.error = outer.error
    for span in reversed(layers):
        _show_arguments(call, span.arguments, span.unseen.get("arguments"))
        unseen = span.unseen.get("result")
        if span.result is not None and unseen is None:
            call.result, call.result_unseen = span.result, None
        elif call.result is None:
            call.result, call.result_unseen = span.result, unseen or call.result_unseen


def _delegate(
    calls: list[LogicalCall], spans: Mapping[str, Span], places: Mapping[str, Place]
) -> None:
    """A requested call ran as well when an agent of its tool's name was seen after it."""
    waiting = [call for call in calls if not call.executed]
    if not waiting:
        return
    agents = sorted(
        (at for at in places.values() if at.kind == "agent" and spans[at.span_id].agent),
        key=Place.position,
    )
    for call in sorted(waiting, key=lambda c: c.position):
        for at in agents:
            if spans[at.span_id].agent == call.tool and at.position() > call.position:
                call.executed, call.spans = True, (at.span_id,)
                call.span_id = at.span_id
                agents.remove(at)
                break


def _quoted(calls: list[LogicalCall], turns: list[Turn]) -> list[str]:
    """Results that later turns quote join their calls; those of unknown calls make calls.

    What only the first turn's history tells happened before this trajectory: its results are
    returned as context.
    """
    context: list[str] = []
    by_id: dict[str, list[LogicalCall]] = {}
    for call in sorted(calls, key=lambda c: c.position):
        if call.call_id is not None:
            by_id.setdefault(call.call_id, []).append(call)
    first = True
    for turn in turns:
        if turn.place.kind != "llm":
            continue
        here = turn.place.position()
        asked: dict[str, str] = {}
        for number, message in enumerate(turn.span.inputs):
            for index, request in enumerate(message.calls):
                call_id = request.call_id
                if call_id is None:
                    continue
                asked[call_id] = request.tool
                if not first and call_id not in by_id:
                    call = _call(request, turn, index)
                    call.requested = False  # the turn that asked for it is not known
                    call.position = turn.place.position(number * 1000 + index - 1_000_000)
                    by_id[call_id] = [call]
                    calls.append(call)
            for quoted in message.results:
                known = [
                    call
                    for call in by_id.get(quoted.call_id or "", ())
                    if call.position < here
                    and call.tool == (quoted.tool or asked.get(quoted.call_id or "", call.tool))
                ]
                if known:
                    quote(known[-1], quoted)
                elif quoted.call_id is None and (loose := _unreturned(calls, quoted, here)):
                    quote(loose, quoted)
                elif first and quoted.result is not None:
                    context.append(quoted.result)
        first = False
    return context


def _unreturned(
    calls: list[LogicalCall], quoted: ReturnedResult, here: Position
) -> LogicalCall | None:
    """The earliest call that a quoted result without an id may belong to."""
    open_calls = [
        call
        for call in calls
        if not call.returned
        and call.position < here
        and (quoted.tool is None or call.tool == quoted.tool)
    ]
    return min(open_calls, key=lambda call: call.position, default=None)


def quote(call: LogicalCall, quoted: ReturnedResult) -> None:
    """A later turn's history quotes the result of a call."""
    if quoted.result is None and not quoted.failed:
        return
    call.returned = True
    if call.result is None or (call.result_unseen is not None and quoted.result is not None):
        call.result, call.result_unseen = quoted.result, None
    if quoted.failed and call.error is None:
        call.error = quoted.result or ""


def _name(calls: list[LogicalCall]) -> None:
    """Ids can repeat between turns: the first call in order keeps it as its key."""
    used: set[str] = set()
    for call in calls:
        if call.key in used:
            call.key = f"{call.key}@{call.span_id}"
        used.add(call.key)


# -- 4. answers and requests ---------------------------------------------------------------


def _answers(turns: list[Turn]) -> tuple[list[Answer], int | None]:
    """Texts of the outermost agent in order; a mute turn counts when it is the last of them."""
    candidates = [
        turn for turn in turns if not turn.place.in_tool and (turn.mute or turn.text is not None)
    ]
    outermost = min((turn.depth for turn in candidates), default=None)
    spoken = [turn for turn in candidates if turn.depth == outermost]
    return [
        Answer(turn.span.span_id, turn.place.position(), turn.place.agent, turn.text, turn.hidden)
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


def request_text(span: Span, *, first: bool) -> str | None:
    """The user's words that a turn answers to; of a later turn only those after an answer."""
    split = last_assistant(span)
    if split < 0 and not first:
        return None
    text = user_text(span.inputs[split + 1 :])
    return text if text is not None or not first else user_text(span.inputs)


def _gaps(turns: list[Turn]) -> int:
    """Turns whose preceding turn is not known although their history quotes it.

    The first turn may rest on a history from before this trajectory, if it shows the whole of it.
    """
    llm = [turn for turn in turns if turn.place.kind == "llm"]
    if not llm:
        return 0
    gaps = int(llm[0].span.omitted is not None and last_assistant(llm[0].span) >= 0)
    if any(turn.mute for turn in turns):
        return gaps  # which turn a history quotes cannot be told
    said = {mark for turn in turns for mark in marks(turn.span.outputs)}
    for turn in llm[1:]:
        quoted = preceding(turn.span)
        gaps += bool(quoted) and said.isdisjoint(quoted)
    return gaps


def preceding(span: Span) -> set[str]:
    """Marks of the turn that a turn's history quotes last; empty when it quotes none."""
    split = last_assistant(span)
    return set(marks(span.inputs[split : split + 1])) if split >= 0 else set()


def marks(messages: Iterable[Message]) -> Iterator[str]:
    """What an assistant message is recognised by: its call ids, without them its tools or text."""
    for message in messages:
        for call in message.calls:
            yield f"c:{call.call_id}" if call.call_id else f"n:{call.tool}"
        if not message.calls and message.text and message.text.strip():
            yield f"o:{digest(message.text.strip(), size=8)}"
