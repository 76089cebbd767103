"""LangSmith's OpenTelemetry export: runs with their inputs and outputs as LangChain has them.

https://docs.langchain.com/langsmith/trace-with-opentelemetry. A span is told by
`langsmith.span.kind`; `gen_ai.prompt` is the run's inputs and `gen_ai.completion` its outputs. A run
that failed leaves the status at OK, and `{}` as its outputs.
"""

from __future__ import annotations

from typing import Final

from monitor.model import SpanKind
from monitor.semconv import payload
from monitor.semconv.content import HIDDEN, Shown, shown, shown_raw
from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, Value, first_label, label
from monitor.semconv.wrapped import fields, string

_KIND: Final = "langsmith.span.kind"
_NAME: Final = "langsmith.trace.name"
_METADATA: Final = "langsmith.metadata."
_AGENT: Final = f"{_METADATA}lc_agent_name"
_SESSIONS: Final = tuple(f"{_METADATA}{k}" for k in ("session_id", "thread_id", "conversation_id"))
_TOOL: Final = "gen_ai.tool.name"
_SERIALIZED: Final = "gen_ai.serialized.name"
_CALL_ID: Final = "gen_ai.tool.call.id"
_INPUT: Final = "gen_ai.prompt"
_OUTPUT: Final = "gen_ai.completion"

KEYS: frozenset[str] = frozenset(
    {_KIND, _NAME, _AGENT, *_SESSIONS, _TOOL, _SERIALIZED, _CALL_ID, _INPUT, _OUTPUT}
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_KIND})

_KINDS: Final[dict[str, SpanKind]] = {"llm": "llm", "tool": "tool"}


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    told = attributes.get(_KIND)
    if not isinstance(told, str):
        return None
    agent = label(attributes.get(_AGENT))
    run = label(attributes.get(_NAME)) or name(raw.name)
    kind = _KINDS.get(told.lower(), "other")
    if kind == "other" and told.lower() == "chain" and (run == agent or raw.parent is None):
        kind, agent = "agent", agent or run
    session = first_label(attributes, _SESSIONS)
    content = Content(kind, agent, session)
    if kind == "llm":
        payload.take_turn(content, raw, _INPUT, _OUTPUT)
    elif kind == "tool":
        content.tool = label(attributes.get(_TOOL)) or label(attributes.get(_SERIALIZED)) or run
        content.call_id = label(attributes.get(_CALL_ID))
        content.arguments, why = _arguments(attributes.get(_INPUT), raw.cut.get(_INPUT))
        content.miss("arguments", why)
        if not _empty(attributes.get(_OUTPUT)):
            content.take_result(attributes[_OUTPUT], raw.cut.get(_OUTPUT), only="output")
    elif kind == "agent":
        payload.take_request(content, raw, _INPUT)
        payload.take_answer(content, raw, _OUTPUT)
    if raw.dropped and kind == "tool":
        content.miss("arguments", None if content.arguments else "attributes_dropped")
        content.miss("result", None if content.result else "attributes_dropped")
    return content


def _empty(value: Value) -> bool:
    return value is None or (isinstance(value, str) and value.strip() in ("", "{}"))


def _arguments(value: Value, note: str | None) -> Shown:
    """A tool run's input: `{"input": "<repr of the arguments>"}`, or the arguments themselves.

    One without arguments is `{"input": "{}"}`; an input that was hidden is `{}`.
    """
    if isinstance(value, str) and _empty(value):
        return HIDDEN
    text, why = shown(value, note)
    found = fields(text.encode()) if text is not None and why is None else None
    if found is None:
        return text, why
    if found.keys() == {"input"}:
        inner = shown_raw(bytes(found["input"]))
        if inner[0] is not None and (inner[0][:1] == "{" or string(found["input"]) is not None):
            return inner
    return text, why
