"""A file that people write, parsed: its value and the line of everything in it.

YAML and JSON end up here alike: only what JSON can say, keys always text, no key twice, at most
DEPTH_LIMIT levels, nothing recursive. Errors name file, line and field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from monitor.errors import InputError, plain

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a file unless a caller says otherwise."""
DEPTH_LIMIT: Final = 64
DIGITS: Final = 3000
"""Longest number: Python refuses to convert much longer ones."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Route = Sequence[str | int]
"""Where a value stands in a document: keys and positions from the root."""


class Document(NamedTuple):
    """A parsed file. `lines` holds, by identity of a list or mapping, the line of each child."""

    name: str
    value: Any
    lines: dict[int, list[int]]

    def line(self, path: Route) -> int | None:
        """Line (from 1) of the value at `path`, or of the nearest thing around it."""
        found, value = None, self.value
        for part in path:
            lines = self.lines.get(id(value))
            if isinstance(value, dict) and part in value:
                position = list(value).index(part)
            elif isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value):
                position = part
            else:
                break
            if lines is not None:
                found = lines[position]
            value = value[part]
        if found is None and self.lines.get(id(self.value)):
            found = self.lines[id(self.value)][0]
        return found

    def error(self, path: Route, problem: str, allowed: str | None = None) -> InputError:
        """An error about the value at `path`: `file:line: field: problem`."""
        return InputError(place(self.name, self.line(path), path), problem, allowed)


def place(name: str, line: int | None, path: Route = ()) -> str:
    """`file:line: field`, as far as they are known."""
    where = name if line is None else f"{name}:{line}"
    return f"{where}: {field(path)}" if path else where


def field(path: Route) -> str:
    """`parameter_rules.ticket.search.required[0]`"""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            shown += f".{part}" if shown else part
    return shown


def load(path: Path, limit: int) -> bytes:
    """Bytes of a file of at most `limit`. Raises InputError, also for files that are none."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(str(path), "is no file")  # a pipe would be waited for without end
        with path.open("rb") as file:
            data = file.read(limit + 1)
            if len(data) > limit:
                size = max(path.stat().st_size, len(data))
                raise InputError(str(path), f"{size} bytes", f"at most {limit} bytes")
            return data
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None


def decode(data: bytes, name: str, limit: int) -> str:
    """The file's text, which must be UTF-8; a byte order mark is dropped."""
    if len(data) > limit:
        raise InputError(name, f"{len(data)} bytes", f"at most {limit} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(place(name, line), "is not UTF-8 text") from None


class Builder:
    """Builds a document from what a parser meets, one thing at a time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: list[Any] = []
        self.lines: dict[int, list[int]] = {}
        self._stack: list[tuple[dict[str, Any] | list[Any], list[int]]] = [(self.root, [])]
        self._keys: list[str | None] = []  # of each open mapping: the key whose value comes next

    @property
    def wants_key(self) -> bool:
        """Whether a mapping is open and its next key has not come."""
        return isinstance(self._stack[-1][0], dict) and self._keys[-1] is None

    @property
    def is_open(self) -> bool:
        return len(self._stack) > 1

    def document(self) -> Document:
        return Document(self.name, self.root[0] if self.root else None, self.lines)

    def error(self, line: int, problem: str, allowed: str | None = None) -> InputError:
        return InputError(place(self.name, line), problem, allowed)

    def key(self, key: str, line: int) -> None:
        self._check(key, line)
        container, lines = self._stack[-1]
        if key in container:
            raise self.error(line, f"key {plain(key)!r} stands here twice")
        container[key] = None  # type: ignore[call-overload]  # only mappings wait for keys
        lines.append(line)
        self._keys[-1] = key

    def value(self, value: Any, line: int) -> None:
        if type(value) is str:
            self._check(value, line)
        container, lines = self._stack[-1]
        if isinstance(container, list):
            container.append(value)
            lines.append(line)
            return
        key = self._keys[-1]
        assert key is not None, "the parser gives a key before its value"
        container[key] = value
        self._keys[-1] = None

    def open(self, value: dict[str, Any] | list[Any], line: int) -> None:
        """Begins a list or mapping."""
        if self.wants_key:
            raise self.error(line, "a list or mapping as a key", "text")
        if len(self._stack) > DEPTH_LIMIT:
            raise self.error(line, "nested too deeply", f"{DEPTH_LIMIT} levels")
        self.value(value, line)
        below: list[int] = []
        self.lines[id(value)] = below
        self._stack.append((value, below))
        if isinstance(value, dict):
            self._keys.append(None)

    def close(self) -> None:
        """Ends the innermost list or mapping."""
        value, _ = self._stack.pop()
        if isinstance(value, dict):
            self._keys.pop()

    def number(self, text: str, line: int, base: int | None = None) -> int | float:
        """A number as it is written; `base` None for one with a fraction or an exponent."""
        if len(text) > DIGITS:
            raise self.error(line, f"a number of {len(text)} digits", f"{DIGITS}")
        if base is not None:
            return int(text, base)
        value = float(text)
        if value in {float("inf"), float("-inf")}:
            raise self.error(line, f"number {text} is too large")
        return value

    def _check(self, text: str, line: int) -> None:
        if not text.isascii() and _SURROGATE.search(text):
            raise self.error(line, "half a surrogate pair", "Unicode text")
