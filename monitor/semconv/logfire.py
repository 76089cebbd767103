"""Logfire's own spans, as it writes them for the OpenAI Agents SDK and for clients of models.

https://logfire.pydantic.dev/docs/integrations/llms/openai/. A span is told by
`logfire.msg_template`, whose words say what it is of: `Function: {name}` a tool, `Agent run: {name}`
an agent. What went in and came out of a model call lies in `input` and `output`, in `request_data`
and `response_data`, or in a JSON attribute `events`, in which the messages that it ends with are
what the model said. Spans that have the messages of the GenAI conventions are read there, as are
pydantic-ai's.
"""

from __future__ import annotations

from typing import Final

from monitor.model import Unseen
from monitor.semconv import payload
from monitor.semconv.content import plain
from monitor.semconv.decode import role_of
from monitor.semconv.dialect import Content
from monitor.semconv.events import of_attribute
from monitor.semconv.limits import name
from monitor.semconv.messages import read as read_message
from monitor.semconv.raw import STATUS_ERROR, RawSpan, Value, label
from monitor.semconv.wrapped import Raw, fields, string

_TEMPLATE: Final = "logfire.msg_template"
_NAME: Final = "name"
_INPUT: Final = "input"
_OUTPUT: Final = "output"
_EVENTS: Final = "events"
_REQUEST: Final = "request_data"
_RESPONSE: Final = "response_data"
_ERROR: Final = "error"
_MODEL: Final = "gen_ai.request.model"
_CONVENTIONS: Final = ("gen_ai.input.messages", "gen_ai.output.messages")
_TOOL: Final = "Function: "
_AGENT: Final = "Agent run: "

KEYS: frozenset[str] = frozenset(
    {_TEMPLATE, _NAME, _INPUT, _OUTPUT, _EVENTS, _REQUEST, _RESPONSE, _ERROR, _MODEL}
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_TEMPLATE})


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    template = attributes.get(_TEMPLATE)
    if not isinstance(template, str):
        return None
    if template.startswith(_TOOL) and _NAME in attributes:
        content = Content("tool", tool=label(attributes[_NAME]) or name(raw.name))
        content.take_arguments(attributes.get(_INPUT), raw.cut.get(_INPUT))
        content.take_result(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
        if raw.status == STATUS_ERROR and (told := _cause(attributes.get(_ERROR))) is not None:
            content.error = told
        if raw.dropped:
            content.miss("arguments", None if content.arguments else "attributes_dropped")
            content.miss("result", None if content.result else "attributes_dropped")
        return content
    if template.startswith(_AGENT) and _NAME in attributes:
        return Content("agent", label(attributes[_NAME]))
    if _MODEL not in attributes or any(key in attributes for key in _CONVENTIONS):
        return None
    asked, said, unseen = _messages(raw)
    if asked is None:
        return None
    content = Content("llm")
    payload.take_history(content, raw, asked, unseen)
    content.take_outputs([read_message(item) for item in said])
    if raw.dropped:
        content.miss("input", None if asked else "attributes_dropped")
        content.miss("output", None if said else "attributes_dropped")
    if not content.outputs:
        content.miss("output", "content_hidden")
    return content


def _messages(raw: RawSpan) -> tuple[list[Raw] | None, list[Raw], Unseen | None]:
    """What was asked and what was said, still JSON; None where the span tells no messages."""
    attributes = raw.attributes
    if _EVENTS in attributes:
        told = of_attribute(attributes[_EVENTS])
        asked, said = told.inputs, told.outputs
        while not told.outputs and asked and role_of(asked[-1]) == "assistant":
            said = [asked[-1], *said]
            asked = asked[:-1]
        return asked, said, None if raw.cut.get(_EVENTS) is None else "content_truncated"
    for into, out in ((_INPUT, _OUTPUT), (_REQUEST, _RESPONSE)):
        if into in attributes:
            asked, unseen = payload.requested(attributes[into], raw.cut.get(into))
            said, why = payload.responded(attributes.get(out), raw.cut.get(out))
            return asked, said, unseen or why
    return None, [], None


def _cause(value: Value) -> str | None:
    """The cause in `{"message": .., "data": {"error": ..}}`, else the message."""
    found = fields(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    if found is None:
        return None
    data = fields(found.get("data", Raw())) or {}
    text = string(data.get("error")) or string(found.get("message"))
    return None if text is None else plain(text)[0]
