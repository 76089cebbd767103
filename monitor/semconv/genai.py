"""The current OpenTelemetry GenAI conventions, with content in span attributes.

https://github.com/open-telemetry/semantic-conventions-genai (docs/gen-ai/gen-ai-spans.md and
gen-ai-agent-spans.md). Besides them: pydantic-ai's own attributes of an agent run.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from monitor.model import Message, Part, SpanKind
from monitor.semconv import messages
from monitor.semconv.content import Shown, shown
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
NEW_MESSAGES: Final = "pydantic_ai.new_message_index"
"""Where this run's messages begin in `ALL_MESSAGES`; absent for 0."""
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
        NEW_MESSAGES,
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
_REPEATED: Final = 64 * 1024
"""Characters of instructions that are remembered at most."""
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
    if why is not None:
        content.miss("arguments", why)
    content.result, why = shown(attributes.get(RESULT), raw.cut.get(RESULT))
    if why is not None:
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
    elif key == ALL_MESSAGES and len(history):
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
        # Nothing that a model says is nothing: its parts were left out.
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
        text, why = _instructions(value)
    else:
        text, why = messages.parts_text(value, raw.cut.get(INSTRUCTIONS))
    if why is not None:
        content.miss("input", why)
    return None if text is None else Message(role="system", text=text)


@lru_cache(maxsize=64)
def _instructions(value: str) -> Shown:
    """An agent sends the same instructions with every model call, so most are read already."""
    return messages.parts_text(value)


def _dropped(content: Content, part: Part, value: object) -> None:
    """The SDK dropped attributes of this span, and the part is not there: it may be one of them."""
    if value is None:
        content.miss(part, "attributes_dropped")
