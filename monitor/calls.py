"""Calls: one logical call of up to three reporters.

A turn requested it, tool spans ran it (several, when layers are instrumented), a later turn's
history quotes its result. They are matched by call id and tool; ids can repeat between turns;
without an id by tool, arguments and order. A call stands where it was requested, else where its
span started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from monitor.model import Message, RequestedCall, ReturnedResult, Span, Unseen
from monitor.places import Place, Position, ancestors
from monitor.turns import Turn


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
        return self.result_unseen is None and (self.error is not None or self.result is not None)


class Group(msgspec.Struct, gc=False):
    """Tool spans that report one call: a span and those below it that name the same tool or none."""

    place: Place
    layers: list[Span]
    call_id: str | None = None


def find_groups(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[Group]:
    groups: dict[str, Group] = {}
    for span_id, at in places.items():  # outer spans first
        if at.kind != "tool":
            continue
        span = spans[span_id]
        outer = None
        for up in ancestors(places, at):
            if up.kind in ("agent", "llm"):
                break
            if up.kind == "tool" and span.tool in (None, spans[up.span_id].tool):
                outer = groups.get(up.span_id)
                break
        if outer is None and span.tool is None:
            continue  # it tells of a call that is not known yet
        if outer is None:
            groups[span_id] = Group(at, [span], span.call_id)
        else:
            outer.layers.append(span)
            outer.call_id = outer.call_id or span.call_id
            groups[span_id] = outer
    distinct = {group.place.span_id: group for group in groups.values()}
    return sorted(distinct.values(), key=lambda group: group.place.position())


def find_requested(turns: list[Turn]) -> list[LogicalCall]:
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
                    _run_by_provider(call, message)
                calls.append(call)
    return calls


def _run_by_provider(call: LogicalCall, message: Message) -> None:
    """A result beside the call: the model's provider ran it, and no span tells of it."""
    for returned in message.results:
        if returned.call_id == call.call_id:
            quote(call, returned)
            call.executed = True


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
    """A reporter shows arguments: whole ones replace none and cut ones.

    A bare value replaces no object: some spans show it without the parameter's name.
    """
    if text is not None and unseen is None:
        if text[:1] == "{" or call.arguments_unseen is not None or not _is_object(call.arguments):
            call.arguments, call.arguments_unseen = text, None
    elif call.arguments is None:
        call.arguments, call.arguments_unseen = text, unseen or call.arguments_unseen


def _is_object(text: str | None) -> bool:
    return text is not None and text[:1] == "{"


def _same(asked: str | None, shown: str | None) -> bool:
    """Whether two reporters show the same arguments, though written otherwise, or the one value
    without the parameter's name."""
    if asked is None or shown is None:
        return False
    if asked == shown:
        return True
    one, other = _value(asked), _value(shown)
    if isinstance(one, dict) and len(one) == 1 and not isinstance(other, dict):
        return next(iter(one.values())) in (other, shown)
    return bool(one == other)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def run(
    calls: list[LogicalCall],
    groups: list[Group],
    spans: Mapping[str, Span],
    places: Mapping[str, Place],
) -> Position | None:
    """Tells which calls ran: each group of tool spans joins the call that it reports. Gives where
    the last group stands that no id joined."""
    by_id: dict[tuple[str, str], list[LogicalCall]] = {}
    by_tool: dict[str, list[LogicalCall]] = {}
    for call in calls:
        by_tool.setdefault(call.tool, []).append(call)
        if call.call_id is not None:
            by_id.setdefault((call.call_id, call.tool), []).append(call)
    named: list[Group] = []
    loose: list[Group] = []
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
    return loose[-1].place.position() if loose else None


def unrequested(span: Span, at: Place, call_id: str | None) -> LogicalCall:
    """A call of which only its span tells."""
    return LogicalCall(
        key=call_id or span.span_id,
        tool=span.tool or "",
        position=at.position(),
        call_id=call_id,
        agent=at.agent,
    )


def _by_arguments(candidates: Iterable[LogicalCall], group: Group) -> LogicalCall | None:
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
        if shown is not None and _same(call.arguments, shown):
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
        nameless = (span.error for span in layers if span.tool is None and span.error is not None)
        call.error = next(nameless, None) if outer.error is None else outer.error
        if call.error is None and outer.result:
            # A layer failed, and the one around it gives that as what the tool said.
            told = (span.error for span in layers[1:] if span.error == outer.result)
            call.error = next(told, None)
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
            if hands_to(call.tool, spans[at.span_id].agent) and at.position() > call.position:
                call.executed, call.spans = True, (at.span_id,)
                call.span_id = at.span_id
                agents.remove(at)
                break


_TRANSFER: Final = "transfer_to_"
_NO_NAME: Final = re.compile(r"[^a-z0-9]")


def hands_to(tool: str, agent: str | None) -> bool:
    """Whether a tool is an agent, or hands over to it as the OpenAI Agents SDK names that."""
    if agent is None or tool == agent:
        return agent is not None
    return tool.startswith(_TRANSFER) and tool[len(_TRANSFER) :] == _NO_NAME.sub("_", agent.lower())


class Context(msgspec.Struct, gc=False):
    """What happened before this trajectory, as its first turn's history tells it."""

    results: list[str] = []
    call_ids: list[str] = []
    aliases: list[str] = []
    """Ids by which histories name calls of this trajectory that were requested under another."""


def quoted_results(calls: list[LogicalCall], turns: list[Turn], *, resumed: bool) -> Context:
    """Results that later turns quote join their calls; those of unknown calls make calls.

    What only the first turn's history tells is context, unless that turn is known to have gone on
    from one of this trajectory (`resumed`).
    """
    context = Context()
    by_id: dict[str, list[LogicalCall]] = {}
    for call in sorted(calls, key=lambda c: c.position):
        if call.call_id is not None:
            by_id.setdefault(call.call_id, []).append(call)
    named: set[str] = set()
    first = not resumed
    for turn in turns:
        if turn.place.kind != "llm":
            continue
        here = turn.place.position()
        asked: dict[str, str] = {}
        why = turn.span.unseen.get("input")
        if not first:
            for other, call in _named_by_results(turn, calls, by_id, here):
                by_id[other] = [call]
                context.aliases.append(other)
        taken = {call.call_id for message in turn.span.inputs for call in message.calls}
        for number, message in enumerate(turn.span.inputs):
            for index, request in enumerate(message.calls):
                call_id = request.call_id
                if call_id is None:
                    continue
                asked[call_id] = request.tool
                if first:
                    context.call_ids.append(call_id)
                elif call_id not in by_id:
                    if (alias := _alias(request, calls, taken, named, here)) is not None:
                        by_id[call_id] = [alias]
                        if not alias.requested:
                            alias.call_id = call_id  # only its span told of it, without an id
                        taken.add(alias.call_id)
                        named.add(alias.key)
                        context.aliases.append(call_id)
                        continue
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
                    quote(known[-1], quoted, why)
                elif quoted.call_id is None and (loose := _unreturned(calls, quoted, here)):
                    quote(loose, quoted, why)
                elif first and quoted.result is not None:
                    context.results.append(quoted.result)
        first = False
    return context


def _named_by_results(
    turn: Turn, calls: list[LogicalCall], known: Mapping[str, object], here: Position
) -> list[tuple[str, LogicalCall]]:
    """Ids by which a turn quotes the results of calls that were requested under other ids, where it
    repeats no history (as with `previous_response_id`): as many as there are calls without a
    result, in their order."""
    if any(message.role == "assistant" for message in turn.span.inputs):
        return []
    names = [
        returned.call_id
        for message in turn.span.inputs
        for returned in message.results
        if returned.call_id is not None and returned.call_id not in known
    ]
    if not names:
        return []
    waiting = [
        call for call in calls if call.requested and not call.returned and call.position < here
    ]
    if len(names) != len(waiting) or len(set(names)) < len(names):
        return []
    waiting.sort(key=lambda call: call.position)
    return list(zip(names, waiting, strict=True))


def _alias(
    request: RequestedCall,
    calls: list[LogicalCall],
    taken: set[str | None],
    named: set[str],
    here: Position,
) -> LogicalCall | None:
    """The earliest call that a history quotes under another id: it was requested under one of its
    own, or its request or its spans tell none. `named`: keys of calls that have such an id."""
    found = [
        call
        for call in calls
        if (
            call.key not in named
            if call.call_id is None and (call.requested or call.executed)
            else call.requested and call.call_id not in taken
        )
        and call.tool == request.tool
        and call.position < here
        and _same(call.arguments, request.arguments)
    ]
    return min(found, key=lambda call: call.position, default=None)


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


def quote(call: LogicalCall, quoted: ReturnedResult, why: Unseen | None = None) -> None:
    """A later turn's history quotes the result of a call. `why`: not all of that history is shown,
    so that what is quoted may be cut."""
    call.returned = True
    if quoted.result is None and not quoted.failed:
        if call.result is None and call.error is None:
            call.result_unseen = call.result_unseen or why or "content_hidden"
        return
    better = call.result_unseen is not None and quoted.result is not None and why is None
    if call.result is None or better:
        call.result, call.result_unseen = quoted.result, why
    if quoted.failed and call.error is None:
        call.error = quoted.result or ""


def repeats_an_id(call: LogicalCall) -> bool:
    """Whether a call before it has its id, so that its key names its span as well."""
    return call.call_id is not None and call.key.startswith(f"{call.call_id}@")


def name_calls(calls: list[LogicalCall]) -> None:
    """Ids can repeat between turns: the first call in order keeps it as its key."""
    used: set[str] = set()
    for call in calls:
        if call.key in used:
            call.key = f"{call.key}@{call.span_id}"
        used.add(call.key)
