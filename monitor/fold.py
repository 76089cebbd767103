"""One arrival into the state of its trajectory: the fold.

`fold` is deterministic: time is the journal's, limits are the policy set's, and what it returns
depends on the arrivals alone. It needs the head and the index fields that the arrival names; where
it needs the spans themselves it raises `NeedContent`, before it has changed anything, and is called
again when they are there.
"""

from __future__ import annotations

import msgspec

from monitor import ask, label, readings
from monitor.bench import Bench
from monitor.evidence import fingerprint, ground
from monitor.extend import extend
from monitor.head import Head, decode_head, encode_head, revive
from monitor.index import known, span_digest
from monitor.label import Event
from monitor.model import (
    HISTORY_LOST,
    Arrival,
    Close,
    CloseReason,
    Lost,
    Observed,
    Pin,
    Reading,
    Span,
    Unknown,
    digest,
)
from monitor.prefix import Prefix
from monitor.reading import Read
from monitor.recent import begin
from monitor.rge import rebuild
from monitor.work import NeedContent, Work

_encode = msgspec.msgpack.Encoder().encode


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
        _ignore(work, head)
        events = []
    elif isinstance(arrival, Lost):
        if arrival.reason == HISTORY_LOST:
            head.history_lost = True
        else:
            head.lost += 1
        events = _tell(head, f"lost:{arrival.source}", time, bench, late=head.closed is not None)
    elif isinstance(arrival, Unknown):
        head.unknown += 1
        events = _tell(head, f"unknown:{arrival.name}", time, bench)
    elif isinstance(arrival, Reading):
        counts = readings.take(work, head, arrival, bench)
        events = _tell(head, f"reading:{arrival.id}", time, bench) if counts else []
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


def _span(work: Work, head: Head, span: Span, time: int, bench: Bench) -> list[Event]:
    data = _encode(span)
    name = span_digest(data)
    seen = known(work.fields, span.span_id)
    if seen is not None and seen.digest == name:
        work.counters.duplicates += 1
        return []
    if head.limit is not None:
        _ignore(work, head)
        return []
    if reason := _exceeded(head, span, len(data), time, bench):
        return _limit(work, head, reason, time, bench)
    if seen is not None:
        other = work.spans[span.span_id]
        head.conflicts += 1
        work.counters.conflicts += 1
        if (other.end, work.digests[span.span_id]) > (span.end, name):
            return []
    before = _facts(head) if head.closed is not None else None
    _add(work, head, span, data, name, time, replaces=seen is not None, bench=bench)
    head = work.head or head
    head.bytes += len(data)
    late = before is not None and _facts(head) != before
    return _tell(head, f"span:{span.span_id}:{name}", time, bench, late=late)


def _add(
    work: Work,
    head: Head,
    span: Span,
    data: bytes,
    name: str,
    time: int,
    *,
    replaces: bool,
    bench: Bench,
) -> None:
    """Extends the prefix by a span, or derives it anew."""
    # Only a head with a root can become quiescent, and then the answer is read with its evidence:
    # should that need the spans, the head is as it was.
    snapshot = encode_head(head) if head.roots and not work.complete else None
    fields = None
    if not replaces and (head.closed is None or span.kind == "other"):
        fields = extend(head, span, name, work.fields, bench)
    recent, grown = work.recent, head
    if fields is None and recent is not None and head.closed is None and not replaces:
        work.fields = {**recent.written, **work.fields}
        if (found := recent.put(head, span, data, work.fields, bench)) is not None:
            grown, fields = found
    if fields is not None and not (grown.settled and _unread(grown, bench)):
        work.counters.extended += 1
        work.head = grown
        work.store(span, data, name)
        if recent is not None:
            work.recent = recent.add(span, data, work.fields, fields).trim(grown, bench)
        work.write_fields(fields)
        if not grown.agentic:
            grown.spans += 1
        return
    if not work.complete:
        if snapshot is not None:
            work.head = decode_head(snapshot)
            revive(work.head, bench)
        raise NeedContent(work.trajectory)
    work.store(span, data, name)
    refresh(work, head, time, bench)


def refresh(work: Work, head: Head, time: int, bench: Bench) -> None:
    """Derives the state anew from the spans; reads the answer when it is due to be judged."""
    work.counters.derived += 1
    head.derived += len(work.spans)
    prefix, fields = rebuild(head, work.spans, work.digests, bench)
    work.write_fields(fields, whole=True)
    if head.settled:
        head.print = fingerprint(prefix)
        ground(head, prefix, bench)
        _ask(work, head, prefix, time, bench)
    else:
        head.print = None
    work.recent = begin(head, work.spans.values())


def _ask(work: Work, head: Head, prefix: Prefix, time: int, bench: Bench) -> None:
    """Asks for readings of the settled prefix, each once."""
    if all(judge.contract.semantic.mode == "off" for judge in bench.judges):
        return
    known = {(read.step, read.parser, read.content): read for read in head.reads}
    head.reads = []
    for request in ask.requests(prefix, head, bench, time):
        if request.type == "answer":
            read = known.get((request.step, request.parser, request.content))
            if read is None:
                read = Read(request.step, request.parser, request.content, time)
                work.requests.append(request)
            head.reads.append(read)
        elif request.name not in head.steps_asked and len(head.steps_asked) < ask.STEPS_LIMIT:
            head.steps_asked.append(request.name)
            work.requests.append(request)


def _unread(head: Head, bench: Bench) -> bool:
    """The answer must be judged and has not been since the last span that matters."""
    return head.print is None or any(
        standing.bound and judge.checks.grounding is not None and standing.grounding is None
        for standing, judge in zip(head.standings, bench.judges, strict=True)
    )


def _ignore(work: Work, head: Head) -> None:
    """Behind a limit or an error arrivals are counted, not folded."""
    head.ignored += 1
    work.counters.ignored += 1


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


def _exceeded(head: Head, span: Span, size: int, time: int, bench: Bench) -> CloseReason | None:
    limits = bench.limits
    if time - head.first > limits.max_age:
        return "age_limit"
    if head.bytes + size > limits.max_bytes:
        return "byte_limit"
    if head.steps >= limits.max_steps and span.kind in ("llm", "tool"):
        return "step_limit"
    if head.derived > limits.max_derived:
        return "step_limit"
    return None


def _limit(work: Work, head: Head, reason: CloseReason, time: int, bench: Bench) -> list[Event]:
    """The trajectory has grown too large: what it has shown so far stands, the rest is counted."""
    if head.agentic and _unread(head, bench) and not work.complete:
        raise NeedContent(work.trajectory)
    late = head.closed is not None
    head.limit = reason
    head.closed = head.closed or reason
    _ignore(work, head)
    if head.agentic and _unread(head, bench):
        refresh(work, head, time, bench)
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


def _close(work: Work, close: Close, time: int, bench: Bench) -> list[Event]:
    head = work.head
    if head is None or head.closed is not None or head.offset > close.after:
        return []
    work.changed = True
    if not head.agentic:
        if head.lost or head.unknown or head.history_lost:
            head.closed = close.reason  # what is gone may have been a run's: kept, should one come
        else:
            work.forget()
        return []
    work.revive(bench)
    if _unread(head, bench) and not work.complete:
        raise NeedContent(work.trajectory)
    head.closed = close.reason
    if _unread(head, bench):
        refresh(work, head, time, bench)
    return _tell(head, f"close:{close.reason}:{close.after}", time, bench)
