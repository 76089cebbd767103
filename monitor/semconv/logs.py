"""Log records that tell a span's messages -> what the fold joins to the span.

A record carries its span's ids and nothing else of it. The records of one span that came together
become one observed span of kind `log` whose parent is that span; its id is a digest of what it
tells, so that a second copy is the same. `monitor.logs` puts them together with the span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from monitor.model import Span, digest
from monitor.semconv import genai, messages
from monitor.semconv.dialect import Content
from monitor.semconv.events import DETAILS, NAMES, Told
from monitor.semconv.limits import fit
from monitor.semconv.raw import RawLog, RawSpan, label
from monitor.semconv.trim import JsonHistory, trim
from monitor.semconv.wrapped import Raw

_SMALL: Final = 16 * 1024
"""Bytes of a history that is kept whole: no record tells whether its span has a parent, without
which nothing else tells the history. Longer ones are trimmed, so that a run grows linearly."""
_AGENT: Final = "gen_ai.agent.name"
_CONVERSATION: Final = "gen_ai.conversation.id"


def tells(name: str) -> bool:
    """Whether an event of this name tells messages."""
    return name in NAMES


def normalise_logs(records: Iterable[RawLog]) -> Iterator[Span]:
    """One span of kind `log` for each span of which the records tell something. Never fails."""
    groups: dict[tuple[str, str], list[RawLog]] = {}
    for record in records:
        if record.name in NAMES:
            groups.setdefault((record.trace_id, record.span_id), []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: record.time)  # stable: as sent where times are equal
        content = _details(group) or _messages(group)
        if content.inputs or content.outputs:
            yield _span(group, content)


def _details(group: list[RawLog]) -> Content | None:
    """The event that has the attributes of the current conventions."""
    for record in group:
        if record.name == DETAILS:
            attributes = {**record.attributes, genai.OPERATION: "chat"}
            raw = RawSpan(record.trace_id, record.span_id, record.span_id, attributes=attributes)
            return genai.read(raw)
    return None


def _messages(group: list[RawLog]) -> Content:
    told = Told([], [])
    for record in group:
        told.add(record.name, record.body)
    size = sum(len(bytes(item)) for item in told.inputs)
    content = Content("llm")
    content.inputs, content.omitted, why = trim(JsonHistory(told.inputs), everything=size < _SMALL)
    content.miss("input", why)
    content.take_outputs([messages.read(Raw(item)) for item in told.outputs])
    for record in group:
        content.agent = content.agent or label(record.attributes.get(_AGENT))
        content.conversation_id = content.conversation_id or label(
            record.attributes.get(_CONVERSATION)
        )
    return content


def _span(group: list[RawLog], content: Content) -> Span:
    first = group[0]
    if not content.outputs:
        content.unseen.pop("output", None)  # it may come in other records
    span = Span(
        trajectory=first.trace_id,
        span_id="",
        kind="log",
        parent=first.span_id,
        start=min(max(first.time, 0), 2**63 - 1),
        end=min(max(group[-1].time, 0), 2**63 - 1),
        agent=content.agent,
        service=first.resource.service,
        conversation_id=content.conversation_id,
        attributes=first.resource.attributes,
        inputs=content.inputs,
        omitted=content.omitted,
        outputs=content.outputs,
        unseen=content.unseen,
    )
    named = digest(msgspec.msgpack.encode(span), size=8)
    return fit(msgspec.structs.replace(span, span_id=named))
