"""The current OpenTelemetry GenAI conventions, with content in span attributes.

https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md and
gen-ai-agent-spans.md). Besides them: pydantic-ai's own attributes of an agent run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from monitor.model import Message, Part, SpanKind
from monitor.semconv import messages
from monitor.semconv.content import shown
from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, text_of
from monitor.semconv.trim import trim

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
FINAL_RESULT: Final = "final_result"
SPAN_TYPE: Final = "logfire.span_type"

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
        SPAN_TYPE,
    }
)
PREFIXES: tuple[str, ...] = ()

_KINDS: Final[dict[object, SpanKind]] = {
    "chat": "llm",
    "generate_content": "llm",
    "text_completion": "llm",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
}
_NO_TOOL: Final = "(merged tools)"
"""Google ADK's span over the results of parallel calls, each of which has a span of its own."""


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    operation = attributes.get(OPERATION)
    kind = _KINDS.get(operation) if isinstance(operation, str) else None
    if kind is None:
        return None
    if attributes.get(TOOL) == _NO_TOOL or attributes.get(SPAN_TYPE) == "pending_span":
        return Content(kind="other")
    agent = attributes.get(AGENT)
    if operation == "invoke_workflow":
        agent = attributes.get(WORKFLOW, agent)
    content = Content(
        kind=kind, agent=_name(agent), conversation_id=_name(attributes.get(CONVERSATION))
    )
    if kind == "tool":
        _tool(raw, content)
    elif kind == "llm":
        _llm(raw, content)
    else:
        _agent(raw, content)
    return content


def _tool(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    content.tool = _name(attributes.get(TOOL)) or name(raw.name.removeprefix("execute_tool "))
    content.call_id = _name(attributes.get(CALL_ID))
    content.arguments, why = shown(attributes.get(ARGUMENTS), raw.cut.get(ARGUMENTS))
    content.miss("arguments", why)
    content.result, why = shown(attributes.get(RESULT), raw.cut.get(RESULT))
    content.miss("result", why)
    if raw.dropped:
        _dropped(content, "arguments", attributes.get(ARGUMENTS))
        _dropped(content, "result", attributes.get(RESULT))


def _llm(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    history, why = messages.split(attributes.get(INPUT), raw.cut.get(INPUT))
    content.miss("input", why)
    trimmed = trim(
        history, messages.read, bytes, system=_system(raw, content), everything=raw.parent is None
    )
    content.inputs, content.omitted = trimmed.messages, trimmed.omitted
    content.miss("input", trimmed.unseen)
    _outputs(raw, content, OUTPUT)
    if raw.dropped:
        _dropped(content, "input", attributes.get(INPUT))
        _dropped(content, "output", attributes.get(OUTPUT))
    if not content.outputs:
        content.miss("output", "content_hidden")


def _agent(raw: RawSpan, content: Content) -> None:
    """The run as its agent tells it: the last thing the user said, and everything since.

    The prefix uses it when no LLM span below shows content. Nothing is expected of an agent span,
    so that absence is no evidence.
    """
    attributes = raw.attributes
    if ALL_MESSAGES in attributes:
        history, why = messages.split(attributes[ALL_MESSAGES], raw.cut.get(ALL_MESSAGES))
        content.miss("output", why)
        content.inputs, content.outputs = _last_turn(history, content)
    elif INPUT in attributes:
        history, why = messages.split(attributes[INPUT], raw.cut.get(INPUT))
        content.miss("input", why)
        content.inputs, _ = _last_turn(history, content)
    if OUTPUT in attributes:
        _outputs(raw, content, OUTPUT)
    elif not content.outputs and FINAL_RESULT in attributes:
        text, why = shown(attributes[FINAL_RESULT], raw.cut.get(FINAL_RESULT))
        content.miss("output", why)
        if text is not None:
            content.outputs = (Message(role="assistant", text=text),)


def _last_turn(
    history: Sequence[msgspec.Raw], content: Content
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The last message in which a user speaks, and those after it."""
    after: list[Message] = []
    for raw in reversed(history):
        message, why = messages.read(raw)
        if message.role == "user":
            content.miss("input", why)
            return (message,), tuple(reversed(after))
        content.miss("output", why)
        after.append(message)
    return (), tuple(reversed(after))


def _outputs(raw: RawSpan, content: Content, key: str) -> None:
    found, why = messages.split(raw.attributes.get(key), raw.cut.get(key))
    content.miss("output", why)
    outputs = []
    for item in found:
        message, why = messages.read(item)
        content.miss("output", why)
        outputs.append(message)
    content.outputs = tuple(outputs)


def _system(raw: RawSpan, content: Content) -> Message | None:
    """The instructions that the conventions keep apart from the history: an array of parts."""
    value = raw.attributes.get(INSTRUCTIONS)
    if value is None:
        return None
    text, why = messages.parts_text(value, raw.cut.get(INSTRUCTIONS))
    content.miss("input", why)
    return None if text is None else Message(role="system", text=text)


def _dropped(content: Content, part: Part, value: object) -> None:
    """The SDK dropped attributes of this span, and the part is not there: it may be one of them."""
    if value is None:
        content.miss(part, "attributes_dropped")


def _name(value: object) -> str | None:
    text = text_of(value)  # type: ignore[arg-type]
    return text and name(text)
