"""Which messages of an LLM span's input are kept.

Most LLM spans repeat the whole history of their run, so that keeping all makes a run's journal grow
with the square of its length. A span keeps the first system and the first user message, and from
the last assistant turn on: what that turn asked for and what came back since. It keeps everything

- when it has no parent: SDK-only instrumentation makes each model call a trace of its own, in which
  nothing else tells the history;
- when the user has spoken after the last assistant turn: what precedes is then the context that the
  answer may rest on, and no earlier span of this run need have shown it.

The assistant turn itself stays, because the fold sees by it whether the span that made it is known.
A turn is every assistant message up to the next other one: some dialects write one message a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from monitor.model import Message, Omitted, Unseen, digest
from monitor.semconv.messages import Read

T = TypeVar("T")


class Trimmed(NamedTuple):
    """Kept messages; what was left out; the evidence that something is missing from the kept."""

    messages: tuple[Message, ...]
    omitted: Omitted | None
    unseen: Unseen | None


def trim(
    history: Sequence[T],
    read: Callable[[T], Read],
    raw: Callable[[T], bytes],
    *,
    system: Message | None = None,
    everything: bool = False,
) -> Trimmed:
    """Reads only the messages that are kept, so that the work is linear in what is new.

    `raw` gives the bytes of a message for the digest of what is omitted. `system`: instructions
    that the span carries beside its history; they count as its first message.
    """
    first = [] if system is None else [(system, None)]
    if everything:
        return _joined([*first, *map(read, history)], None)
    tail: list[Read] = []
    start = len(history)
    turn = False
    while start:
        message = read(history[start - 1])
        if message[0].role == "assistant":
            turn = True
        elif turn:
            break
        elif message[0].role == "user" and message[0].text is not None:
            return _joined([*first, *map(read, history)], None)
        tail.append(message)
        start -= 1
    tail.reverse()
    head, kept = _heads(history, read, start, want_system=system is None)
    heads = [*first, *head]
    left_out = [raw(item) for i, item in enumerate(history[:start]) if i not in kept]
    omitted = Omitted(at=len(heads), count=len(left_out), digest=digest(*left_out))
    return _joined([*heads, *tail], omitted if left_out else None)


def _heads(
    history: Sequence[T], read: Callable[[T], Read], end: int, *, want_system: bool
) -> tuple[list[Read], set[int]]:
    """The first system and the first user message before `end`, and their places."""
    found: list[Read] = []
    places: set[int] = set()
    for index in range(end):
        message = read(history[index])
        role = message[0].role
        if (role == "system" and want_system) or role == "user":
            found.append(message)
            places.add(index)
            want_system = False
        if role == "user":
            break
    return found, places


def _joined(reads: list[Read], omitted: Omitted | None) -> Trimmed:
    unseen = next((why for _, why in reads if why is not None), None)
    return Trimmed(tuple(message for message, _ in reads), omitted, unseen)
