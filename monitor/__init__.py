"""Judgement of agents' trajectories, without a world around it: no wire, no clock, no randomness.

For golden cases in one's own tests:

    from monitor import evaluate, load_cases
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitor.golden import evaluate as evaluate
    from monitor.golden import load_cases as load_cases

__all__ = ["evaluate", "load_cases"]


def __getattr__(name: str) -> Any:
    """Loads golden cases when they are asked for: a worker never does."""
    if name in __all__:
        return getattr(import_module("monitor.golden"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
