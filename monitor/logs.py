"""Spans, and what log records told of them, put together.

Frameworks that follow the conventions up to 1.36 tell messages in log records, which travel apart
from the spans and in any order with them. Messages that the span itself shows go before. While a
span is not known, its records stand for it: a model was asked, and what it said can be judged.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monitor.model import Message, Span


def joined(spans: Mapping[str, Span]) -> Mapping[str, Span]:
    """The spans without those of kind `log`, each with the messages that those tell of it."""
    told: dict[str, list[Span]] = {}
    for span in spans.values():
        if span.kind == "log" and span.parent is not None:
            told.setdefault(span.parent, []).append(span)
    if not told:
        return spans
    found = {span_id: span for span_id, span in spans.items() if span.kind != "log"}
    for span_id, logs in told.items():
        logs.sort(key=lambda log: (log.start, log.span_id))
        known = found.get(span_id)
        found[span_id] = _with(_stand_in(span_id, logs) if known is None else known, logs)
    return found


def _stand_in(span_id: str, logs: list[Span]) -> Span:
    """A span that is not known yet. That its parent is not known keeps the run from ending."""
    first, last = logs[0], logs[-1]
    return Span(
        trajectory=first.trajectory,
        span_id=span_id,
        kind="llm",
        parent=f"{span_id}?",
        start=first.start,
        end=max(last.end, first.start),
        service=first.service,
        attributes=first.attributes,
    )


def _with(span: Span, logs: list[Span]) -> Span:
    if span.kind not in ("llm", "other"):
        return span
    inputs = span.inputs or _all([log.inputs for log in logs])
    outputs = span.outputs or _all([log.outputs for log in logs])
    unseen = dict(span.unseen)
    if inputs and not span.inputs:
        unseen.pop("input", None)
    if outputs and not span.outputs:
        unseen.pop("output", None)
    for log in logs:
        for part, why in log.unseen.items():
            if not (span.inputs if part == "input" else span.outputs):
                unseen.setdefault(part, why)
    if outputs and not inputs:
        unseen.setdefault("input", "content_hidden")
    return msgspec.structs.replace(
        span,
        kind="llm",
        agent=span.agent or next((log.agent for log in logs if log.agent), None),
        conversation_id=span.conversation_id
        or next((log.conversation_id for log in logs if log.conversation_id), None),
        inputs=inputs,
        omitted=span.omitted or next((log.omitted for log in logs if log.omitted), None),
        outputs=outputs,
        unseen=unseen,
    )


def _all(parts: list[tuple[Message, ...]]) -> tuple[Message, ...]:
    return tuple(message for part in parts for message in part)
