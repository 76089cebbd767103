"""One arrival into the state of its trajectory: the fold.

`fold` is deterministic: time is the journal's, limits are the policy set's, and what it returns
depends on the arrivals alone. It needs the head and the index fields that the arrival names; where
it needs the spans themselves it raises `NeedContent`, before it has changed anything, and is called
again when they are there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monitor import label
from monitor.corpus import Corpus, flatten_json_text
from monitor.label import Event
from monitor.model import (
    Arrival,
    Close,
    CloseReason,
    Judgement,
    Lost,
    Observed,
    Pin,
    Reading,
    Span,
    Unknown,
    digest,
)
from monitor.ports import Loaded, Saving
from monitor.prefix import Prefix
from monitor.rge import (
    Bench,
    Head,
    LastAnswer,
    as_call,
    decode_head,
    encode_head,
    extend,
    known,
    new_head,
    rebuild,
    revive,
)

_encode = msgspec.msgpack.Encoder().encode
_decode_span = msgspec.msgpack.Decoder(Span).decode


class NeedContent(Exception):  # noqa: N818 - a request, not an error
    """The spans of this trajectory are needed to go on."""


class Work:
    """The state of one trajectory while a batch is folded, and what is to be saved of it."""

    def __init__(self, trajectory: str, loaded: Loaded) -> None:
        self.trajectory = trajectory
        self.head: Head | None = None if loaded.head is None else decode_head(loaded.head)
        self.fields: dict[str, bytes] = dict(loaded.fields)
        self.new_fields: dict[str, bytes] = {}
        self.new_content: dict[str, bytes] = {}
        self.changed = False
        self.gone = False
        self._spans: dict[str, Span] | None = None
        self._digests: dict[str, str] = {}
        self._revived = self.head is None
        if self.head is None:
            self._spans = {}
        elif loaded.content is not None:
            self.add_content(loaded)

    def add_content(self, loaded: Loaded) -> None:
        """All stored spans and index fields, below what this batch has added."""
        content = {**(loaded.content or {}), **self.new_content}
        self.fields = {**loaded.fields, **self.new_fields}
        self._spans = {span_id: _decode_span(data) for span_id, data in content.items()}
        self._digests = {span_id: span_digest(data) for span_id, data in content.items()}

    def revive(self, bench: Bench) -> None:
        if not self._revived and self.head is not None:
            revive(self.head, bench)
            self._revived = True

    def begin(self, bench: Bench, time: int) -> Head:
        self.head = new_head(self.trajectory, bench, time)
        self.gone, self._revived = False, True
        return self.head

    def forget(self) -> None:
        """Removes the trajectory; what arrives later begins it anew."""
        self.head, self.gone, self.changed = None, True, True
        self.fields, self.new_fields, self.new_content = {}, {}, {}
        self._spans, self._digests = {}, {}

    def expire(self, time: int, state_ttl: int) -> None:
        """State that began longer ago than its time to live counts as absent."""
        if self.head is not None and time - self.head.first > state_ttl:
            self.forget()

    @property
    def complete(self) -> bool:
        return self._spans is not None

    @property
    def spans(self) -> Mapping[str, Span]:
        if self._spans is None:
            raise NeedContent(self.trajectory)
        return self._spans

    @property
    def digests(self) -> Mapping[str, str]:
        return self._digests

    def store(self, span: Span, data: bytes, name: str) -> None:
        self.new_content[span.span_id] = data
        if self._spans is not None:
            self._spans[span.span_id] = span
            self._digests[span.span_id] = name

    def write_fields(self, fields: Mapping[str, bytes], *, whole: bool = False) -> None:
        """Writes those that differ; of the `whole` index also that the others are gone."""
        if whole:
            stale = {name: b"" for name, data in self.fields.items() if data and name not in fields}
            fields = {**fields, **stale}
        for name, data in fields.items():
            if self.fields.get(name, b"") != data:
                self.fields[name] = self.new_fields[name] = data

    def saving(self, due: int | None) -> Saving:
        head = None if self.head is None else encode_head(self.head)
        return Saving(head, self.new_fields, self.new_content, due, fresh=self.gone)

    def saved(self) -> None:
        """What was to be saved is."""
        self.new_fields, self.new_content = {}, {}
        self.changed = self.gone = False


def span_digest(data: bytes) -> str:
    return digest(data, size=8)


def fold(work: Work, arrival: Arrival, offset: int, time: int, bench: Bench) -> list[Event]:
    """Events that follow from one arrival. `bench` holds the policy set that the trajectory is
    pinned to, or for one that begins here, the one that it is to be pinned to."""
    if isinstance(arrival, Close):
        return _close(work, arrival, time, bench)
    work.revive(bench)
    head = work.head or work.begin(bench, time)
    if isinstance(arrival, Observed):
        events = _span(work, head, arrival.span, time, bench)
        head = work.head or head
    elif head.limit is not None:
        head.ignored += 1
        events = []
    elif isinstance(arrival, Lost):
        head.lost += 1
        events = _tell(head, f"lost:{arrival.source}", time, bench, late=head.closed is not None)
    elif isinstance(arrival, Unknown):
        head.unknown += 1
        events = _tell(head, f"unknown:{arrival.name}", time, bench)
    elif isinstance(arrival, Reading):
        events = _read(head, arrival, time, bench)
    else:
        assert isinstance(arrival, Pin)
        events = []
    head.offset, head.last = max(head.offset, offset), time
    work.changed = True
    return events


def _tell(head: Head, arrival: str, time: int, bench: Bench, *, late: bool = False) -> list[Event]:
    """The state has changed by this arrival: publish what follows."""
    head.chain = digest(head.chain, arrival)
    head.late = head.late or late
    return label.publish(head, bench, time)


# -- spans -------------------------------------------------------------------------------------


def _span(work: Work, head: Head, span: Span, time: int, bench: Bench) -> list[Event]:
    data = _encode(span)
    name = span_digest(data)
    seen = known(work.fields, span.span_id)
    if seen is not None and seen.digest == name:
        return []
    if head.limit is not None:
        head.ignored += 1
        return []
    if reason := _exceeded(head, span, len(data), time, bench):
        return _limit(work, head, reason, time, bench)
    if seen is not None:
        other = work.spans[span.span_id]
        head.conflicts += 1
        if (other.end, work.digests[span.span_id]) > (span.end, name):
            return []
    before = _facts(head)
    _add(work, head, span, data, name, replaces=seen is not None, bench=bench)
    head = work.head or head
    head.bytes += len(data)
    late = head.closed is not None and _facts(head) != before
    return _tell(head, f"span:{span.span_id}:{name}", time, bench, late=late)


def _add(
    work: Work, head: Head, span: Span, data: bytes, name: str, *, replaces: bool, bench: Bench
) -> None:
    """Extends the prefix by a span, or derives it anew."""
    # Only a head with a root can become quiescent, and then the answer is read with its evidence:
    # should that need the spans, the head is as it was.
    snapshot = encode_head(head) if head.roots and not work.complete else None
    fields = None
    if not replaces and (head.closed is None or span.kind == "other"):
        fields = extend(head, span, name, work.fields, bench)
    if fields is not None and not (head.settled and _unread(head, bench)):
        work.store(span, data, name)
        work.write_fields(fields)
        if not head.agentic:
            head.spans += 1
        return
    if not work.complete:
        if snapshot is not None and (restored := decode_head(snapshot)) is not None:
            revive(restored, bench)
            work.head = restored
        raise NeedContent(work.trajectory)
    work.store(span, data, name)
    refresh(work, head, bench)


def refresh(work: Work, head: Head, bench: Bench) -> None:
    """Derives the state anew from the spans; reads the answer when it is due to be judged."""
    prefix, fields = rebuild(head, work.spans, work.digests, bench)
    work.write_fields(fields, whole=True)
    if head.settled:
        head.print = _print(prefix)
        _ground(head, prefix, bench)
    else:
        head.print = None


def _unread(head: Head, bench: Bench) -> bool:
    """The answer must be judged and has not been since the last span that matters."""
    return head.print is None or any(
        standing.bound and judge.checks.grounding is not None and standing.grounding is None
        for standing, judge in zip(head.standings, bench.judges, strict=True)
    )


def _ground(head: Head, prefix: Prefix, bench: Bench) -> None:
    """Grounds the answer in what the calls returned, for every contract that asks for it."""
    corpus: Corpus | None = None
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        grounding = judge.checks.grounding
        if not standing.bound or grounding is None:
            continue
        answer = standing.answer if judge.one_agent else head.answer
        if answer is None or not answer.shown or not answer.follows:
            standing.grounding = Judgement()
            continue
        corpus = corpus or evidence(prefix, head)
        state = grounding.initial()
        for call in prefix.calls:
            if judge.judges(call.agent):
                state = grounding.step(state, as_call(call, head, frozenset()))
        found = grounding.judge(state, _text(prefix, answer), corpus)
        standing.grounding = _placed(found, answer)


def _text(prefix: Prefix, answer: LastAnswer) -> str:
    return next(t.text or "" for t in prefix.turns if t.span.span_id == answer.span_id)


def _placed(found: Judgement, answer: LastAnswer) -> Judgement:
    """Findings of the answer, with the step and the span where it stands."""
    return msgspec.structs.replace(
        found,
        later=tuple(
            msgspec.structs.replace(f, step=answer.step, span_id=answer.span_id)
            for f in found.later
        ),
    )


def evidence(prefix: Prefix, head: Head) -> Corpus:
    """What the tools returned, failures included, keyed by `tool#i`, i the index in A."""
    corpus = Corpus()
    executed = 0
    for call in prefix.calls:
        ran = call.executed or (call.returned and not head.tools_seen)
        key = f"{call.tool}#{executed}" if ran else call.tool
        executed += ran
        if not call.evidence:
            continue
        if call.result is not None:
            corpus.add(key, flatten_json_text(call.result))
        if call.error:
            corpus.add(key, call.error)
    for text in prefix.context:
        corpus.add("context", flatten_json_text(text))
    return corpus


def _print(prefix: Prefix) -> str:
    """Digest of steps and evidence: what a late span must change to be told."""
    return digest(
        _encode(
            [
                [
                    (c.key, c.tool, c.arguments, c.executed, c.returned, c.result, c.error)
                    for c in prefix.calls
                    if c.evidence or c.executed
                ],
                [(answer.span_id, answer.text) for answer in prefix.answers],
                [request.text for request in prefix.requests],
                prefix.context,
            ]
        )
    )


def _facts(head: Head) -> tuple[object, ...]:
    """What coverage and steps rest on, to tell whether a late span has changed them."""
    return (
        head.print,
        head.agent,
        len(head.roots),
        bool(head.missing),
        bool(head.gaps),
        list(head.output_unseen),
        [standing.anonymous for standing in head.standings],
    )


# -- limits, readings, closes ------------------------------------------------------------------


def _exceeded(head: Head, span: Span, size: int, time: int, bench: Bench) -> CloseReason | None:
    limits = bench.limits
    if time - head.first > limits.max_age:
        return "age_limit"
    if head.bytes + size > limits.max_bytes:
        return "byte_limit"
    if head.steps >= limits.max_steps and span.kind in ("llm", "tool"):
        return "step_limit"
    return None


def _limit(work: Work, head: Head, reason: CloseReason, time: int, bench: Bench) -> list[Event]:
    """The trajectory has grown too large: what it has shown so far stands, the rest is counted."""
    if head.agentic and _unread(head, bench) and not work.complete:
        raise NeedContent(work.trajectory)
    late = head.closed is not None
    head.limit = reason
    head.closed = head.closed or reason
    head.ignored += 1
    if head.agentic and _unread(head, bench):
        refresh(work, head, bench)
    return _tell(head, f"limit:{reason}", time, bench, late=late)


def fail(work: Work, offset: int, time: int, bench: Bench) -> list[Event]:
    """An arrival broke the fold: only what was published and cannot be refuted stands."""
    head = work.head
    if head is None:
        return []
    head.offset, head.last = max(head.offset, offset), time
    head.limit = "fold_error"
    head.closed = head.closed or "fold_error"
    head.window = []
    work.changed = True
    return _tell(head, "fold_error", time, bench)


def _read(head: Head, reading: Reading, time: int, bench: Bench) -> list[Event]:
    """The first reading of the answer as it stands counts; others do nothing."""
    answer = head.answer
    if answer is None or reading.step != "answer" or reading.content != answer.digest:
        return []
    if head.reading is not None and head.reading.content == reading.content:
        return []
    head.reading = reading
    return _tell(head, f"reading:{reading.id}", time, bench)


def _close(work: Work, close: Close, time: int, bench: Bench) -> list[Event]:
    head = work.head
    if head is None or head.closed is not None or head.offset > close.after:
        return []
    work.changed = True
    if not head.agentic:
        work.forget()
        return []
    work.revive(bench)
    if _unread(head, bench) and not work.complete:
        raise NeedContent(work.trajectory)
    head.closed = close.reason
    if _unread(head, bench):
        refresh(work, head, bench)
    return _tell(head, f"close:{close.reason}:{close.after}", time, bench)
