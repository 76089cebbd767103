"""The AI SDK (Vercel) up to version 6: `ai.operationId` and `ai.*` attributes.

https://ai-sdk.dev/docs/ai-sdk-core/telemetry. `ai.generateText` and `ai.streamText` are a run, their
`doGenerate` and `doStream` a model call each. Version 7 writes the conventions of OpenTelemetry.
The session is a key of the user's own in the metadata; the usual names of it are read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from monitor.semconv import payload
from monitor.semconv.content import redacted, shown
from monitor.semconv.dialect import Content
from monitor.semconv.messages import read as read_message
from monitor.semconv.messages import split
from monitor.semconv.raw import RawSpan, Value, first_label, label
from monitor.semconv.wrapped import Raw

_OPERATION: Final = "ai.operationId"
_FUNCTION: Final = "ai.telemetry.functionId"
_SESSIONS: Final = tuple(
    f"ai.telemetry.metadata.{key}"
    for key in ("sessionId", "session_id", "conversationId", "threadId", "chatId", "session.id")
)
_TOOL: Final = "ai.toolCall.name"
_CALL_ID: Final = "ai.toolCall.id"
_ARGUMENTS: Final = ("ai.toolCall.args", "ai.toolCall.input")
_RESULT: Final = ("ai.toolCall.result", "ai.toolCall.output")
_PROMPT: Final = "ai.prompt"
_MESSAGES: Final = "ai.prompt.messages"
_TEXT: Final = ("ai.response.text", "ai.result.text", "ai.response.object", "ai.result.object")
_CALLS: Final = ("ai.response.toolCalls", "ai.result.toolCalls")

KEYS: frozenset[str] = frozenset(
    {
        _OPERATION,
        _FUNCTION,
        _TOOL,
        _CALL_ID,
        _PROMPT,
        _MESSAGES,
        *_SESSIONS,
        *_ARGUMENTS,
        *_RESULT,
        *_TEXT,
        *_CALLS,
    }
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset({_OPERATION})

_RUNS: Final = {"ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"}
_MODEL_CALLS: Final = {f"{run}.{do}" for run in _RUNS for do in ("doGenerate", "doStream")}


def read(raw: RawSpan) -> Content | None:
    attributes = raw.attributes
    operation = attributes.get(_OPERATION)
    if not isinstance(operation, str):
        return None
    agent = label(attributes.get(_FUNCTION))
    session = first_label(attributes, _SESSIONS)
    if operation == "ai.toolCall":
        content = Content("tool", agent, session)
        content.tool = label(attributes.get(_TOOL)) or "unknown"
        content.call_id = label(attributes.get(_CALL_ID))
        key, value = _first(raw, _ARGUMENTS)
        content.take_arguments(value, raw.cut.get(key))
        key, value = _first(raw, _RESULT)
        content.take_result(value, raw.cut.get(key))
        if raw.dropped:
            content.miss("arguments", None if content.arguments else "attributes_dropped")
            content.miss("result", None if content.result else "attributes_dropped")
        return content
    if operation in _MODEL_CALLS:
        content = Content("llm", agent, session)
        _llm(raw, content)
        return content
    if operation in _RUNS:
        content = Content("agent", agent, session)
        payload.take_request(content, raw, _PROMPT)
        _said(raw, content)
        return content
    return Content("other")


def _first(raw: RawSpan, keys: tuple[str, ...]) -> tuple[str, Value]:
    key = next((key for key in keys if key in raw.attributes), keys[0])
    return key, raw.attributes.get(key)


def _llm(raw: RawSpan, content: Content) -> None:
    value = raw.attributes.get(_MESSAGES)
    if isinstance(value, list):  # earlier versions: an array of JSON texts
        value = f"[{','.join(item for item in value if isinstance(item, str))}]"
    found, unseen = split(value, raw.cut.get(_MESSAGES))
    payload.take_history(content, raw, found, unseen)
    _said(raw, content)
    if raw.dropped:
        content.miss("input", None if found else "attributes_dropped")
        content.miss("output", None if content.outputs else "attributes_dropped")
    if not content.outputs:
        content.miss("output", "content_hidden")


def _said(raw: RawSpan, content: Content) -> None:
    """Text and tool calls of a response, which stand apart."""
    key, text = _first(raw, _TEXT)
    calls_key, calls = _first(raw, _CALLS)
    if text is None and calls is None:
        return
    if isinstance(text, str) and redacted(text):
        content.miss("output", "content_hidden")
        return
    message: dict[str, Any] = {"role": "assistant"}
    if isinstance(text, str) and text and (shown_text := shown(text, raw.cut.get(key)))[0]:
        message["content"] = shown_text[0]
        content.miss("output", shown_text[1])
    found, why = split(calls, raw.cut.get(calls_key))
    content.miss("output", why)
    message["tool_calls"] = found
    if found or "content" in message or text == "":
        content.take_outputs([read_message(Raw(msgspec.json.encode(message)))])
