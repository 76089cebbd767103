"""Arguments, results and texts: what was shown of them, and why not more.

One rule for every dialect: structured values are kept as compact JSON text in which numbers stand
as they were written, anything else as plain text, and what is not there is None.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import pydantic_core

from monitor.model import Unseen
from monitor.semconv.limits import ATTRIBUTE_LIMIT, MAX_DEPTH, cut
from monitor.semconv.raw import Value

Shown = tuple[str | None, Unseen | None]
"""The text of a part, None when it is not shown, and the evidence that something is missing."""

NOT_SHOWN: Final[Shown] = (None, None)
HIDDEN: Final[Shown] = (None, "content_hidden")
TRUNCATED: Final[Shown] = (None, "content_truncated")

_REDACTED: Final = re.compile(
    r"""(?xi) __(?:redacted|elided|filtered|masked|hidden)__
      | [<\[({]{1,2} \s* (?:redacted|elided|omitted|filtered|masked|hidden|scrubbed|content\ hidden)
        \b [^<>\[\](){}]{0,80} [>\])}]{1,2}
      | \*{3,} """
)
_REDACTED_LENGTH: Final = 100
_LONE_SURROGATE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<kept>\\[^u])|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")


def shown(value: Value, note: str | None = None) -> Shown:
    """An attribute's value as the text of a part. `note`: it is the head of a longer one."""
    if isinstance(value, str):
        if note is not None:
            return cut(value, ATTRIBUTE_LIMIT) + note, "content_truncated"
        return shown_text(value)
    if value is None:
        return NOT_SHOWN if note is None else TRUNCATED
    if isinstance(value, dict | list):
        return shown_json(msgspec.json.encode(value).decode())
    return msgspec.json.encode(value).decode(), None


def shown_text(text: str) -> Shown:
    """A text that may hold JSON, perhaps encoded twice."""
    first = text[:1]
    if first and first not in '{["' and not first.isspace():
        return _plain(text)
    stripped = text.strip()
    if not stripped:
        return NOT_SHOWN
    first = stripped[0]
    if first == '"':
        inner = _string(stripped)
        if inner is None:
            return _plain(text)
        return shown_json(inner) if inner[:1] in ("{", "[") else _plain(inner)
    return shown_json(stripped) if first in "{[" else _plain(text)


def shown_json(text: str) -> Shown:
    """A text that begins like a JSON object or array; plain text when it is none after all."""
    if not shallow(text):
        return TRUNCATED
    try:
        compact = msgspec.json.format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeError):
        if (mended := without_lone_surrogates(text)) is not text:
            return shown_json(mended)
        return _nearly_json(text)
    if len(compact) * 4 > ATTRIBUTE_LIMIT and (short := cut(compact, ATTRIBUTE_LIMIT)) != compact:
        return short, "content_truncated"
    return compact, None


def without_lone_surrogates(text: str) -> str:
    r"""JSON text with escapes such as `\\ud83d` that pair with nothing replaced by U+FFFD.

    JavaScript and Python write them when a text was cut within a character. The same object comes
    back when there are none.
    """
    if "\\ud" not in text and "\\uD" not in text:
        return text
    mended = _LONE_SURROGATE.sub(lambda m: m[0] if m["pair"] or m["kept"] else "\\ufffd", text)
    return text if mended == text else mended


def shallow(text: str) -> bool:
    """Whether JSON text nests at most `MAX_DEPTH` deep, so that no reader overflows its stack."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return True
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > MAX_DEPTH:
            return False
    return True


def lenient(text: str, *, partial: bool) -> Any | None:
    """The value of JSON text with NaN and Infinity, which Python writes; None when it is none.

    `partial`: the text may end anywhere, and the value goes as far as it does.
    """
    try:
        return pydantic_core.from_json(text, allow_partial="trailing-strings" if partial else False)
    except ValueError:
        return None


def redacted(text: str) -> bool:
    """Whether the whole text is a marker that stands where content was."""
    stripped = text.strip()
    if not stripped or len(stripped) > _REDACTED_LENGTH:
        return False
    return stripped == "REDACTED" or _REDACTED.fullmatch(stripped) is not None


def _nearly_json(text: str) -> Shown:
    """What begins like JSON: Python's dialect of it, cut off in the middle, or just a text."""
    value = lenient(text, partial=False)
    if value is not None:
        return shown_json(msgspec.json.encode(value).decode())
    kept, unseen = _plain(text)
    return kept, unseen if lenient(text, partial=True) is None else "content_truncated"


def _plain(text: str) -> Shown:
    if len(text) <= _REDACTED_LENGTH:
        return HIDDEN if text[:1] in "_<[({*R \t\n" and redacted(text) else (text, None)
    short = cut(text, ATTRIBUTE_LIMIT)
    return short, None if short is text else "content_truncated"


def _string(text: str) -> str | None:
    """The content of a JSON string literal."""
    try:
        return msgspec.json.decode(without_lone_surrogates(text), type=str)
    except (msgspec.DecodeError, UnicodeError):
        return None
