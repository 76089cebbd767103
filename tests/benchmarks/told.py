"""A ratio beside its goal, as a line."""

from __future__ import annotations


def told(name: str, value: float, goal: float | None = None, *, at_least: bool = False) -> None:
    """Prints it. A goal that is missed is said, and fails nothing: a busy machine is no defect."""
    line = f"{name:58} {value:6.2f}"
    if goal is not None:
        met = value >= goal if at_least else value <= goal
        line += f"   goal {'≥' if at_least else '≤'} {goal:g}   {'met' if met else 'MISSED'}"
    print(line)
