"""What a dialect is: a way in which frameworks write an agent's doings into span attributes."""

from __future__ import annotations

from typing import Protocol

import msgspec

from monitor.model import Message, Omitted, Part, SpanKind, Unseen
from monitor.semconv.raw import RawSpan


class Content(msgspec.Struct, gc=False):
    """What a dialect reads from one span; field by field as in `monitor.model.Span`."""

    kind: SpanKind
    agent: str | None = None
    conversation_id: str | None = None
    tool: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    result: str | None = None
    inputs: tuple[Message, ...] = ()
    omitted: Omitted | None = None
    outputs: tuple[Message, ...] = ()
    unseen: dict[Part, Unseen] = msgspec.field(default_factory=dict)

    def miss(self, part: Part, why: Unseen | None) -> None:
        """Notes that (some of) a part is missing; the first reason stays."""
        if why is not None:
            self.unseen.setdefault(part, why)


class Dialect(Protocol):
    """A module of this package. Dialects are asked in order; the first that reads a span has it."""

    KEYS: frozenset[str]
    """Attributes that it reads, of spans and of their events."""
    PREFIXES: tuple[str, ...]
    """Beginnings of attributes that it reads, for flattened lists."""

    def read(self, raw: RawSpan) -> Content | None:
        """The span's content; None when the span is not written in this dialect.

        Content of kind `other` says: written in this dialect, and without agent meaning.
        """
