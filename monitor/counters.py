"""What an engine did, counted: plain numbers that whoever drives it reads and hands on.

Counting is part of no verdict: a repeat after a crash is counted again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from monitor.model import CloseReason, Verdict

Raised = tuple[str, str]
"""Code and state of a violation."""


@dataclass(slots=True)
class Counters:
    """Counts since the engine was made, or since the last `clear`."""

    arrivals: Counter[str] = field(default_factory=Counter)
    """Arrivals folded, by kind;"""
    refolded: int = 0
    """those folded silently, to win state back, are counted here instead."""
    duplicates: int = 0
    """Spans that were known, byte for byte;"""
    conflicts: int = 0
    """that came under the id of another one;"""
    ignored: int = 0
    """that came after a limit or an error and were only counted."""
    extended: int = 0
    """Spans that extended the prefix at its end."""
    derived: int = 0
    """Times that a prefix was derived anew from all its spans."""
    contents: int = 0
    """Times that the spans of one trajectory were read on demand."""
    closed: Counter[CloseReason] = field(default_factory=Counter)
    """Trajectories that were closed, by reason."""
    fold_errors: int = 0
    labels: Counter[Verdict] = field(default_factory=Counter)
    """Labels published, by verdict."""
    violations: Counter[Raised] = field(default_factory=Counter)
    """Violations published, by code and state."""
    requests: int = 0
    """Requests to read a step, handed over."""

    def clear(self) -> None:
        """Back to zero, in place: batches under way count on."""
        for one in fields(self):
            kept = getattr(self, one.name)
            if isinstance(kept, Counter):
                kept.clear()
            else:
                setattr(self, one.name, 0)
