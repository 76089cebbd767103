"""Results of MCP tools as Python prints the objects that they come in.

    meta=None content=[TextContent(type='text', text='..', annotations=None)] isError=False
    CallToolResult(content=[TextContent(..)], isError=False)
    [TextContent(type='text', text='..', annotations=None)]

LlamaIndex hands on the first, others the second or the third. Field names are those of the protocol,
https://modelcontextprotocol.io/specification (schema `CallToolResult`), or in snake case.
"""

from __future__ import annotations

import re
from typing import Final

from monitor.semconv.literal import STRING, string

_BEGINS: Final = ("meta=", "_meta=", "content=[", "CallToolResult(", "[TextContent(")
_LIST: Final = re.compile(r"(?:\A|\bcontent=)\[(?=TextContent\()")
_HEAD: Final = 2000
"""Characters in which the list of contents begins."""
_CONTENT: Final = re.compile(
    rf"TextContent\(type='text', text=({STRING})(?:, \w++=(?:None|\{{\}}))*+\)(?:, |(?=\]))"
)
_FAILED: Final = re.compile(r"\b(?:isError|is_error)=True\b")


def contents(text: str) -> tuple[list[str], bool] | None:
    """The texts of a result and whether it is a failure; None when it is no such object, or holds
    more than texts."""
    if not text.startswith(_BEGINS):
        return None
    start = _LIST.search(text, 0, _HEAD)
    if start is None:
        return None
    texts: list[str] = []
    place = start.end()
    while (found := _CONTENT.match(text, place)) is not None:
        texts.append(string(found[1]))
        place = found.end()
    if text[place : place + 1] != "]":
        return None
    return texts, _FAILED.search(text, place) is not None
