"""The RGE state of a trajectory: Requirements, Grounding, Execution, as far as its prefix goes.

There are two ways from one prefix to the next, and they must agree:

- `rebuild` derives everything anew from the spans. It is the specification, and the way for what
  changes the past: a late span, a parent above known steps, a merged call.
- `extend` appends: an LLM span that follows all known steps, a tool span that runs a call which is
  still open, a span without agent meaning. It costs the same at step 10 and at step 1 000,
  because it sees only the *head* (what is rewritten for every batch) and the index fields of
  the ids that the span names. What it cannot settle by these it leaves to `rebuild`.

The head holds the calls that may still change (the *window*), and for the calls before them only
the monitors' states and a few sums. Stored beside it, append-only, are the spans by id (the
*content*) and the *index fields*:

    s:<span id>    digest and place of a known span
    w:<span id>    a parent that known spans name and that is not known
    c:<call id>    how a call with this id stands: open, settled, or several calls
    o:<digest>, n:<tool>   an assistant message, by which a later turn's history is recognised
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from monitor.checks import Checks, compile_contract
from monitor.contract import Contract, PolicySet, matches
from monitor.model import (
    UNSEEN,
    Call,
    CloseReason,
    Execution,
    Finding,
    Judgement,
    Reading,
    Span,
    Unseen,
)
from monitor.model import digest as digest_of
from monitor.prefix import (
    LogicalCall,
    Place,
    Position,
    Prefix,
    answer_text,
    derive,
    is_mute,
    marks,
    place,
    preceding,
    quote,
    report,
    request_text,
    unrequested,
)

STATE_VERSION: Final = 1
"""Version of the stored form. A state of another version counts as lost and is rebuilt."""

AGENTIC: Final = frozenset({"agent", "llm", "tool"})

WINDOW: Final = 16
"""Calls kept in the head although they are still open; older ones cost a rebuild to change."""

NAMES: Final = 32
"""Agents and services remembered of one trajectory."""


# -- the compiled policy set -----------------------------------------------------------------


class Judge(msgspec.Struct, frozen=True):
    """One contract, compiled."""

    contract: Contract
    checks: Checks

    @property
    def one_agent(self) -> bool:
        """It judges the steps of one agent only."""
        return self.contract.applies_to.agent is not None

    def judges(self, agent: str | None) -> bool:
        """Whether a step of this agent is its business."""
        wanted = self.contract.applies_to.agent
        return wanted is None or (agent is not None and matches(wanted, agent))


class Bench:
    """The judges of one policy set."""

    def __init__(self, policy_set: PolicySet) -> None:
        self.policy_set = policy_set
        self.limits = policy_set.limits
        self.judges = [Judge(c, compile_contract(c)) for c in policy_set.contracts]
        self.ruled = frozenset(t for c in policy_set.contracts for t in c.parameter_rules)
        """Tools whose arguments some rule reads."""


# -- state -----------------------------------------------------------------------------------


class LastAnswer(msgspec.Struct, array_like=True, gc=False):
    """The answer as far as a label depends on it."""

    span_id: str
    shown: bool
    digest: str
    follows: bool
    """No known step comes after it."""
    step: int


class Standing(msgspec.Struct, omit_defaults=True):
    """How a trajectory stands under one contract."""

    bound: bool = False
    policy: Any = None
    trajectory: Any = None
    answer: LastAnswer | None = None
    grounding: Judgement | None = None
    """What grounding says of the answer; None until it is asked and after a span that matters."""
    anonymous: bool = False
    """Some step's agent is not known, and the contract names one."""
    revision: int = 0
    raised: dict[str, Finding] = {}
    """Published, not withdrawn: violation id to finding."""
    open: bool = False
    """The last assessment was of a prefix that was not settled."""
    said: tuple[Any, ...] | None = None
    """What the last label said, to tell whether the next one says something else."""


class Head(msgspec.Struct, omit_defaults=True):
    """What is rewritten for every batch that names the trajectory."""

    trajectory: str
    policy_set: str
    first: int
    """Journal time of the first arrival, milliseconds."""
    last: int = 0
    offset: int = -1
    """Journal offset of the last arrival that is not a close."""
    chain: str = ""
    """Digest over all arrivals that changed something, in order."""
    spans: int = 0
    bytes: int = 0
    agentic: bool = False
    closed: CloseReason | None = None
    limit: CloseReason | None = None
    """A limit or an error after which arrivals are counted, not folded."""
    late: bool = False
    lost: int = 0
    unknown: int = 0
    conflicts: int = 0
    """Different spans that came under one id."""
    ignored: int = 0

    agent: str | None = None
    service: str | None = None
    attributes: dict[str, str] = {}
    conversation: str | None = None
    turn_conversation: bool = False
    agents: list[str] = []
    services: list[tuple[str | None, dict[str, str]]] = []

    roots: list[str] = []
    missing: int = 0
    gaps: int = 0
    mute: bool = False
    turned: bool = False
    agent_turns: bool = False
    tools_seen: bool = False
    asked: bool = False
    requested: bool = False
    """Some call was requested by a turn;"""
    nameless_request: bool = False
    """one of them without an id;"""
    nameless_run: bool = False
    """some tool span has none: then spans and requests are matched by looking at all of them."""
    calls: int = 0
    steps: int = 0
    tail: Position | None = None
    """Position behind which a step is appended."""
    depth: int | None = None
    answer: LastAnswer | None = None
    window: list[LogicalCall] = []
    unanswered: int = 0
    """Calls before the window of which no result is known,"""
    not_run: int = 0
    """and that no span is known to have run."""
    output_unseen: list[Unseen] = []
    results_unseen: list[Unseen] = []
    arguments_unseen: dict[str, Unseen] = {}
    """Tools that a rule reads and of which a call before the window does not show arguments."""

    print: str | None = None
    """Digest of steps and evidence after `rebuild`; None since a later `extend`."""
    reading: Reading | None = None
    standings: list[Standing] = []
    outsider: Standing | None = None
    """The label without a contract."""

    @property
    def pending_calls(self) -> list[LogicalCall]:
        return [call for call in self.window if not call.answered]

    @property
    def quiescent(self) -> bool:
        """Root and answer seen after all known steps, no result and no parent awaited."""
        return (
            bool(self.roots)
            and not self.missing
            and self.answer is not None
            and self.answer.follows
            and not self.unanswered
            and all(call.answered for call in self.window)
        )

    @property
    def reading_of_answer(self) -> Reading | None:
        """The reading of the answer as it now stands; one of superseded content is none."""
        reading, answer = self.reading, self.answer
        if reading is None or answer is None or reading.content != answer.digest:
            return None
        return reading

    @property
    def settled(self) -> bool:
        """What judges the whole run may speak."""
        return self.closed is not None or self.quiescent


class Known(msgspec.Struct, array_like=True, gc=False):
    """Index field `s:`."""

    digest: str
    place: Place


def new_head(trajectory: str, bench: Bench, time: int) -> Head:
    """A trajectory that begins at this journal time, pinned to the policy set of `bench`."""
    standings = [Standing() for _ in bench.judges]
    return Head(trajectory, bench.policy_set.digest, time, time, standings=standings)


_encode = msgspec.msgpack.Encoder().encode
_decode_known = msgspec.msgpack.Decoder(Known).decode
_decode_head = msgspec.msgpack.Decoder(tuple[int, Head]).decode
_decode_version = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw]).decode

Fields = Mapping[str, bytes]


def encode_head(head: Head) -> bytes:
    return _encode((STATE_VERSION, head))


def decode_head(data: bytes) -> Head | None:
    """The head, or None when another version wrote it."""
    if _decode_version(data)[0] != STATE_VERSION:
        return None
    return _decode_head(data)[1]


def revive(head: Head, bench: Bench) -> None:
    """Gives the monitors' states their types again after decoding."""
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        if standing.bound:
            standing.policy = _typed(judge.checks.policy, standing.policy)
            if judge.checks.trajectory is not None:
                standing.trajectory = _typed(judge.checks.trajectory, standing.trajectory)


def _typed(monitor: Any, state: Any) -> Any:
    return msgspec.convert(state, type(monitor.initial()))


def known(fields: Fields, span_id: str) -> Known | None:
    data = fields.get(f"s:{span_id}")
    return _decode_known(data) if data else None


def names(span: Span) -> list[str]:
    """Index fields that `extend` may look at for a span."""
    wanted = [f"s:{span.span_id}", f"w:{span.span_id}"]
    if span.parent is not None:
        wanted += (f"s:{span.parent}", f"w:{span.parent}")
    if span.call_id is not None:
        wanted.append(f"c:{span.call_id}")
    for message in (*span.inputs, *span.outputs):
        wanted += (f"c:{call.call_id}" for call in message.calls if call.call_id)
        wanted += (f"c:{quoted.call_id}" for quoted in message.results if quoted.call_id)
    if span.kind == "llm":
        wanted += preceding(span)
    return wanted


# -- monitors over calls -----------------------------------------------------------------------


def as_call(call: LogicalCall, head: Head, ruled: frozenset[str]) -> Call:
    """A logical call as the monitors see it."""
    execution: Execution
    if call.executed or (call.returned and not head.tools_seen):
        execution = "executed"
    else:
        execution = "unknown" if call.returned else "requested"
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


def _shown(call: LogicalCall) -> bool:
    return call.arguments is not None and call.arguments_unseen is None


def _done(call: LogicalCall) -> bool:
    """No later in-order arrival changes what the monitors see of it."""
    return call.executed and call.readable and _shown(call)


def _slim(call: LogicalCall, ruled: frozenset[str]) -> None:
    """Drops texts that nothing in the head reads; an empty text says that there is one."""
    if call.result is not None:
        call.result = ""
    if call.error is not None:
        call.error = ""
    if call.arguments is not None and (call.tool not in ruled or call.arguments_unseen):
        call.arguments = ""


def _settle(head: Head, bench: Bench, fields: dict[str, bytes]) -> None:
    """Moves calls that are done, or too many, out of the window into the monitors' states."""
    while head.window and (_done(head.window[0]) or len(head.window) > WINDOW):
        call = head.window.pop(0)
        _leave(head, call, bench.ruled)
        for standing, judge in zip(head.standings, bench.judges, strict=True):
            if standing.bound and judge.judges(call.agent):
                seen = as_call(call, head, bench.ruled)
                standing.policy = judge.checks.policy.step(standing.policy, seen)
                if judge.checks.trajectory is not None:
                    standing.trajectory = judge.checks.trajectory.step(standing.trajectory, seen)
        if call.call_id is not None:
            fields[f"c:{call.call_id}"] = _call_mark(call, "s" if _done(call) else "u")


def _leave(head: Head, call: LogicalCall, ruled: frozenset[str]) -> None:
    """Sums over calls before the window."""
    head.unanswered += not call.answered
    head.not_run += not call.executed
    if call.executed and not call.readable:
        _note(head.results_unseen, call.result_unseen or "content_hidden")
    if call.tool in ruled and not _shown(call):
        head.arguments_unseen[call.tool] = call.arguments_unseen or "content_hidden"


def _note(reasons: list[Unseen], reason: Unseen) -> None:
    if reason not in reasons:
        reasons.append(reason)
        reasons.sort()


def _call_mark(call: LogicalCall, status: str) -> bytes:
    return f"{status}{'r' if call.requested else '-'}".encode()


# -- rebuild -----------------------------------------------------------------------------------


def rebuild(
    head: Head, spans: Mapping[str, Span], digests: Mapping[str, str], bench: Bench
) -> tuple[Prefix, dict[str, bytes]]:
    """Derives the prefix anew, sets the head to it, and returns it with all index fields."""
    prefix = derive(spans)
    _keep_keys(head, prefix)
    _identify(head, prefix, spans, bench)
    head.spans = len(spans)
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
    head.nameless_request = any(c.requested and c.call_id is None for c in prefix.calls)
    head.nameless_run = any(s.kind == "tool" and s.call_id is None for s in spans.values())
    head.calls = len(prefix.calls)
    head.steps = prefix.steps
    head.depth = prefix.depth
    head.output_unseen = sorted({turn.hidden for turn in prefix.turns if turn.hidden})
    ends = [turn.place.position() for turn in prefix.turns]
    ends += [at.position() for at in prefix.places.values() if at.kind == "agent"]
    ends += [call.position._replace(order=0) for call in prefix.calls]
    head.tail = max(ends, default=None)
    _judge_all(head, prefix, bench)
    return prefix, _index(head, prefix, spans, digests)


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
        _slim(call, bench.ruled)
    head.unanswered = head.not_run = 0
    head.results_unseen, head.arguments_unseen = [], {}
    _settle(head, bench, {})


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
        here = turns[-1].place.position()
        follows = not calls or here > calls[-1].position
        shown, text, span_id = True, turns[-1].text, turns[-1].span.span_id
        step = sum(call.position < here for call in prefix.calls)
    return LastAnswer(span_id, shown, content_digest(text or ""), follows, step)


def content_digest(text: str) -> str:
    """By which a reading names the content that it read."""
    return digest_of(text, size=8)


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
        f"s:{span_id}": _encode(Known(digests[span_id], at))
        for span_id, at in prefix.places.items()
    }
    for span_id, at in prefix.places.items():
        if at.parent is not None and at.parent in prefix.missing:
            name = f"w:{at.parent}"
            fields[name] = _wait(fields.get(name), spans[span_id])
    inside = {call.key for call in head.window}
    for call in prefix.calls:
        if call.call_id is not None:
            name = f"c:{call.call_id}"
            status = "m" if name in fields else "w" if call.key in inside else ""
            fields[name] = _call_mark(call, status or ("s" if _done(call) else "u"))
    for turn in prefix.turns:
        fields.update(_marks(turn.span))
    return fields


def _marks(span: Span) -> dict[str, bytes]:
    """Index fields by which a later turn's history recognises this one."""
    return {mark: b"1" for mark in marks(span.outputs) if not mark.startswith("c:")}


def _wait(before: bytes | None, child: Span) -> bytes:
    """Index field `w:`: the service whose spans wait for a parent, `*` for several or remote."""
    service = b"*" if child.remote else b"=" + (child.service or "").encode("utf-8", "replace")
    return service if not before or before == service else b"*"


# -- extend ------------------------------------------------------------------------------------


def extend(
    head: Head, span: Span, digest: str, fields: Fields, bench: Bench
) -> dict[str, bytes] | None:
    """Appends a span. Returns the index fields to write, or None, with the head untouched, when
    the span changes more than the end of the prefix."""
    if not head.agentic:
        if span.kind != "other":
            return None
        return {f"s:{span.span_id}": _encode(Known(digest, place(span, None)))}
    waited = fields.get(f"w:{span.span_id}")
    above = known(fields, span.parent) if span.parent is not None else None
    if span.parent == span.span_id or not _stays_below(span, above, waited):
        return None
    at = place(span, above.place if above else None)
    if span.parent is None:
        at.complete = True
    new: dict[str, bytes] = {f"s:{span.span_id}": _encode(Known(digest, at))}
    if span.kind == "llm":
        if not _append_turn(head, span, at, fields, new, bench):
            return None
    elif span.kind == "tool" and not _append_run(head, span, at, fields, new, bench):
        return None
    if waited:
        head.missing -= 1
        new[f"w:{span.span_id}"] = b""
    if span.parent is not None and above is None:
        waiting = fields.get(f"w:{span.parent}")
        head.missing += not waiting
        new[f"w:{span.parent}"] = _wait(waiting, span)
    head.spans += 1
    if span.kind != "other":
        head.print = None
        for standing in head.standings:
            standing.grounding = None
        _settle(head, bench, new)
    return new


def _stays_below(span: Span, above: Known | None, waited: bytes | None) -> bool:
    """Whether no other span's place changes with this one's arrival."""
    if span.kind == "agent":
        return False
    if waited and (
        span.kind != "other"
        or above is not None
        or span.parent is None
        or span.remote
        or waited != _wait(None, span)
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
    quotes = _quotes(head, span, fields)
    asked = [call for message in span.outputs for call in message.calls]
    ids = {call.call_id for call in asked}
    if quotes is None or None in ids or len(ids) < len(asked):
        return False
    if any(fields.get(f"c:{call_id}") for call_id in ids):
        return False
    text = answer_text(span)
    answers = not at.in_tool and (mute or text is not None)
    if answers and head.depth is not None and at.depth < head.depth:
        return False
    if answers and any(judge.one_agent for judge in bench.judges):
        return False  # whose answer it is, is not told by the end of the prefix

    for call, quoted in quotes:
        quote(call, quoted)
        _slim(call, bench.ruled)
    if not head.turn_conversation and span.conversation_id:
        head.conversation, head.turn_conversation = span.conversation_id, True
    if not at.in_tool and request_text(span, first=not head.asked):
        head.steps += 1
        head.asked = True
    head.requested = head.requested or bool(asked)
    head.tail = here
    head.mute = head.mute or mute
    if reason := span.unseen.get("output"):
        _note(head.output_unseen, reason)
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
        head.answer = LastAnswer(
            span.span_id, text is not None, content_digest(text or ""), True, head.steps
        )
        head.steps += text is not None
    new.update(_marks(span))
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
    _slim(call, bench.ruled)
    head.window.append(call)
    if call.call_id is not None:
        new[f"c:{call.call_id}"] = _call_mark(call, "w")
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        if judge.one_agent:
            standing.anonymous = standing.anonymous or call.agent is None
            if standing.answer is not None and judge.judges(call.agent):
                standing.answer.follows = False


def _append_run(
    head: Head, span: Span, at: Place, fields: Fields, new: dict[str, bytes], bench: Bench
) -> bool:
    """A tool span: it runs the one open call that has its id, or a call that nobody requested."""
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
        _slim(call, bench.ruled)
    else:
        if head.nameless_request or (head.nameless_run and head.requested):
            return False
        if span.call_id is None and (head.not_run or not all(c.executed for c in head.window)):
            return False
        if head.tail is not None and at.position() <= head.tail:
            return False
        head.nameless_run = head.nameless_run or span.call_id is None
        call = unrequested(span, at, span.call_id)
        report(call, [span], at)
        head.tail = at.position()
        _append_call(head, call, new, bench)
    head.tools_seen = True
    return True
