"""OpenInference, as Arize's instrumentations write it.

https://github.com/Arize-ai/openinference/blob/main/spec/semantic_conventions.md. A span is told by
`openinference.span.kind`. Not what it seems: a LangChain agent used as a tool is of kind AGENT and
has a tool's name; LangChain's own runs are CHAINs named after their agent; smolagents' last call,
`final_answer`, is its answer; a hand-off of the OpenAI Agents SDK is a TOOL without a name; what
Google ADK 2 asks its models is written, call over call, onto the span of the agent that asks.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from monitor.model import THOUGHT, Message, SpanKind
from monitor.semconv import dspy, payload
from monitor.semconv.content import plain, redacted
from monitor.semconv.dialect import Content
from monitor.semconv.flat import FlatHistory, Tree, listed
from monitor.semconv.limits import name
from monitor.semconv.literal import STRING, as_json
from monitor.semconv.messages import Read
from monitor.semconv.raw import RawSpan, Value, label
from monitor.semconv.trim import JsonHistory, trim
from monitor.semconv.wrapped import Raw, fields, string, within

KIND: Final = "openinference.span.kind"
_SESSION: Final = "session.id"
_AGENT: Final = "agent.name"
_NODE: Final = "graph.node.id"
_TOOL: Final = "tool.name"
_CALL_ID: Final = "tool.id"
_TOOL_CALL_ID: Final = "tool_call.id"
_INPUT: Final = "input.value"
_OUTPUT: Final = "output.value"
_METADATA: Final = "metadata"
_INPUTS: Final = "llm.input_messages."
_OUTPUTS: Final = "llm.output_messages."

KEYS: frozenset[str] = frozenset(
    {KIND, _SESSION, _AGENT, _NODE, _TOOL, _CALL_ID, _TOOL_CALL_ID, _INPUT, _OUTPUT, _METADATA}
)
PREFIXES: tuple[str, ...] = (_INPUTS, _OUTPUTS)
MARKS: frozenset[str] = frozenset({KIND})
TELLS: frozenset[str] = frozenset({KIND})

_KINDS: Final[dict[object, SpanKind]] = {"LLM": "llm", "TOOL": "tool", "AGENT": "agent"}
_HANDOFF: Final = re.compile(r"handoff to (.+)", re.IGNORECASE)
_SMOLAGENTS: Final = "openinference.instrumentation.smolagents"
_LLAMA_INDEX: Final = "openinference.instrumentation.llama_index"
_PREPARED: Final = "._prepare_chat_with_tools"
_GOOGLE: Final = "openinference.instrumentation.google_genai"
_AUTOMATIC: Final = '"automatic_function_calling_history":[{'
_TASK: Final = "New task:\n"
_CALLING: Final = "Calling tools:\n"
_FINAL: Final = "final_answer"
_CALLED: Final = ".__call__"
"""Ends the name of a span that is called by the method which was wrapped (DSPy)."""
_INTERPRETER: Final = "python_interpreter"
_GIVEN: Final = re.compile(
    r"(?mx) ^[ \t]*+ final_answer\(\s*+ (?:answer\s*+=\s*+)?+"
    rf"({STRING}) \s*+\)\s*+ (?:</code>|```|\Z)"
)
_ADK: Final = "gcp.vertex.agent"
_ADK_AGENT: Final = "invoke_agent "
_CODE: Final = re.compile(r"<code>|```(?:py|python)\b")
"""Begins the code with which an agent of smolagents acts; the answer comes of a later one."""
_FUNCTION: Final = "function_call_name"
_FUNCTION_RESPONSE: Final = {"id", "name", "response", "will_continue", "scheduling", "parts"}
_CALL_KEYS: Final = {"name", "arguments", "id", "type"}
_LOOK: Final = 400
"""Characters in which the keys around a tool's arguments or response stand."""


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    told = attributes.get(KIND)
    if not isinstance(told, str):
        return None
    kind = _KINDS.get(told.upper(), "other")
    chain = _lc_agent(raw)
    if kind == "llm" and raw.scope == _LLAMA_INDEX and raw.name.endswith(_PREPARED):
        kind = "other"  # it makes a request ready, and asks no model
    if kind == "agent" and _TOOL in attributes:
        kind = "tool"
    elif kind == "other" and chain is not None and chain == raw.name:
        kind = "agent"
    agent = label(attributes.get(_AGENT)) or chain
    if kind == "agent" and agent is None:
        agent = label(attributes.get(_NODE)) or name(raw.name.removesuffix(".run"))
    content = Content(kind, agent, label(attributes.get(_SESSION)))
    if kind == "llm" and raw.scope == _ADK and raw.name.startswith(_ADK_AGENT):
        return _adk_agent(raw, content)
    if kind == "llm":
        _llm(raw, content)
    elif kind == "tool":
        return _tool(raw, content)
    elif kind == "agent":
        _agent(raw, content)
    return content


def _lc_agent(raw: RawSpan) -> str | None:
    """The agent that LangChain names in a span's metadata."""
    told = raw.attributes.get(_METADATA)
    if not isinstance(told, str) or "lc_agent_name" not in told:
        return None
    found = fields(told.encode("utf-8", "replace"))
    return label(string(found.get("lc_agent_name"))) if found is not None else None


def _tool(raw: RawSpan, content: Content) -> Content:
    attributes = raw.attributes
    content.tool = label(attributes.get(_TOOL))
    if content.tool is None:
        handed = _HANDOFF.fullmatch(raw.name)
        called = raw.name.removesuffix(_CALLED)
        content.tool = name(f"transfer_to_{handed[1]}" if handed else called)
        if handed:
            return content
        if raw.scope == dspy.SCOPE and called == dspy.FINISH:
            return Content(kind="other")
    elif content.tool == _FINAL and raw.scope == _SMOLAGENTS:
        return Content(kind="other")
    content.call_id = label(attributes.get(_CALL_ID)) or label(attributes.get(_TOOL_CALL_ID))
    given = attributes.get(_INPUT)
    content.take_arguments(_called_with(given, content.tool), raw.cut.get(_INPUT))
    if raw.scope in (_LLAMA_INDEX, dspy.SCOPE):
        content.arguments = within(content.arguments, "kwargs")
    response = _response(attributes.get(_OUTPUT), content.tool)
    if response is not None:
        content.take_result(response, only="result")
    else:
        content.take_result(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
    if raw.dropped:
        content.miss("arguments", None if _INPUT in attributes else "attributes_dropped")
        content.miss("result", None if _OUTPUT in attributes else "attributes_dropped")
    return content


def _called_with(value: Value, tool: str) -> Value:
    """The arguments of a call that is shown as chat APIs have it, `{name, arguments}` (AG2)."""
    if not isinstance(value, str) or '"arguments"' not in value[:_LOOK]:
        return value
    found = fields(value.encode("utf-8", "replace"))
    if found is None or not found.keys() <= _CALL_KEYS or string(found.get("name")) != tool:
        return value
    return bytes(found["arguments"]).decode("utf-8", "replace") if "arguments" in found else value


def _response(value: Value, tool: str) -> str | None:
    """What a tool gave, out of the part of Gemini's API that Google ADK makes of it."""
    if not isinstance(value, str) or '"response"' not in value[:_LOOK]:
        return None
    found = fields(value.encode("utf-8", "replace"))
    if found is None or not found.keys() <= _FUNCTION_RESPONSE or string(found.get("name")) != tool:
        return None
    return bytes(found["response"]).decode() if "response" in found else None


def _llm(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    build = _smol if raw.scope == _SMOLAGENTS else _message
    said = FlatHistory(attributes, _OUTPUTS, build)
    history: FlatHistory | JsonHistory = FlatHistory(attributes, _INPUTS, build)
    if not len(history):
        found, why = payload.requested(attributes.get(_INPUT), raw.cut.get(_INPUT))
        content.miss("input", why)
        history = JsonHistory(found)
    content.inputs, content.omitted, why = trim(history, everything=raw.parent is None)
    content.miss("input", why)
    why = None
    if len(said):
        reads = said.read_all()
    else:
        found, why = payload.responded(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
        reads = [read_raw(item) for item in found]
    if raw.scope == _SMOLAGENTS:
        reads = list(map(_answered, reads))
    elif raw.scope == dspy.SCOPE:
        content.inputs, content.omitted = dspy.asked(content.inputs), None
        told = [(dspy.said(message), unseen) for message, unseen in reads]
        reads = [(message, unseen) for message, unseen in told if message is not None]
        if told and not reads:
            content.kind = "other"
            return
    content.take_outputs(reads, why)
    if raw.dropped:
        # Messages lie in many attributes, so that those that are left may be any part of them.
        content.unseen["input"] = "attributes_dropped"
        content.unseen["output"] = "attributes_dropped"
    elif not content.outputs or _ran_itself(raw):
        content.miss("output", "content_hidden")


def _ran_itself(raw: RawSpan) -> bool:
    """Gemini's client asked the model several times and ran its tools, all within this span, of
    which the messages tell only the end."""
    told = raw.attributes.get(_OUTPUT)
    return raw.scope == _GOOGLE and isinstance(told, str) and _AUTOMATIC in told


def read_raw(item: Raw) -> Read:
    return JsonHistory([item]).read(0)


def _message(tree: Tree) -> Tree:
    """A message as OpenAI's API has it, from the tree of its keys."""
    found = tree.get("message")
    if not isinstance(found, dict):
        return {}
    if "tool_calls" not in found and "contents" not in found and _FUNCTION not in found:
        return found
    message = dict(found)
    calls = listed(message.pop("tool_calls", None))
    if calls:
        message["tool_calls"] = [
            call.get("tool_call") if isinstance(call, dict) else None for call in calls
        ]
    parts = listed(message.pop("contents", None))
    if parts and "content" not in message:
        message["content"] = _contents(parts)
    if _FUNCTION in message:
        message["function_call"] = {
            "name": message.pop(_FUNCTION),
            "arguments": message.pop("function_call_arguments_json", None),
        }
    return message


def _contents(parts: list[Any]) -> Any:
    """The parts of a message; the text of one that is a text alone."""
    found = [_part(part) for part in parts]
    if len(found) == 1 and isinstance(found[0].get("text"), str):
        return found[0]["text"]
    return found


def _part(part: Any) -> dict[str, Any]:
    found = part.get("message_content") if isinstance(part, dict) else None
    if not isinstance(found, dict):
        return {"type": "text"}
    if found.get("type") not in (None, "text"):
        return {"type": "reasoning"}
    return {"type": "text", "text": found.get("text")}


def _smol(tree: Tree) -> Tree:
    """Calls and results, which smolagents tells as texts."""
    message = _message(tree)
    content = message.get("content")
    if not isinstance(content, str):
        return message
    match message.get("role"):
        case "user" if content.startswith(_TASK):
            return {"role": "user", "content": content[len(_TASK) :]}
        case "tool-call":
            called = as_json(content.partition(_CALLING)[2])
            if called is not None and called.startswith("["):
                calls = parsed(called)
                if all(map(_is_code, calls)):
                    return {"role": "assistant"}  # said before, as text
                return {"role": "assistant", "tool_calls": calls}
            return {"role": "assistant", "content": content}
    return message


def _is_code(call: Any) -> bool:
    """Whether a call is how an agent that acts in code tells that its code was run."""
    function = call.get("function") if isinstance(call, dict) else None
    return (
        isinstance(function, dict)
        and function.get("name") == _INTERPRETER
        and isinstance(function.get("arguments"), str)
    )


def parsed(text: str) -> list[Any]:
    try:
        return msgspec.json.decode(text, type=list[Any])
    except (msgspec.DecodeError, UnicodeError):
        return [None]


def _answered(found: Read) -> Read:
    """A call of `final_answer` is the answer that it gives."""
    message, why = found
    coded = _coded(message.text) if message.text is not None and not message.calls else None
    if coded is not None:
        return Message("assistant", coded), why
    if message.text is not None and not message.calls and _CODE.search(message.text):
        return msgspec.structs.replace(message, role=THOUGHT), why
    if [call.tool for call in message.calls] != [_FINAL]:
        return found
    given = fields((message.calls[0].arguments or "").encode())
    if given is None or "answer" not in given:
        return found
    text = string(given["answer"])
    text, more = plain(bytes(given["answer"]).decode() if text is None else text)
    return Message("assistant", text), why or more


def _coded(text: str) -> str | None:
    """The answer of an agent that acts in code, where its code ends with giving a literal."""
    ends = [*_GIVEN.finditer(text)]
    found = as_json(f"[{ends[-1][1]}]") if ends else None
    return None if found is None else string(Raw(found[1:-1].encode()))


def _adk_agent(raw: RawSpan, content: Content) -> Content:
    """An agent of Google ADK, by the last request to its model, which holds all that went before,
    and the last response. In the flattened messages those of several calls are mixed."""
    attributes = raw.attributes
    content.agent = name(raw.name.removeprefix(_ADK_AGENT))
    asked, unseen = payload.requested(attributes.get(_INPUT), raw.cut.get(_INPUT))
    history = [read_raw(item) for item in asked]
    said, why = payload.responded(attributes.get(_OUTPUT), raw.cut.get(_OUTPUT))
    asks = [m.role == "user" and m.text is not None and not m.results for m, _ in history]
    begun = max((at for at, speaks in enumerate(asks) if speaks), default=-1)
    outputs = [found for found in history[begun + 1 :] if found[0].role == "assistant"]
    outputs += [read_raw(item) for item in said]
    if not outputs or raw.dropped:
        content.miss("input", "attributes_dropped" if raw.dropped else "content_hidden")
        content.miss("output", "attributes_dropped" if raw.dropped else "content_hidden")
        return content
    content.kind = "agent"
    content.inputs = tuple(message for message, _ in history[max(begun, 0) : begun + 1])
    content.take_outputs(outputs, unseen or why)
    return content


def _agent(raw: RawSpan, content: Content) -> None:
    payload.take_request(content, raw, _INPUT)
    told = raw.attributes.get(_OUTPUT)
    if not (isinstance(told, str) and redacted(told)):
        payload.take_answer(content, raw, _OUTPUT)
