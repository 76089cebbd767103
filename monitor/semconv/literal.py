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
_TOKEN: Final = re.compile(
    r"""\s*+(?:
        (?P<text>[uU]?(?:'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+"))
      | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)(?![\w.])
      | (?P<word>None|True|False)\b
      | (?P<mark>[\[\]{}(),:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS: Final = {"None": "null", "True": "true", "False": "false"}
_MARKS: Final = {"(": "[", ")": "]"}


def as_json(text: str) -> str | None:
    """JSON text of a Python dict, list or tuple; None when it is none, or holds other objects."""
    if len(text) > _LIMIT:
        return None
    found: list[str] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        token = _TOKEN.match(text, place, end)
        if token is None:
            return None
        place = token.end()
        word = token[token.lastgroup or 0].strip()
        if token.lastgroup == "text":
            word = _string(word)
        elif token.lastgroup == "word":
            word = _WORDS[word]
        elif token.lastgroup == "mark":
            word = _MARKS.get(word, word)
            if word in "]}" and found and found[-1] == ",":
                found.pop()  # as in (1,)
        found.append(word)
    return "".join(found)


def _string(literal: str) -> str:
    try:
        value = ast.literal_eval(literal)
    except (ValueError, SyntaxError):  # an escape that Python itself would refuse
        value = literal[1:-1]
    return msgspec.json.encode(str(value).encode("utf-8", "replace").decode()).decode()
