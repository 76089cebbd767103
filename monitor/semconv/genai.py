"""The OpenTelemetry GenAI conventions: current ones, and those up to 1.36 with events.

https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md and
gen-ai-agent-spans.md), https://github.com/open-telemetry/semantic-conventions (v1.36.0). A span is
told by `gen_ai.operation.name`; its content lies in its attributes, else in its events.

What frameworks write beside or instead of them: pydantic-ai's attributes of a run and of version 1;
Google ADK's `gcp.vertex.agent.*`; the LangChain agent's name in OpenLLMetry's properties.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from monitor.model import Message, Part, SpanKind, Unseen
from monitor.semconv import messages
from monitor.semconv.content import Shown, shown
from monitor.semconv.dialect import Content
from monitor.semconv.events import CHOICE, Told, details, of_attribute, of_span
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, Value, label
from monitor.semconv.trim import JsonHistory, trim
from monitor.semconv.wrapped import Fields, fields, items, string, within

OPERATION: Final = "gen_ai.operation.name"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT: Final = "gen_ai.agent.name"
WORKFLOW: Final = "gen_ai.workflow.name"
TOOL: Final = "gen_ai.tool.name"
CALL_ID: Final = "gen_ai.tool.call.id"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
ALL_MESSAGES: Final = "pydantic_ai.all_messages"
ALL_EVENTS: Final = "all_messages_events"
FINAL_RESULT: Final = "final_result"
NEW_MESSAGES: Final = "pydantic_ai.new_message_index"
"""Where this run's messages begin in `ALL_MESSAGES`; absent for 0."""
EVENTS: Final = "events"
_AGENTS: Final = (AGENT, "agent_name", "traceloop.association.properties.lc_agent_name")
_CONVERSATIONS: Final = (
    CONVERSATION,
    "session.id",
    "gcp.vertex.agent.session_id",
    "traceloop.association.properties.session_id",
    "traceloop.association.properties.thread_id",
)
_ARGUMENTS: Final = (ARGUMENTS, "gcp.vertex.agent.tool_call_args", "tool_arguments")
_RESULTS: Final = (RESULT, "gcp.vertex.agent.tool_response", "tool_response")
_STATUS: Final = "gen_ai.tool.status"
_ADK: Final = "gcp.vertex.agent"
_ADK_EVENT: Final = "gcp.vertex.agent.event_id"
_ADK_RUN: Final = re.compile(r"agent_run \[(.+)\]")
_PYDANTIC: Final = "pydantic-ai"
_LLM_REQUEST: Final = "gcp.vertex.agent.llm_request"
_LLM_RESPONSE: Final = "gcp.vertex.agent.llm_response"
_MCP: Final = "mcp.method.name"
_OPENLLMETRY_OPENAI: Final = "opentelemetry.instrumentation.openai"
_ITEM: Final = "fc_"
_ENTITY: Final = "traceloop.span.kind"
"""OpenLLMetry's, whose own attributes tell what such a span is of."""

KEYS: frozenset[str] = frozenset(
    {
        OPERATION,
        CONVERSATION,
        AGENT,
        WORKFLOW,
        TOOL,
        CALL_ID,
        ARGUMENTS,
        RESULT,
        INPUT,
        OUTPUT,
        INSTRUCTIONS,
        ALL_MESSAGES,
        FINAL_RESULT,
        NEW_MESSAGES,
        ALL_EVENTS,
        EVENTS,
        _STATUS,
        _LLM_REQUEST,
        _LLM_RESPONSE,
        _ADK_EVENT,
        _MCP,
        *_AGENTS,
        *_CONVERSATIONS,
        *_ARGUMENTS,
        *_RESULTS,
    }
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset()

_KINDS: Final[dict[object, SpanKind]] = {
    "chat": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
}
_REPEATED: Final = 64 * 1024
"""Characters of instructions that are remembered at most."""
_NO_TOOL: Final = "(merged tools)"
"""Google ADK's span over the results of parallel calls, each of which has a span of its own."""


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    kind = _kind(raw)
    if kind is None:
        return None
    if attributes.get(TOOL) == _NO_TOOL:
        return Content(kind="other")
    if raw.events:
        raw = details(raw)
        attributes = raw.attributes
    agent = attributes.get(AGENT)
    if agent is None:
        agent = _first(raw, _AGENTS)
    if agent is None and kind == "agent" and (run := _ADK_RUN.fullmatch(raw.name)):
        agent = run[1]
    if attributes.get(OPERATION) == "invoke_workflow":
        agent = attributes.get(WORKFLOW, agent)
    conversation = attributes.get(CONVERSATION)
    if conversation is None:
        conversation = _first(raw, _CONVERSATIONS)
    content = Content(kind, label(agent), label(conversation))
    if kind == "tool":
        _tool(raw, content)
    elif kind == "llm":
        _llm(raw, content)
    else:
        _agent(raw, content)
    return content


def _kind(raw: RawSpan) -> SpanKind | None:
    """What the operation says; without one what only spans of one kind carry."""
    attributes = raw.attributes
    operation = attributes.get(OPERATION)
    if isinstance(operation, str):
        return _KINDS.get(operation)
    if TOOL in attributes and attributes.get(_MCP, "tools/call") == "tools/call":
        return None if _ENTITY in attributes else "tool"
    if _LLM_REQUEST in attributes or INPUT in attributes or OUTPUT in attributes:
        return "llm"
    if "agent_name" in attributes and raw.scope == _PYDANTIC:
        return "agent"
    return "agent" if raw.scope == _ADK and _ADK_RUN.fullmatch(raw.name) else None


def _first(raw: RawSpan, keys: Iterable[str]) -> Value:
    """The first attribute of these that is there."""
    attributes = raw.attributes
    for key in keys:
        if key in attributes:
            return attributes[key]
    return None


def _tool(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    content.tool = label(attributes.get(TOOL)) or name(raw.name.removeprefix("execute_tool "))
    content.call_id = label(attributes.get(CALL_ID))
    asked, given = ARGUMENTS, RESULT
    if ARGUMENTS not in attributes:
        asked = next((key for key in _ARGUMENTS if key in attributes), ARGUMENTS)
    if RESULT not in attributes:
        given = next((key for key in _RESULTS if key in attributes), RESULT)
    arguments, result = attributes.get(asked), attributes.get(given)
    if arguments is None or result is None:
        arguments, result = _told_by_events(raw, content, arguments, result)
    if raw.scope == _ADK and arguments == result == "{}":
        arguments = result = None  # ADK's way of not showing them
    content.take_arguments(arguments, raw.cut.get(asked))
    content.take_result(result, raw.cut.get(given), only="result" if raw.scope == _ADK else None)
    if attributes.get(_STATUS) == "error" and content.error is None:
        content.error = content.result or ""
    if raw.dropped:
        _dropped(content, "arguments", arguments)
        _dropped(content, "result", result)


def _told_by_events(
    raw: RawSpan, content: Content, arguments: Value, result: Value
) -> tuple[Value, Value]:
    """Arguments and result from a tool span's events or messages (Strands)."""
    for event in raw.events:
        if event.name == "gen_ai.tool.message" and arguments is None:
            arguments = event.attributes.get("content")
        elif event.name == CHOICE and result is None:
            result = event.attributes.get("message")
    if arguments is None and INPUT in raw.attributes:
        for message in messages.read_all(raw.attributes[INPUT])[0]:
            for call in message.calls:
                content.call_id = content.call_id or call.call_id
                arguments = call.arguments
    if result is None and OUTPUT in raw.attributes:
        for message in messages.read_all(raw.attributes[OUTPUT])[0]:
            for returned in message.results:
                result = returned.result
                if returned.failed:
                    content.error = returned.result or ""
    return arguments, result


def _llm(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    told = None
    if INPUT not in attributes or OUTPUT not in attributes:
        told = _told(raw)
    history: Sequence[msgspec.Raw] = ()
    unseen: Unseen | None = None
    if INPUT in attributes or told is None or not told.inputs:
        history, unseen = messages.split(attributes.get(INPUT), raw.cut.get(INPUT))
    else:
        history = told.inputs
    content.inputs, content.omitted, why = trim(
        JsonHistory(history), system=_system(raw, content), everything=raw.parent is None
    )
    if unseen or why:
        content.miss("input", unseen or why)
    if raw.scope == _ADK or _ADK_EVENT in attributes:
        content.inputs = tuple(map(_given, content.inputs))
    elif raw.scope.startswith(_OPENLLMETRY_OPENAI):
        content.inputs = _of_items(content.inputs)
    if OUTPUT in attributes or told is None or not told.outputs:
        _outputs(raw, content, OUTPUT)
    else:
        content.take_outputs([messages.read(item) for item in told.outputs])
    if raw.dropped:
        _dropped(content, "input", content.inputs or None)
        _dropped(content, "output", content.outputs or None)
    if not content.outputs:
        content.miss("output", "content_hidden")


def _given(message: Message) -> Message:
    """A message without what Google ADK puts around results that are no objects."""
    if not message.results:
        return message
    given = [
        msgspec.structs.replace(returned, result=within(returned.result, "result"))
        for returned in message.results
    ]
    return msgspec.structs.replace(message, results=tuple(given))


def _of_items(inputs: tuple[Message, ...]) -> tuple[Message, ...]:
    """OpenLLMetry names a call of OpenAI's Responses by the item that holds it, and its result by the
    call: which is whose is told by their order, when there are as many."""
    items = [call.call_id for message in inputs for call in message.calls]
    if not any(item is not None and item.startswith(_ITEM) for item in items):
        return inputs
    named = [returned.call_id for message in inputs for returned in message.results]
    if len(items) != len(named) or len({*items, *named}) < len(items) + len(named):
        return inputs
    item_of = dict(zip(named, items, strict=True))
    return tuple(
        msgspec.structs.replace(
            message,
            results=tuple(
                msgspec.structs.replace(returned, call_id=item_of[returned.call_id])
                for returned in message.results
            ),
        )
        if message.results
        else message
        for message in inputs
    )


def _told(raw: RawSpan) -> Told:
    """The messages that stand elsewhere than in the usual attributes."""
    attributes = raw.attributes
    if raw.events and (told := of_span(raw.events)) != _NOTHING:
        return told
    if EVENTS in attributes:
        return of_attribute(attributes[EVENTS])
    if _LLM_REQUEST in attributes:
        return _adk(attributes)
    return _NOTHING


_NOTHING: Final = Told([], [])


def _adk(attributes: Mapping[str, Value]) -> Told:
    """Request and response of Google ADK's own attributes, as Gemini's API has them."""
    told = Told([], [])
    request = _object(attributes.get(_LLM_REQUEST))
    config = fields(request.get("config", msgspec.Raw())) or {}
    if (system := string(config.get("system_instruction"))) is not None:
        told.inputs.append(msgspec.Raw(msgspec.json.encode({"role": "system", "content": system})))
    told.inputs.extend(items(request.get("contents", msgspec.Raw())) or ())
    response = _object(attributes.get(_LLM_RESPONSE))
    if "content" in response and bytes(response["content"])[:1] == b"{":
        told.outputs.append(response["content"])
    return told


def _object(value: Value) -> Fields:
    text = shown(value)[0]
    return (fields(text.encode()) if text is not None else None) or {}


def _agent(raw: RawSpan, content: Content) -> None:
    """The run as its agent tells it: the last thing the user said, and what came of it.

    The prefix uses it when no LLM span below shows content. Nothing is expected of an agent span,
    so that absence is no evidence.
    """
    attributes = raw.attributes
    if INPUT not in attributes and raw.events:
        told = of_span(raw.events)
        if told.inputs or told.outputs:
            history = JsonHistory(told.inputs)
            _request(history, content, reversed(range(len(history))))
            content.take_outputs([messages.read(item) for item in told.outputs])
            return
    key = next((k for k in (INPUT, ALL_MESSAGES, ALL_EVENTS) if k in attributes), INPUT)
    found, why = messages.split(attributes.get(key), raw.cut.get(key))
    if key == ALL_EVENTS:
        found = of_attribute(attributes[key]).inputs
    content.miss("input", why)
    history = JsonHistory(found)
    if key == INPUT:
        _request(history, content, reversed(range(len(history))))
    else:
        start = attributes.get(NEW_MESSAGES)
        start = start if isinstance(start, int) and 0 <= start < len(history) else 0
        _request(history, content, range(start, len(history)))
    if OUTPUT in attributes:
        _outputs(raw, content, OUTPUT)
    elif FINAL_RESULT in attributes:
        text, why = shown(attributes[FINAL_RESULT], raw.cut.get(FINAL_RESULT))
        content.miss("output", why)
        if text is not None:
            content.outputs = (Message("assistant", text),)
    elif key != INPUT and len(history):
        message, why = history.read(len(history) - 1)
        if message.role == "assistant":
            content.outputs = (message,)
            content.miss("output", why)


def _request(history: JsonHistory, content: Content, places: Iterable[int]) -> None:
    """The first message, of those at `places`, in which a user speaks and no tool in that role."""
    for index in places:
        if history.role(index) == "user":
            message, why = history.read(index)
            if message.role == "user":
                content.inputs = (message,)
                content.miss("input", why)
                return


def _outputs(raw: RawSpan, content: Content, key: str) -> None:
    content.outputs, unseen = messages.read_all(raw.attributes.get(key), raw.cut.get(key))
    for message in content.outputs:
        if message.text is None and not message.calls and not message.results:
            content.miss("output", unseen or "content_hidden")
    if unseen is not None:
        content.miss("output", unseen)


def _system(raw: RawSpan, content: Content) -> Message | None:
    """The instructions that the conventions keep apart from the history: an array of parts."""
    value = raw.attributes.get(INSTRUCTIONS)
    if value is None:
        return None
    if isinstance(value, str) and len(value) < _REPEATED:
        text, why = instructions(value)
    else:
        text, why = messages.parts_text(value, raw.cut.get(INSTRUCTIONS))
    if why is not None:
        content.miss("input", why)
    return None if text is None else Message(role="system", text=text)


@lru_cache(maxsize=64)
def instructions(value: str) -> Shown:
    """An agent sends the same instructions with every model call, so most are read already."""
    return messages.parts_text(value)


def _dropped(content: Content, part: Part, value: object) -> None:
    """The SDK dropped attributes of this span, and the part is not there: it may be one of them."""
    if value is None:
        content.miss(part, "attributes_dropped")
