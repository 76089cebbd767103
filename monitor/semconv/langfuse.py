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
from monitor.semconv.messages import read as read_message
from monitor.semconv.raw import RawSpan, first_label
from monitor.semconv.trim import JsonHistory, trim

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
        _llm(raw, content)
    elif kind == "tool":
        content.tool = name(raw.name)
        content.take_arguments(attributes.get(_INPUT), raw.cut.get(_INPUT))
        content.take_result(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
        if raw.dropped:
            content.miss("arguments", None if content.arguments else "attributes_dropped")
            content.miss("result", None if content.result else "attributes_dropped")
    elif kind == "agent":
        _agent(raw, content)
    if attributes.get(_LEVEL) == "ERROR" and kind != "other":
        message = attributes.get(_MESSAGE)
        content.error = plain(message)[0] or "" if isinstance(message, str) else ""
    return content


def _llm(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    asked, unseen = payload.requested(attributes.get(_INPUT), raw.cut.get(_INPUT))
    content.inputs, content.omitted, why = trim(JsonHistory(asked), everything=raw.parent is None)
    content.miss("input", unseen or why)
    said, why = payload.responded(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
    content.take_outputs([read_message(item) for item in said], why)
    if raw.dropped:
        content.miss("input", None if asked else "attributes_dropped")
        content.miss("output", None if said else "attributes_dropped")
    if not content.outputs:
        content.miss("output", "content_hidden")


def _agent(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    for key in (_INPUT, _TRACE_INPUT):
        asked, _ = payload.requested(attributes.get(key), raw.cut.get(key))
        if (request := payload.last_request(asked)) is not None:
            content.inputs = (request[0],)
            break
    for key in (_OUTPUT, _TRACE_OUTPUT):
        said, _ = payload.responded(attributes.get(key), raw.cut.get(key))
        if (answer := payload.last_answer(said)) is not None:
            content.take_outputs([answer])
            break
