"""MCP client and server spans that name no GenAI operation.

https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/mcp.md): `mcp.method.name`
is the method, `gen_ai.tool.name` the tool. A call passes several such spans, on both sides; they
name one tool below each other and so are one call. Other methods, and the transport's own spans,
are no calls.
"""

from __future__ import annotations

import re
from typing import Final

from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, label

_METHOD: Final = "mcp.method.name"
_SESSION: Final = "mcp.session.id"
_TOOL: Final = "gen_ai.tool.name"
_ARGUMENTS: Final = ("gen_ai.tool.call.arguments", "mcp.request.argument", "traceloop.entity.input")
_RESULTS: Final = ("gen_ai.tool.call.result", "mcp.response.value", "traceloop.entity.output")

KEYS: frozenset[str] = frozenset({_METHOD, _SESSION, _TOOL, *_ARGUMENTS, *_RESULTS})
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_METHOD})

_CALL: Final = re.compile(r"tools/call (\S.*)")


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    method = attributes.get(_METHOD)
    if not isinstance(method, str):
        return None
    tool = label(attributes.get(_TOOL))
    if tool is None and (named := _CALL.fullmatch(raw.name)):
        tool = name(named[1])
    if method != "tools/call" or tool is None:
        return Content("other")
    content = Content("tool", tool=tool)
    for key in _ARGUMENTS:
        if key in attributes:
            content.take_arguments(attributes[key], raw.cut.get(key))
            break
    for key in _RESULTS:
        if key in attributes:
            content.take_result(attributes[key], raw.cut.get(key))
            break
    return content
