"""Turns: what a model said, once for each time it was asked.

An LLM span is one turn: the calls it requested, or the text it answered. What several
instrumentations tell of one response is one turn (`monitor.twins`). An agent span that shows messages
stands in where no turn below it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from monitor.model import THOUGHT, Message, Span, Unseen, digest
from monitor.places import Place, Position, ancestors
from monitor.twins import find_told

_BEHIND: Final = 2**63 - 1
"""Start of a step that follows all others of its instant."""


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
    def answered_at(self) -> Position:
        """Where its text stands: after the calls that the same output tells of; an agent's output
        is what its run ends with, so after all that began in it."""
        if self.span.kind == "agent":
            return Position(self.place.end, _BEHIND, self.span.span_id)
        calls = sum(len(message.calls) for message in self.span.outputs)
        return self.place.position(calls + 1 if calls else 0)

    @property
    def mute(self) -> bool:
        """Nobody can tell whether it answered."""
        return is_mute(self.span)


def answer_text(span: Span) -> str | None:
    """The text with which a turn ends; None for a turn with calls, a thought, or one without text.

    The output of an agent span is its whole run, so there only the last message counts. A call whose
    result stands beside it was run by the provider, and its message may go on to answer.
    """
    said = span.outputs[-1:] if span.kind == "agent" else span.outputs
    texts: list[str] = []
    for message in said:
        if message.role == THOUGHT:
            return None
        if message.results and message.role != "assistant":
            return None
        given = {result.call_id for result in message.results}
        if any(call.call_id is None or call.call_id not in given for call in message.calls):
            return None
        if message.text is not None:
            texts.append(message.text)
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


def request_text(span: Span, *, first: bool) -> str | None:
    """The user's words that a turn answers to; of a later turn only those after an answer."""
    split = last_assistant(span)
    if split < 0 and not first:
        return None
    text = user_text(span.inputs[split + 1 :])
    return text if text is not None or not first else user_text(span.inputs)


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


def find_turns(spans: Mapping[str, Span], places: Mapping[str, Place]) -> list[Turn]:
    """Turns in causal order: LLM spans, and agent spans that show what none below them shows."""
    found = find_told(spans, places)
    turns = [Turn(told.span, told.place) for told in found]
    shown: set[str] = set()
    for told in found:
        if any(message.role != THOUGHT for message in told.span.outputs):
            for at in told.places:
                shown.update(up.span_id for up in ancestors(places, at) if up.kind == "agent")
    for span_id, at in places.items():
        if at.kind == "agent" and span_id not in shown and spans[span_id].outputs:
            turns.append(Turn(spans[span_id], at))
    return sorted(turns, key=lambda turn: turn.place.position())
