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
from monitor.semconv import literal
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
      | \*{3,} | <[\w.\ ]{1,80} \ at\ 0x[0-9a-f]+> """
)
_REDACTED_LENGTH: Final = 100
_MARKS: Final = frozenset("_<[({*R \t\r\n")
"""What a marker for hidden content begins with."""
_LONE_SURROGATE: Final = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<kept>\\[^u])|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_OPENING: Final = (b"{", b"[")
_format: Final = msgspec.json.format
_text: Final = msgspec.json.Decoder(str)
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
    if first == "{":
        return shown_json(text)
    if first and first not in '["' and not first.isspace():
        return plain(text)
    stripped = text.strip()
    if not stripped:
        return NOT_SHOWN
    if stripped[0] == '"':
        inner = unquoted(stripped.encode("utf-8", "replace"))
        return shown_json(inner) if inner[:1] in ("{", "[") else plain(inner)
    return shown_json(stripped) if stripped[0] in "{[" else plain(text)


def shown_json(text: str) -> Shown:
    """A text that begins like a JSON object or array; plain text when it is none after all."""
    if len(text) > 2 * MAX_DEPTH and not shallow(text):
        return TRUNCATED
    try:
        compact = _format(text, indent=-1)
    except (msgspec.DecodeError, UnicodeError):
        if (mended := without_lone_surrogates(text)) is not text:
            return shown_json(mended)
        return _nearly_json(text)
    if len(compact) * 4 > ATTRIBUTE_LIMIT and (short := cut(compact, ATTRIBUTE_LIMIT)) != compact:
        return short, "content_truncated"
    return compact, None


def shown_raw(data: bytes) -> Shown:
    """A JSON value that stands inside another, not decoded yet; null and nothing are not shown."""
    first = data[:1]
    if first == b'"':
        text = unquoted(data)
        if text[:1] != "{":
            return shown_text(text)
    elif first in _OPENING:
        text = data.decode("utf-8", "replace")
    else:
        return NOT_SHOWN if data in (b"", b"null") else (data.decode("utf-8", "replace"), None)
    return shown_json(text)


def unquoted(data: bytes) -> str:
    """The content of a JSON string literal; the literal itself when it is a broken one."""
    try:
        return _text.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        text = data.decode("utf-8", "replace")
        mended = without_lone_surrogates(text)
        return text if mended is text else unquoted(mended.encode())


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
    """Whether the whole text is a marker that stands where content was, or Python's for an object
    that shows nothing of itself, such as a stream."""
    stripped = text.strip()
    if not stripped or len(stripped) > _REDACTED_LENGTH:
        return False
    return stripped == "REDACTED" or _REDACTED.fullmatch(stripped) is not None


def _nearly_json(text: str) -> Shown:
    """What begins like JSON: Python's dialect of it or its `repr`, cut off, or just a text."""
    value = lenient(text, partial=False)
    if value is not None:
        return shown_json(msgspec.json.encode(value).decode())
    if (found := literal.as_json(text)) is not None:
        try:
            return shown_json(_format(found, indent=-1))
        except (msgspec.DecodeError, UnicodeError):
            pass
    kept, unseen = plain(text)
    return kept, "content_truncated" if _is_cut_off(text) else unseen


def _is_cut_off(text: str) -> bool:
    """Whether the text is the beginning of a JSON object or array whose end is missing."""
    depth = 0
    for bracket in _BRACKET.finditer(_STRING.sub("", text)):
        depth += 1 if bracket[0] in "[{" else -1
        if depth == 0:
            return False
    return lenient(text, partial=True) is not None


def plain(text: str) -> Shown:
    """A text as it stands, unless it is a marker for hidden content or too long."""
    size = len(text)
    if size <= _REDACTED_LENGTH:
        return HIDDEN if text[:1] in _MARKS and redacted(text) else (text, None)
    if size * 4 <= ATTRIBUTE_LIMIT:
        return text, None
    short = cut(text, ATTRIBUTE_LIMIT)
    return short, None if short is text else "content_truncated"
