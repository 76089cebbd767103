"""Haystack's own tracing: a span for each component of a pipeline, and for each agent's run.

https://docs.haystack.deepset.ai/docs/tracing. Content needs HAYSTACK_CONTENT_TRACING_ENABLED. A
generator is told by its type or by its `replies`. `ToolInvoker` runs all the calls of a turn in one
span, so that a call is known from the model that asked for it, and its result from the model call
that follows.
"""

from __future__ import annotations

from typing import Final

from monitor.semconv import payload
from monitor.semconv.dialect import Content
from monitor.semconv.messages import read as read_message
from monitor.semconv.raw import RawSpan, Value, label
from monitor.semconv.wrapped import Raw, fields, items

_TYPE: Final = "haystack.component.type"
_NAME: Final = "haystack.component.name"
_INPUT: Final = "haystack.component.input"
_OUTPUT: Final = "haystack.component.output"
_STEPS: Final = "haystack.agent.max_steps"
_ASKED: Final = "haystack.agent.input"
_SAID: Final = "haystack.agent.output"
_GENERATOR: Final = "Generator"
_AGENT: Final = "Agent"

KEYS: frozenset[str] = frozenset({_TYPE, _NAME, _INPUT, _OUTPUT, _STEPS, _ASKED, _SAID})
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_TYPE, _STEPS, _ASKED, _SAID})


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    kind = label(attributes.get(_TYPE))
    if kind is None:
        content = Content("agent")
        payload.take_request(content, raw, _ASKED)
        payload.take_answer(content, raw, _SAID)
        return content
    if kind == _AGENT:
        return Content("agent", label(attributes.get(_NAME)))
    replies = _replies(attributes.get(_OUTPUT))
    if replies is None and not kind.endswith(_GENERATOR):
        return Content("other")
    content = Content("llm")
    asked, why = payload.requested(attributes.get(_INPUT), raw.cut.get(_INPUT))
    payload.take_history(content, raw, asked, why)
    content.take_outputs([read_message(item) for item in replies or ()])
    if not content.outputs:
        content.miss("output", "content_truncated" if _OUTPUT in raw.cut else "content_hidden")
    return content


def _replies(value: Value) -> list[Raw] | None:
    """What a generator's output holds, texts as messages; None when it is none of a generator."""
    found = fields(value.encode("utf-8", "replace")) if isinstance(value, str) else None
    listed = items(found["replies"]) if found is not None and "replies" in found else None
    if listed is None:
        return None
    return [
        Raw(b'{"role":"assistant","content":' + bytes(item) + b"}")
        if bytes(item)[:1] == b'"'
        else item
        for item in listed
    ]
