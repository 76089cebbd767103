"""Twins: what a model said once, told by the spans of several instrumentations.

A model's client may be instrumented twice, and the framework that calls it as well; some clients
write spans of their own beside all others, mostly without content. Two LLM spans are twins

- when one lies in the other, with no agent or tool between, or
- when they name the same response of the model's provider, overlap in time, and are written by
  different instrumentations. (Servers choose the ids, and some give every response the same.)

One stands for both where it shows all that the other shows; else both stay, so that nothing that any
span shows is lost. A span that names another response than its instrumentation did before is a
call of its own, wherever it lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from monitor.model import RequestedCall, Span
from monitor.places import Place, ancestors

MOST: Final = 16
"""Spans of one response at one time; more are no stack of instrumentations, and stay apart."""
_ITEM: Final = "fc_"
"""How the ids begin that OpenAI's Responses give a call beside the one that its result names."""


class Told(msgspec.Struct, gc=False):
    """A model's response: the span that stands for it, and the places of all that tell of it."""

    span: Span
    places: list[Place]
    response: str | None
    writers: dict[str | None, str | None]
    """Instrumentations that told of it, each with the id that it gave the response."""

    @property
    def place(self) -> Place:
        """Of these places the one below most agents: it says whose response it is."""
        own = self.span.span_id
        return max(
            self.places, key=lambda at: (at.depth, at.in_tool, at.span_id == own, at.span_id)
        )

    def takes(self, other: Told) -> bool:
        """Makes a twin part of this one, if one of the two shows all that the other shows."""
        if not covers(self.span, other.span):
            if not covers(other.span, self.span):
                return False
            self.span, other.span = other.span, self.span
        self.span = _with_inputs(self.span, other.span)
        self.places += other.places
        self.writers.update(other.writers)
        self.response = self.response or other.response
        return True


def find_told(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[Told]:
    """What models said, each once, in no order."""
    found = _one_in_another(spans, places)
    named: dict[str, list[Told]] = {}
    for told in found:
        if told.response is not None:
            named.setdefault(told.response, []).append(told)
    alone = [told for told in found if told.response is None]
    for same in named.values():
        alone += _merged(same) if len(same) > 1 else same
    return alone


def _one_in_another(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[Told]:
    part_of: dict[str, Told] = {}
    found: list[Told] = []
    for span_id, at in places.items():  # outer spans first
        span = spans[span_id]
        if span.kind != "llm":
            continue
        told = Told(span, [at], span.response, {span.writer: span.response})
        up = next((up for up in ancestors(places, at) if up.kind != "other"), None)
        outer = part_of.get(up.span_id) if up is not None else None
        if outer is not None and not _another(outer, span) and outer.takes(told):
            part_of[span_id] = outer
        else:
            part_of[span_id] = told
            found.append(told)
    return found


def _another(told: Told, span: Span) -> bool:
    """The span's instrumentation has named another response."""
    before = told.writers.get(span.writer)
    return None not in (before, span.response) and before != span.response


def _merged(same: list[Told]) -> list[Told]:
    """Those of one response's id, twins merged."""
    merged: list[Told] = []
    for together in _overlapping(same):
        if len(together) > MOST:
            merged += together
            continue
        kept: list[Told] = []
        for told in sorted(together, key=_lacks):
            if not any(_at_once(one, told) and one.takes(told) for one in kept):
                kept.append(told)
        merged += kept
    return merged


def _at_once(one: Told, other: Told) -> bool:
    """Whether they overlap and are written by different instrumentations."""
    here, there = one.places[0], other.places[0]
    overlap = here.start < there.end and there.start < here.end
    return overlap and one.writers.keys().isdisjoint(other.writers)


def _overlapping(same: list[Told]) -> Iterator[list[Told]]:
    """Groups that follow each other in time."""
    group: list[Told] = []
    end = 0
    for told in sorted(same, key=lambda told: told.places[0].position()):
        at = told.places[0]
        if group and at.start >= end:
            yield group
            group = []
        group.append(told)
        end = max(end, at.end)
    yield group


def _lacks(told: Told) -> tuple[Any, ...]:
    """In this order what shows more comes first, and takes what shows less."""
    span = told.span
    calls = _calls(span)
    shown = sum(call.arguments is not None for call in calls)
    items = sum((call.call_id or "").startswith(_ITEM) for call in calls)
    return (
        "output" in span.unseen,
        -len(calls),
        -shown,
        items,
        -len(_text(span)),
        told.places[0].position(),
    )


def covers(whole: Span, part: Span) -> bool:
    """Whether one span shows all that another shows of what the model said."""
    given, asked = _calls(whole), _calls(part)
    if not all(any(_is(call, other) for call in given) for other in asked):
        # Of the two ids that a call can have, instrumentations show one or the other.
        paired = len(given) == len(asked) and all(map(_alike, given, asked))
        if not paired:
            return False
    said, more = _text(part), _text(whole)
    return not said or said == more or ("output" in part.unseen and more.startswith(said))


def _is(call: RequestedCall, other: RequestedCall) -> bool:
    """Whether a call is another one, with all that is shown of that."""
    return other.call_id in (None, call.call_id) and _alike(call, other)


def _alike(call: RequestedCall, other: RequestedCall) -> bool:
    """Whether a call is of the same tool with the same arguments, where the other shows any."""
    if call.tool != other.tool:
        return False
    if other.arguments is None or other.arguments == call.arguments:
        return True
    return call.arguments is not None and _value(call.arguments) == _value(other.arguments)


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _calls(span: Span) -> list[RequestedCall]:
    return [call for message in span.outputs for call in message.calls]


def _text(span: Span) -> str:
    return "".join(message.text or "" for message in span.outputs).strip()


def _with_inputs(span: Span, other: Span) -> Span:
    """The span, with what another shows of what the model was given where it hides that."""
    if "input" not in span.unseen or "input" in other.unseen or not other.inputs:
        return span
    unseen = {part: why for part, why in span.unseen.items() if part != "input"}
    return msgspec.structs.replace(span, inputs=other.inputs, omitted=other.omitted, unseen=unseen)
