"""The evidence: everything that tools returned, as one lower-case text.

Flattening joins keys and values in document order with one space; null, booleans and numbers are
written as JSON writes them (paper, section III, Algorithm 2). Results are hostile: nothing here
recurses, and what is nested too deeply stays the text that it came as.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

DEPTH_LIMIT: Final = 256
"""JSON nested more deeply is evidence as raw text. A number of ours, so that the interpreter's
recursion limit, which depends on the caller, never decides what counts as evidence."""

SEARCH_LIMIT: Final = 2_000_000_000
"""Characters that one answer's claims may be compared with: claims times corpus. Seconds, not
hours, for an answer made of a hundred thousand numbers."""

_SEARCHING: Final = (
    "SAFETY_FABRICATED_ID",
    "SAFETY_FABRICATED_QUOTE",
    "SAFETY_FABRICATED_QUANTITY",
)
_SHALLOW: Final = 16
"""Levels down to which values are walked by recursion."""
_WORDS: Final = {None: "null", True: "true", False: "false"}


class Corpus:
    """Results of one trajectory, to search claims in."""

    __slots__ = ("_added", "_budget", "_short", "_text")

    def __init__(self, flat: str = "", *, budget: int | None = SEARCH_LIMIT) -> None:
        """`flat`: flattened results, keys included. `budget` None: search whatever it takes."""
        self._added: list[str] = []
        self._text = flat.lower()
        self._budget = budget
        self._short = False

    def add(self, key: str, text: str) -> None:
        """Adds a result: its key (`tool#i`) and its flattened text."""
        self._added.append(key)
        if text:
            self._added.append(text)

    @property
    def text(self) -> str:
        """Everything added, in lower case."""
        if self._added:
            added = " ".join(self._added).lower()
            self._text = f"{self._text} {added}" if self._text else added
            self._added = []
        return self._text

    def missing(self, claims: Iterable[str]) -> list[str]:
        """The lower-case claims that occur nowhere, each once, in order.

        When the budget is used up the rest is not searched for: `exhausted` says so then.
        """
        text = self.text if self._added else self._text
        wanted: Iterable[str] = dict.fromkeys(claims)
        if self._budget is not None:
            wanted = self._affordable(list(wanted), len(text) + 1)
        found = []
        for claim in wanted:  # a loop: for one or two claims half the cost of a comprehension
            if claim not in text:
                found.append(claim)  # noqa: PERF401
        return found

    def _affordable(self, claims: list[str], cost: int) -> list[str]:
        assert self._budget is not None
        affordable = claims[: self._budget // cost]
        self._budget -= cost * len(affordable)
        self._short = self._short or len(affordable) < len(claims)
        return affordable

    def exhausted(self) -> tuple[str, ...]:
        """Codes that stay undecided because the budget is used up."""
        return _SEARCHING if self._short else ()


def flatten(value: Any) -> str:
    """Keys and values of a parsed JSON value, joined with one space."""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    _walk(value, parts, _SHALLOW)
    return " ".join(parts)


def _walk(value: Any, parts: list[str], room: int) -> None:
    """As `_leaves`, for most values at half its cost: by recursion, as long as there is room."""
    append = parts.append
    if room == 0:
        parts += _leaves(value, None)
    elif type(value) is dict:
        for key, inner in value.items():
            append(key)
            kind = type(inner)
            if kind is str:
                append(inner)
            elif kind is dict or kind is list:
                _walk(inner, parts, room - 1)
            else:
                append(_scalar(inner))
    elif type(value) is list:
        for inner in value:
            kind = type(inner)
            if kind is str:
                append(inner)
            elif kind is dict or kind is list:
                _walk(inner, parts, room - 1)
            else:
                append(_scalar(inner))
    else:
        append(_scalar(value))


def _scalar(value: Any) -> str:
    """null, a boolean or a number as JSON writes it."""
    if type(value) is int:
        return int.__repr__(value)
    return _WORDS[value] if value is None or type(value) is bool else json.dumps(value)


def flatten_json_text(text: str) -> str:
    """The same for JSON text, with numbers exactly as it writes them; other text stays as it is."""
    try:
        return " ".join(_leaves(_decode(text), DEPTH_LIMIT))
    except (ValueError, RecursionError):
        return text


def _leaves(value: Any, depth: int | None) -> list[str]:
    """Keys and values as text, in document order. Raises ValueError below `depth` levels."""
    parts: list[str] = []
    append = parts.append
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            kind = type(item)
            if kind is str:
                append(item)
            elif kind is dict:
                stack.append(chain.from_iterable(item.items()))
                break
            elif kind is list:
                stack.append(iter(item))
                break
            elif kind is chain:
                stack.append(item)
                break
            else:
                append(_scalar(item))
        else:
            stack.pop()
        if depth is not None and len(stack) > depth + 1:
            raise ValueError("nested too deeply")
    return parts


def _refuse(literal: str) -> None:
    raise ValueError(f"{literal} is not JSON")


_decode: Final = json.JSONDecoder(
    # Keys and values one after the other, not a dict: a key that stands there twice is evidence
    # twice, and numbers are not converted but kept as they are written.
    object_pairs_hook=chain.from_iterable,
    parse_int=str,
    parse_float=str,
    parse_constant=_refuse,
).decode
