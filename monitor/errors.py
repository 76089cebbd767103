"""The error for input that people can mend: one line that names the place and what is allowed."""

from __future__ import annotations

LINE: int = 400
"""Longest quotation of foreign text in an error, in characters."""


def plain(text: object, limit: int = LINE) -> str:
    """Foreign text on one line: control characters escaped (terminals obey them), cut to `limit`."""
    shown = str(text)
    if len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


class InputError(ValueError):
    """Input that cannot be used: `place: problem; allowed: …`.

    `place` names the file, the line and the field as far as they are known, `problem` the value,
    `allowed` what would be accepted.
    """

    def __init__(self, place: str, problem: str, allowed: str | None = None) -> None:
        self.place = plain(place)
        self.problem = plain(problem)
        self.allowed = None if allowed is None else plain(allowed, 2 * LINE)
        line = f"{self.place}: {self.problem}"
        super().__init__(line if self.allowed is None else f"{line}; allowed: {self.allowed}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str | None]]:
        return InputError, (self.place, self.problem, self.allowed)
