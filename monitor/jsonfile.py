"""JSON with line numbers, and with the same rules as YAML: no key twice, a depth limit, no recursion.

YAML parsers read most JSON but not all of it: escaped surrogate pairs and long keys fail there.
Source: https://www.rfc-editor.org/rfc/rfc8259
"""

from __future__ import annotations

import json
import re
from typing import Final

from monitor.document import SIZE_LIMIT, Builder, Document, decode

_TOKEN: Final = re.compile(
    r"""[ \t\r]*+(?:
      (?P<newline>\n)
    | (?P<string>"(?:[^"\\\x00-\x1f]++|\\.)*+")
    | (?P<number>-?(?:0|[1-9][0-9]*+)(?P<float>(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+))
    | (?P<word>true|false|null)
    | (?P<mark>[][{}:,])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_WORDS: Final = {"true": True, "false": False, "null": None}
_OPENING: Final = "value ]"
"""What may follow `[`; the names of the states below say what is due next."""


def parse(data: bytes, name: str, *, limit: int = SIZE_LIMIT) -> Document:
    """Parses UTF-8 JSON text of at most `limit` bytes; `name` stands in errors.

    Raises InputError.
    """
    text = decode(data, name, limit)
    builder = Builder(name)
    line, position = 1, 0
    due = "value"
    open_marks: list[str] = []
    while True:
        token = _TOKEN.match(text, position)
        kind = token and token.lastgroup
        if token is None or kind is None:
            found = text[position : position + 20].lstrip(" \t\r")
            raise builder.error(line, f"is not JSON at {found!r}")
        position = token.end()
        if kind == "newline":
            line += 1
            continue
        found = token[kind]
        if kind == "end" and due == "end":
            return builder.document()
        if kind == "string" and due in {"key", "key }"}:
            builder.key(_string(builder, found, line), line)
            due = ":"
        elif kind in {"string", "number", "word"} and due in {"value", _OPENING}:
            if kind == "string":
                builder.value(_string(builder, found, line), line)
            elif kind == "word":
                builder.value(_WORDS[found], line)
            else:
                builder.value(builder.number(found, line, None if token["float"] else 10), line)
            due = ", or end" if open_marks else "end"
        elif kind == "mark" and found in "[{" and due in {"value", _OPENING}:
            builder.open([] if found == "[" else {}, line)
            open_marks.append(found)
            due = _OPENING if found == "[" else "key }"
        elif kind == "mark" and _closes(found, open_marks, due):
            builder.close()
            open_marks.pop()
            due = ", or end" if open_marks else "end"
        elif kind == "mark" and found == ":" == due:
            due = "value"
        elif kind == "mark" and found == "," and due == ", or end":
            due = "value" if open_marks[-1] == "[" else "key"
        else:
            shown = repr(found) if found else "the end of the file"
            raise builder.error(line, f"is not JSON at {shown}")


def _closes(found: str, open_marks: list[str], due: str) -> bool:
    if found == "]":
        return bool(open_marks) and open_marks[-1] == "[" and due in {", or end", _OPENING}
    return (
        found == "}"
        and bool(open_marks)
        and open_marks[-1] == "{"
        and due
        in {
            ", or end",
            "key }",
        }
    )


def _string(builder: Builder, literal: str, line: int) -> str:
    if "\\" not in literal:
        return literal[1:-1]
    try:
        value: str = json.loads(literal)
    except ValueError:
        raise builder.error(line, f"is not JSON at {literal!r}") from None
    return value
