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

from collections.abc import Sequence
from typing import Protocol

import msgspec

from monitor.model import Message, Omitted, Unseen, digest
from monitor.semconv.decode import role_of
from monitor.semconv.messages import Read, first_missing, read


class History(Protocol):
    """Messages of an input, read one by one."""

    def __len__(self) -> int: ...

    def role(self, index: int) -> str:
        """The message's role, for less than reading it takes."""

    def read(self, index: int) -> Read: ...

    def raw(self, index: int) -> bytes:
        """The message as it was sent, for the digest of what is omitted."""


class JsonHistory:
    """A history of messages that are still JSON."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[msgspec.Raw]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def role(self, index: int) -> str:
        return role_of(self._items[index])

    def read(self, index: int) -> Read:
        return read(self._items[index])

    def raw(self, index: int) -> bytes:
        return bytes(self._items[index])


Trimmed = tuple[tuple[Message, ...], Omitted | None, Unseen | None]
"""Kept messages; what was left out; the evidence that something is missing from the kept."""


def trim(history: History, *, system: Message | None = None, everything: bool = False) -> Trimmed:
    """Reads only the messages that are kept, so that the work is linear in what is new.

    `system`: instructions that the span carries beside its history; they count as its first
    message.
    """
    head: list[Read] = [] if system is None else [(system, None)]
    tail: list[Read] = []
    start = len(history)
    turn = False
    while start and not (turn and history.role(start - 1) != "assistant"):
        start -= 1
        found = history.read(start)
        tail.append(found)
        role = found[0].role
        turn = turn or role == "assistant"
        everything = everything or (not turn and role == "user" and found[0].text is not None)
        if everything:
            break
    tail.reverse()
    if everything:
        return _joined(head + [history.read(i) for i in range(start)] + tail)
    omitted: list[bytes] = []
    spoken = False
    for index in range(start):
        if not spoken:
            found = history.read(index)
            role = found[0].role
            spoken = role == "user"
            if spoken or (role == "system" and not head):
                head.append(found)
                continue
        omitted.append(history.raw(index))
    if not omitted:
        return _joined(head + tail)
    return _joined(head + tail, Omitted(len(head), len(omitted), digest(b",".join(omitted))))


def _joined(reads: list[Read], omitted: Omitted | None = None) -> Trimmed:
    return tuple([message for message, _ in reads]), omitted, first_missing(reads)
