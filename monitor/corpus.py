"""The evidence: everything that tools returned, as one lower-case text.

Flattening joins keys and values in document order with one space; null, booleans and numbers are
written as JSON writes them (paper, section III, Algorithm 2). Results are hostile: nothing here
recurses, and what is nested too deeply stays the text that it came as.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

DEPTH_LIMIT: Final = 256
"""JSON nested more deeply is evidence as raw text. A number of ours, so that the interpreter's
recursion limit, which depends on the caller, never decides what counts as evidence."""

SEARCH_LIMIT: Final = 2_000_000_000
"""Characters that one answer's claims may be compared with: claims times corpus. Seconds, not
hours, for an answer made of a hundred thousand numbers."""

_WORDS: Final = {None: "null", True: "true", False: "false"}


class Corpus:
    """Results of one trajectory, to search claims in."""

    __slots__ = ("_added", "_budget", "_text")

    def __init__(self, flat: str = "", *, budget: int | None = SEARCH_LIMIT) -> None:
        """`flat`: flattened results, keys included. `budget` None: search whatever it takes."""
        self._added: list[str] = []
        self._text = flat.lower()
        self._budget = budget

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

    def holds(self, claim: str) -> bool:
        """Whether the lower-case claim occurs. True also when the budget is used up: then
        `exhausted` says that nothing follows from it.
        """
        text = self._text if not self._added else self.text
        if self._budget is not None:
            if self._budget < 0:
                return True
            self._budget -= len(text)
        return claim in text

    def exhausted(self) -> tuple[str, ...]:
        """Codes that stay undecided because the budget is used up."""
        if self._budget is None or self._budget >= 0:
            return ()
        return ("SAFETY_FABRICATED_ID", "SAFETY_FABRICATED_QUOTE", "SAFETY_FABRICATED_QUANTITY")


def flatten(value: Any) -> str:
    """Keys and values of a parsed JSON value, joined with one space."""
    return value if isinstance(value, str) else " ".join(_leaves(value, None))


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
            elif kind is int:
                append(int.__repr__(item))
            elif item is None or kind is bool:
                append(_WORDS[item])
            else:
                append(json.dumps(item))
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
