"""OpenLLMetry (Traceloop) up to 0.4x: messages flattened into attributes, entities for the rest.

https://github.com/traceloop/openllmetry (opentelemetry-semantic-conventions-ai). Later versions
write the conventions of OpenTelemetry, which are read there. LLM spans are told by
`llm.request.type` or `gen_ai.prompt.N`, others by `traceloop.span.kind`.
"""

from __future__ import annotations

from typing import Final

from monitor.model import SpanKind
from monitor.semconv import payload
from monitor.semconv.dialect import Content
from monitor.semconv.flat import FlatHistory, Tree, listed
from monitor.semconv.limits import name
from monitor.semconv.literal import as_json
from monitor.semconv.raw import RawSpan, first_label, label
from monitor.semconv.trim import trim
from monitor.semconv.wrapped import Raw, fields, string

_KIND: Final = "traceloop.span.kind"
_REQUEST_TYPE: Final = "llm.request.type"
_ENTITY: Final = "traceloop.entity.name"
_WORKFLOW: Final = "traceloop.workflow.name"
_INPUT: Final = "traceloop.entity.input"
_OUTPUT: Final = "traceloop.entity.output"
_TOOL: Final = "tool.name"
_ARGUMENTS: Final = "tool.arguments"
"""With LlamaIndex a tool's span is a task that has these."""
_AGNO: Final = "opentelemetry.instrumentation.agno"
_PROPERTIES: Final = "traceloop.association.properties."
_SESSIONS: Final = (f"{_PROPERTIES}session_id", f"{_PROPERTIES}thread_id")
_AGENT: Final = f"{_PROPERTIES}lc_agent_name"
_PROMPTS: Final = "gen_ai.prompt."
_COMPLETIONS: Final = "gen_ai.completion."

PREFIXES: tuple[str, ...] = (_PROMPTS, _COMPLETIONS)
MARKS: frozenset[str] = frozenset(
    {
        _REQUEST_TYPE,
        f"{_PROMPTS}0.role",
        f"{_PROMPTS}0.content",
        f"{_COMPLETIONS}0.role",
        f"{_COMPLETIONS}0.content",
    }
)
TELLS: frozenset[str] = MARKS | {_KIND}
KEYS: frozenset[str] = MARKS | {
    _KIND,
    _ENTITY,
    _WORKFLOW,
    _INPUT,
    _OUTPUT,
    _TOOL,
    _ARGUMENTS,
    _AGENT,
    *_SESSIONS,
}

_KINDS: Final[dict[object, SpanKind]] = {"tool": "tool", "agent": "agent", "workflow": "agent"}
_MESSAGES: Final = MARKS - {_REQUEST_TYPE}
_LLM_TYPES: Final = ("chat", "completion")


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    kind: SpanKind
    if attributes.get(_REQUEST_TYPE) in _LLM_TYPES or not _MESSAGES.isdisjoint(attributes):
        kind = "llm"
    elif _KIND in attributes:
        told = attributes[_KIND]
        kind = _KINDS.get(told, "other") if isinstance(told, str) else "other"
        if told == "task" and _TOOL in attributes:
            kind = "tool"
    else:
        return None
    agent = label(attributes.get(_AGENT))
    if kind == "agent":
        agent = agent or label(attributes.get(_ENTITY)) or label(attributes.get(_WORKFLOW))
    session = first_label(attributes, _SESSIONS)
    content = Content(kind, agent, session)
    if kind == "llm":
        _llm(raw, content)
    elif kind == "tool" and _TOOL in attributes:
        _llama_tool(raw, content)
    elif kind == "tool":
        content.tool = label(attributes.get(_ENTITY)) or name(raw.name.removesuffix(".tool"))
        content.take_arguments(attributes.get(_INPUT), raw.cut.get(_INPUT))
        told = attributes.get(_OUTPUT)
        if raw.scope == _AGNO and isinstance(told, str):
            told = _agno(told, content)
        content.take_result(told, raw.cut.get(_OUTPUT))
    elif kind == "agent":
        payload.take_request(content, raw, _INPUT)
        payload.take_answer(content, raw, _OUTPUT)
    if raw.dropped:
        _dropped(content)
    return content


def _llama_tool(raw: RawSpan, content: Content) -> None:
    """LlamaIndex: the output is an event `{tool_name, tool_kwargs, tool_id, tool_output}`."""
    attributes = raw.attributes
    content.tool = label(attributes[_TOOL])
    content.take_arguments(attributes.get(_ARGUMENTS), raw.cut.get(_ARGUMENTS))
    told = attributes.get(_OUTPUT)
    found = fields(told.encode("utf-8", "replace")) if isinstance(told, str) else None
    if found is not None and "tool_output" in found:
        content.call_id = label(string(found.get("tool_id")))
        told = bytes(found["tool_output"]).decode("utf-8", "replace")
    content.take_result(told, raw.cut.get(_OUTPUT))


def _agno(told: str, content: Content) -> str:
    """The result within `status='..' result=.. error=.. ..`, which Agno's object is printed as."""
    status, has_result, rest = told.partition(" result=")
    given, has_error, rest = rest.rpartition(" error=")
    if not (has_result and has_error and status.startswith("status=")):
        return told
    if status == "status='failure'":
        content.error = _as_text(rest.partition(" updated_session_state=")[0])
    return _as_text(given)


def _as_text(literal: str) -> str:
    """The text that a Python string is; another literal as JSON, anything else as it is."""
    found = as_json(literal)
    if found is None:
        return literal
    text = string(Raw(found.encode()))
    return found if text is None else text


def _dropped(content: Content) -> None:
    """Messages lie in many attributes, so that those that are left may be any part of them."""
    if content.kind == "llm":
        content.unseen["input"] = content.unseen["output"] = "attributes_dropped"
    elif content.kind == "tool":
        content.miss("arguments", None if content.arguments else "attributes_dropped")
        content.miss("result", None if content.result else "attributes_dropped")


def _llm(raw: RawSpan, content: Content) -> None:
    history = FlatHistory(raw.attributes, _PROMPTS, _message)
    content.inputs, content.omitted, why = trim(history, everything=raw.parent is None)
    content.miss("input", why)
    content.take_outputs(FlatHistory(raw.attributes, _COMPLETIONS, _message).read_all())
    if not content.outputs:
        content.miss("output", "content_hidden")


def _message(tree: Tree) -> Tree:
    """A message as OpenAI's API has it; a content that is no text stands as JSON."""
    message = tree
    calls = listed(tree.get("tool_calls"))
    if calls:
        message = {**tree, "tool_calls": calls}
    content = tree.get("content")
    if isinstance(content, str) and content[:2] in ('""', "[{"):
        found = payload.parsed(content)
        if found is not None:
            return {**message, "content": None if content == '""' else found}
    return message
