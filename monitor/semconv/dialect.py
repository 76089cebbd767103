"""What a dialect is: a way in which frameworks write an agent's doings into span attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from monitor.model import Message, Omitted, Part, SpanKind, Unseen
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, Value
from monitor.semconv.wrapped import arguments, result, within


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
    error: str | None = None
    """A failure that the content tells of."""

    def miss(self, part: Part, why: Unseen | None) -> None:
        """Notes that (some of) a part is missing; the first reason stays."""
        if why is not None:
            self.unseen.setdefault(part, why)

    def take_arguments(self, value: Value, note: str | None = None) -> None:
        """A tool span's arguments, as an attribute shows them."""
        self.arguments, why = arguments(value, note)
        if why is not None:
            self.miss("arguments", why)

    def take_result(
        self, value: Value, note: str | None = None, *, only: str | None = None
    ) -> None:
        """A tool span's result, as an attribute shows it. `only`: the key that a framework puts
        around a result that is no object."""
        found = result(value, note)
        self.result = found.text if only is None else within(found.text, only)
        if found.unseen is not None:
            self.miss("result", found.unseen)
        if found.call_id is not None and self.call_id is None:
            self.call_id = name(found.call_id)
        if found.failed and self.error is None:
            self.error = self.result or ""

    def take_outputs(
        self, reads: Sequence[tuple[Message, Unseen | None]], unseen: Unseen | None = None
    ) -> None:
        """What a model said, and what of it cannot be read."""
        self.outputs = tuple([message for message, _ in reads])
        for message, why in reads:
            # Nothing that a model says is nothing: its parts were left out.
            if message.text is None and not message.calls and not message.results:
                why = unseen or why or "content_hidden"  # noqa: PLW2901
            if why is not None:
                self.miss("output", why)
        if unseen is not None:
            self.miss("output", unseen)


class Dialect(Protocol):
    """A module of this package. Dialects are asked in order; the first that reads a span has it."""

    KEYS: frozenset[str]
    """Attributes that it reads, of spans and of their events."""
    PREFIXES: tuple[str, ...]
    """Beginnings of attributes that it reads, for flattened lists."""
    MARKS: frozenset[str]
    """Attributes of `KEYS` of which a span has one when those that `PREFIXES` begin matter."""
    TELLS: frozenset[str]
    """Attributes of `KEYS` of which every span of this dialect has one, so that others need not be
    tried; empty when a span may be told without any."""

    def read(self, raw: RawSpan) -> Content | None:
        """The span's content; None when the span is not written in this dialect.

        Content of kind `other` says: written in this dialect, and without agent meaning.
        """
