"""Places: spans in their trees, with one clock.

A span of another process than its parent keeps no clock in common with it, so its times are moved
into its parent's interval. Between spans of one process the start decides, then the span id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from monitor.model import Span, SpanKind


class Position(NamedTuple):
    """Where a step stands: time in its run, its anchor's own start and id, order at the anchor."""

    start: int
    own_start: int
    span_id: str
    order: int = 0


class Place(msgspec.Struct, array_like=True, gc=False):
    """A span in its tree, and all that spans below it need to know. Times are nanoseconds."""

    span_id: str
    kind: SpanKind
    parent: str | None
    own_start: int
    start: int
    """In the clock of the process at the top."""
    end: int
    service: str | None = None
    agent: str | None = None
    """Nearest enclosing agent, or the one that the span names; an agent span's own name."""
    depth: int = 0
    """Number of agent spans above."""
    in_tool: bool = False
    root: str | None = None
    """The run root above; None while the way up is unknown, or when it leads to none."""
    complete: bool = False
    """Every ancestor is known."""
    within: SpanKind | None = None
    """Kind of the nearest agent, LLM or tool span above."""

    def position(self, order: int = 0) -> Position:
        return Position(self.start, self.own_start, self.span_id, order)


def place(span: Span, above: Place | None) -> Place:
    """The place of `span` below `above`; without one, what the span says by itself."""
    start, end = span.start, max(span.end, span.start)
    at = Place(
        span.span_id, span.kind, span.parent, span.start, start, end, span.service, span.agent
    )
    if above is not None:
        if span.remote or span.service != above.service:
            at.start = min(max(start, above.start), above.end)
            at.end = at.start + end - start
        if span.agent is None and span.kind != "agent":
            at.agent = above.agent
        at.depth = above.depth + (above.kind == "agent")
        at.in_tool = above.in_tool or above.kind == "tool"
        at.root = above.root
        at.complete = above.complete
        at.within = above.within if above.kind == "other" else above.kind
    return at


def locate(spans: Mapping[str, Span]) -> tuple[dict[str, Place], set[str]]:
    """Places, parents before children, and missing parents. A cycle is cut at its least span."""
    places: dict[str, Place] = {}
    missing: set[str] = set()
    for first in sorted(spans.values(), key=lambda s: (s.start, s.span_id)):
        chain: dict[str, Span] = {}
        span: Span | None = first
        while span is not None and span.span_id not in places and span.span_id not in chain:
            chain[span.span_id] = span
            span = spans.get(span.parent) if span.parent else None
        top = next(reversed(chain)) if chain else None
        above = places.get(span.span_id) if span is not None else None
        if top is not None and above is None and spans[top].parent is not None:
            missing.add(spans[top].parent or top)
        for below in reversed(chain.values()):
            at = place(below, above)
            if above is None:
                at.complete = below.parent is None
            places[below.span_id] = above = at
    return places, missing


def find_roots(spans: Mapping[str, Span], places: dict[str, Place], missing: set[str]) -> list[str]:
    """Run roots: topmost, an agent or LLM span or above one, with no parent, or a remote one that
    the trace does not hold. The parent of such a root is not missing."""
    top_of: dict[str, str] = {}
    agentic: dict[str, bool] = {}
    for span_id, at in places.items():
        parent = at.parent
        top = top_of[parent] if parent is not None and parent in top_of else span_id
        top_of[span_id] = top
        agentic[top] = agentic.get(top, False) or at.kind in ("agent", "llm")
    roots = {
        top
        for top, runs in agentic.items()
        if runs
        and (spans[top].parent is None or (spans[top].remote and spans[top].parent not in places))
    }
    lacking = {spans[top].parent for top in agentic if top not in roots}
    for root in roots:
        parent = spans[root].parent
        if parent is not None and parent not in lacking:
            missing.discard(parent)
    for span_id, at in places.items():
        if top_of[span_id] in roots:
            at.root, at.complete = top_of[span_id], True
        else:
            at.complete = places[top_of[span_id]].complete
    return sorted(roots, key=lambda root: places[root].position())


def ancestors(places: Mapping[str, Place], at: Place) -> Iterator[Place]:
    """Ancestors, nearest first."""
    seen = {at.span_id}
    while at.parent is not None and at.parent in places and at.parent not in seen:
        at = places[at.parent]
        seen.add(at.span_id)
        yield at
