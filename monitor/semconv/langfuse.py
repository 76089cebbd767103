"""The Langfuse SDK: observations with their input and output.

https://langfuse.com/integrations/native/opentelemetry (property mapping). A span is told by
`langfuse.observation.type`; a tool or an agent is named as its span is.
"""

from __future__ import annotations

from typing import Final

from monitor.model import SpanKind
from monitor.semconv import payload
from monitor.semconv.content import plain
from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, first_label

_TYPE: Final = "langfuse.observation.type"
_INPUT: Final = "langfuse.observation.input"
_OUTPUT: Final = "langfuse.observation.output"
_LEVEL: Final = "langfuse.observation.level"
_MESSAGE: Final = "langfuse.observation.status_message"
_TRACE_INPUT: Final = "langfuse.trace.input"
_TRACE_OUTPUT: Final = "langfuse.trace.output"
_SESSIONS: Final = ("session.id", "langfuse.session.id")

KEYS: frozenset[str] = frozenset(
    {_TYPE, _INPUT, _OUTPUT, _LEVEL, _MESSAGE, _TRACE_INPUT, _TRACE_OUTPUT, *_SESSIONS}
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_TYPE})

_KINDS: Final[dict[str, SpanKind]] = {"generation": "llm", "tool": "tool", "agent": "agent"}


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    told = attributes.get(_TYPE)
    if not isinstance(told, str):
        return None
    kind = _KINDS.get(told.lower(), "other")
    if kind == "other" and (_TRACE_OUTPUT in attributes or _TRACE_INPUT in attributes):
        kind = "agent"  # the span at the top of a trace, where no observation is an agent
    session = first_label(attributes, _SESSIONS)
    content = Content(kind, name(raw.name) if kind == "agent" else None, session)
    if kind == "llm":
        payload.take_turn(content, raw, _INPUT, _OUTPUT)
    elif kind == "tool":
        content.tool = name(raw.name)
        content.take_arguments(attributes.get(_INPUT), raw.cut.get(_INPUT))
        content.take_result(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
        if raw.dropped:
            content.miss("arguments", None if content.arguments else "attributes_dropped")
            content.miss("result", None if content.result else "attributes_dropped")
    elif kind == "agent":
        payload.take_request(content, raw, _INPUT, _TRACE_INPUT)
        payload.take_answer(content, raw, _OUTPUT, _TRACE_OUTPUT)
    if attributes.get(_LEVEL) == "ERROR" and kind != "other":
        message = attributes.get(_MESSAGE)
        content.error = plain(message)[0] or "" if isinstance(message, str) else ""
    return content
