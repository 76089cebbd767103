"""The current OpenTelemetry GenAI conventions, with content in span attributes.

https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md and
gen-ai-agent-spans.md). Besides them: pydantic-ai's own attributes of an agent run.
"""

from __future__ import annotations

from typing import Final

from monitor.model import Message, Part, SpanKind
from monitor.semconv import messages
from monitor.semconv.content import shown
from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, label
from monitor.semconv.trim import JsonHistory, trim

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
    content = Content(kind, label(agent), label(attributes.get(CONVERSATION)))
    if kind == "tool":
        _tool(raw, content)
    elif kind == "llm":
        _llm(raw, content)
    else:
        _agent(raw, content)
    return content


def _tool(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    content.tool = label(attributes.get(TOOL)) or name(raw.name.removeprefix("execute_tool "))
    content.call_id = label(attributes.get(CALL_ID))
    content.arguments, why = shown(attributes.get(ARGUMENTS), raw.cut.get(ARGUMENTS))
    content.miss("arguments", why)
    content.result, why = shown(attributes.get(RESULT), raw.cut.get(RESULT))
    content.miss("result", why)
    if raw.dropped:
        _dropped(content, "arguments", attributes.get(ARGUMENTS))
        _dropped(content, "result", attributes.get(RESULT))


def _llm(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    history, unseen = messages.split(attributes.get(INPUT), raw.cut.get(INPUT))
    content.inputs, content.omitted, why = trim(
        JsonHistory(history), system=_system(raw, content), everything=raw.parent is None
    )
    if unseen or why:
        content.miss("input", unseen or why)
    _outputs(raw, content, OUTPUT)
    if raw.dropped:
        _dropped(content, "input", attributes.get(INPUT))
        _dropped(content, "output", attributes.get(OUTPUT))
    if not content.outputs:
        content.miss("output", "content_hidden")


def _agent(raw: RawSpan, content: Content) -> None:
    """The run as its agent tells it: the last thing the user said, and what came of it.

    The prefix uses it when no LLM span below shows content. Nothing is expected of an agent span,
    so that absence is no evidence.
    """
    attributes = raw.attributes
    key = INPUT if INPUT in attributes else ALL_MESSAGES
    found, why = messages.split(attributes.get(key), raw.cut.get(key))
    history = JsonHistory(found)
    if why is not None:
        content.miss("input", why)
    _last_request(history, content)
    if OUTPUT in attributes:
        _outputs(raw, content, OUTPUT)
    elif FINAL_RESULT in attributes:
        text, why = shown(attributes[FINAL_RESULT], raw.cut.get(FINAL_RESULT))
        content.miss("output", why)
        if text is not None:
            content.outputs = (Message("assistant", text),)
    elif key == ALL_MESSAGES and len(history):
        message, why = history.read(len(history) - 1)
        if message.role == "assistant":
            content.outputs = (message,)
            content.miss("output", why)


def _last_request(history: JsonHistory, content: Content) -> None:
    """The last message in which a user speaks, rather than a tool with the role of one."""
    for index in reversed(range(len(history))):
        if history.role(index) == "user":
            message, why = history.read(index)
            if message.role == "user":
                content.inputs = (message,)
                content.miss("input", why)
                return


def _outputs(raw: RawSpan, content: Content, key: str) -> None:
    found, unseen = messages.split(raw.attributes.get(key), raw.cut.get(key))
    outputs = []
    for item in found:
        message, why = messages.read(item)
        outputs.append(message)
        if why is None and message.text is None and not (message.calls or message.results):
            why = "content_hidden"  # nothing that a model says is nothing: its parts were left out
        if unseen is None:
            unseen = why
    content.outputs = tuple(outputs)
    if unseen is not None:
        content.miss("output", unseen)


def _system(raw: RawSpan, content: Content) -> Message | None:
    """The instructions that the conventions keep apart from the history: an array of parts."""
    value = raw.attributes.get(INSTRUCTIONS)
    if value is None:
        return None
    text, why = messages.parts_text(value, raw.cut.get(INSTRUCTIONS))
    if why is not None:
        content.miss("input", why)
    return None if text is None else Message(role="system", text=text)


def _dropped(content: Content, part: Part, value: object) -> None:
    """The SDK dropped attributes of this span, and the part is not there: it may be one of them."""
    if value is None:
        content.miss(part, "attributes_dropped")
