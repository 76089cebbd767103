"""Python literals, as `repr` writes them, turned into JSON text.

Frameworks of Python hand over `str(arguments)` and `str(result)` where JSON was meant. Read token by
token in linear time and without evaluating anything; numbers stand as they were written.
"""

from __future__ import annotations

import ast
import re
from typing import Final

import msgspec

_LIMIT: Final = 128 * 1024
"""Characters of a literal that are read."""
STRING: Final = r"""(?:'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+")"""
"""Regular expression of a string's literal."""
_TOKEN: Final = re.compile(
    rf"""\s*+(?:
        (?P<text>[uU]?{STRING})
      | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)(?![\w.])
      | (?P<word>None|True|False)\b
      | (?P<mark>[\[\]{{}}(),:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {"None": "null", "True": "true", "False": "false"}
_MARKS: Final = {"(": "[", ")": "]"}


def as_json(text: str) -> str | None:
    """JSON text of a Python dict, list or tuple; None when it is none, or holds other objects."""
    if len(text) > _LIMIT:
        return None
    if '"' not in text and "\\" not in text and text.isprintable():
        plain = _plain(text)
        if plain is not None:
            return plain
    found: list[str] = []
    return "".join(found) if _read(text, found) else None


def _plain(text: str) -> str | None:
    """The same for text in which whatever stands between two quotes is a string as it is. None also
    when the token by token way may know better (`u'..'`)."""
    parts = text.split("'")
    if len(parts) % 2 == 0:
        return None
    for place in range(0, len(parts), 2):
        part = parts[place]
        between = _BETWEEN.get(part)
        if between is None:
            found: list[str] = []
            if not _read(part, found):
                return None
            between = "".join(found)
        parts[place] = between
    return '"'.join(parts)


_BETWEEN: Final = {part: part.replace(" ", "") for part in ("{", "}", ": ", ", ", "}, {", "[", "]")}
"""What mostly stands between two strings, as JSON has it."""


def _read(text: str, found: list[str]) -> bool:
    """Appends the JSON of each token; False when there is something else."""
    place, end = 0, len(text.rstrip())
    while place < end:
        token = _TOKEN.match(text, place, end)
        if token is None:
            return False
        place = token.end()
        kind = token.lastgroup
        word = token[kind or 0]
        if kind == "text":
            word = _string(word)
        elif kind == "word":
            word = _WORDS[word]
        elif kind == "mark":
            word = _MARKS.get(word, word)
            if word in "]}" and found and found[-1] == ",":
                found.pop()  # as in (1,)
        found.append(word)
    return True


def string(literal: str) -> str:
    """The text that a string's literal stands for."""
    if "\\" not in literal:
        return literal[literal[0] in "uU" : -1][1:]
    try:
        return str(ast.literal_eval(literal))
    except (ValueError, SyntaxError):  # an escape that Python itself would refuse
        return literal[1:-1]


def _string(literal: str) -> str:
    return msgspec.json.encode(string(literal).encode("utf-8", "replace").decode()).decode()
