"""YAML as people mean it: the 1.2 core schema (`no`, `2024-05-01` and `12:30:45` are text), one
document a file, no aliases (a few lines of them expand to gigabytes), no key twice, no tags, and
only what JSON can say. Keys are always text. Line numbers stay known, so that errors can name them.

Sources: https://yaml.org/spec/1.2.2/#103-core-schema; PyYAML gives the events, its types are YAML
1.1's and are not used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from monitor.errors import InputError, plain

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a file unless a caller says otherwise."""
DEPTH_LIMIT: Final = 64
DIGITS: Final = 3000
"""Longest number: Python refuses to convert longer ones."""

_Parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the wheel without libyaml is slower
_BOOLEANS: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_BASED: Final = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_JSON: Final = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")
_NUMERIC: Final = frozenset("-+.0123456789")
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


def read(path: Path, *, limit: int = SIZE_LIMIT) -> Document:
    """Parses a file of at most `limit` bytes. Raises InputError, also for files that are none."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
            if len(data) > limit:
                size = max(path.stat().st_size, len(data))
                raise InputError(str(path), f"{size} bytes", f"at most {limit} bytes")
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror}") from None
    return parse(data, str(path), limit=limit)


def parse(data: bytes, name: str, *, limit: int = SIZE_LIMIT) -> Document:
    """Parses UTF-8 text; `name` stands in errors. An empty file is the value None."""
    if len(data) > limit:
        raise InputError(name, f"{len(data)} bytes", f"at most {limit} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(place(name, line), "is not UTF-8 text") from None
    try:
        return _build(text, name)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise InputError(
            place(name, mark.line + 1 if mark else None), f"is not YAML: {problem}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError(place(name, line), f"is not YAML: {str(error).splitlines()[0]}") from None
    except yaml.YAMLError as error:
        raise InputError(name, f"is not YAML: {error}") from None


def _build(text: str, name: str) -> Document:
    builder = _Builder(name)
    for event in yaml.parse(text, Loader=_Parser):
        builder.take(event)
    return Document(name, builder.root[0] if builder.root else None, builder.lines)


class _Builder:
    """Events -> values, one at a time, without recursion."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: list[Any] = []
        self.lines: dict[int, list[int]] = {}
        self._documents = 0
        self._stack: list[tuple[dict[str, Any] | list[Any], list[int]]] = [(self.root, [])]
        self._keys: list[str | None] = []  # of each open mapping: the key whose value comes next

    def take(self, event: yaml.Event) -> None:
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.ScalarEvent):
            self._no_extras(event, line)
            container = self._stack[-1][0]
            if isinstance(container, dict) and self._keys[-1] is None:
                self._key(_text(event.value, self.name, line), line)
            elif event.implicit[0]:  # neither quoted nor tagged
                self._place(_plain(event.value, self.name, line), line)
            else:
                self._place(_text(event.value, self.name, line), line)
        elif isinstance(event, yaml.MappingStartEvent):
            self._no_extras(event, line)
            self._open({}, line)
            self._keys.append(None)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._no_extras(event, line)
            self._open([], line)
        elif isinstance(event, yaml.MappingEndEvent):
            self._stack.pop()
            self._keys.pop()
        elif isinstance(event, yaml.SequenceEndEvent):
            self._stack.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise InputError(place(self.name, line), f"alias *{event.anchor}: aliases are refused")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise InputError(place(self.name, line), "a second document", "one document a file")

    def _no_extras(
        self, event: yaml.ScalarEvent | yaml.MappingStartEvent | yaml.SequenceStartEvent, line: int
    ) -> None:
        if event.anchor is not None:
            raise InputError(place(self.name, line), f"anchor &{event.anchor}: anchors are refused")
        if event.tag not in {None, "!"}:
            raise InputError(place(self.name, line), f"tag {event.tag}: tags are refused")

    def _key(self, key: str, line: int) -> None:
        container, lines = self._stack[-1]
        if key in container:
            raise InputError(place(self.name, line), f"key {plain(key)!r} stands here twice")
        container[key] = None  # type: ignore[call-overload]  # only mappings wait for keys
        lines.append(line)
        self._keys[-1] = key

    def _place(self, value: Any, line: int) -> None:
        container, lines = self._stack[-1]
        if isinstance(container, list):
            container.append(value)
            lines.append(line)
            return
        key = self._keys[-1]
        assert key is not None, "the parser gives a key before its value"
        container[key] = value
        self._keys[-1] = None

    def _open(self, value: dict[str, Any] | list[Any], line: int) -> None:
        if isinstance(self._stack[-1][0], dict) and self._keys[-1] is None:
            raise InputError(place(self.name, line), "a list or mapping as a key", "text")
        if len(self._stack) > DEPTH_LIMIT:
            raise InputError(place(self.name, line), "nested too deeply", f"{DEPTH_LIMIT} levels")
        self._place(value, line)
        below: list[int] = []
        self.lines[id(value)] = below
        self._stack.append((value, below))


def _plain(text: str, name: str, line: int) -> Any:
    """A scalar without quotes, by the core schema."""
    if text in _NULLS:
        return None
    boolean = _BOOLEANS.get(text)
    if boolean is not None:
        return boolean
    if text[0] in _NUMERIC:
        if len(text) > DIGITS and (_INTEGER.match(text) or _FLOAT.match(text)):
            raise InputError(place(name, line), f"a number of {len(text)} digits", f"{DIGITS}")
        if _INTEGER.match(text):
            return int(text)
        if _BASED.match(text):
            if len(text) > DIGITS:
                raise InputError(place(name, line), f"a number of {len(text)} digits", f"{DIGITS}")
            return int(text[2:], 8 if text[1] == "o" else 16)
        if _FLOAT.match(text):
            value = float(text)
            if value in {float("inf"), float("-inf")}:
                raise InputError(place(name, line), f"number {text} is too large")
            return value
        if _NOT_JSON.match(text):
            raise InputError(place(name, line), f"{text} is no number that JSON can write")
    return _text(text, name, line)


def _text(text: str, name: str, line: int) -> str:
    if not text.isascii() and _SURROGATE.search(text):
        raise InputError(place(name, line), "half a surrogate pair", "Unicode text")
    return text
