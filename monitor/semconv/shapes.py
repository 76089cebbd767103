"""Messages in whatever shape a framework serialises them, read into the parts of the conventions.

Known shapes, told apart by what they carry:

| shape | from |
|---|---|
| `{role, content: text or parts, tool_calls: [{id, function: {name, arguments}}], tool_call_id}` | OpenAI chat, and its events |
| `{type: function_call, call_id, name, arguments}`, `{type: function_call_output, call_id, output}` | OpenAI Responses |
| `{role, content: [{type: tool_use, id, name, input}, {type: tool_result, tool_use_id, content}]}` | Anthropic |
| `{role, content: [{text}, {toolUse: {..}}, {toolResult: {..}}]}` | Bedrock, Strands |
| `{role, parts: [{text}, {function_call: {..}}, {function_response: {..}}]}` | Gemini, Google ADK |
| `{role, content: [{type: tool-call, toolCallId, toolName, input}, {type: tool-result, ..}]}` | AI SDK |
| `{lc, id: [.., AIMessage], kwargs: {..}}`, `{type: ai, data: {..}}`, `{type: ai, content, tool_calls}` | LangChain |
| `{role, parts: [..], tool_calls: [..], tool_call_id}` | LiteLLM |
| `{role, content: [{text}, {tool_call: {..}}, {tool_call_result: {result, origin, error}}]}` | Haystack |
| `{index, finish_reason, message: {..}}` | a choice |

One bad part never hides the others, and nothing here raises on any bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from monitor.model import Unseen
from monitor.semconv.parts import (
    CallPart,
    Part,
    ResultPart,
    TextPart,
    ThoughtPart,
    WireMessage,
    usual_role,
)
from monitor.semconv.wrapped import Fields, Raw, fields, items, string

_ABSENT: Final = Raw()
_NULL: Final = b"null"
_DEPTH: Final = 4
"""Wrappings of a message that are taken off."""
_SPEAKERS: Final = {"human", "ai", "system", "tool", "function", "developer"}
_THOUGHTS: Final = {"reasoning", "thinking", "redacted_thinking", "reasoning_content"}
_RESPONSES: Final = {
    "function_call": "assistant",
    "custom_tool_call": "assistant",
    "mcp_call": "assistant",
    "function_call_output": "tool",
    "custom_tool_call_output": "tool",
    "reasoning": "assistant",
}
Read = tuple[WireMessage, Unseen | None]


def read(found: Fields, role: str | None = None, depth: int = _DEPTH) -> Read:
    """The message that a JSON object is. `role`: what is known of it from outside."""
    kind = string(found.get("type"))
    if (inner := _inside(found, kind)) is not None and depth:
        role = _speaker(found, kind) or string(found.get("role")) or role
        return read(inner, role, depth - 1)
    told = string(found.get("role"))
    if told is None and kind in _RESPONSES:
        part = _part(found, kind)
        parts = [part] if part is not None else []
        return WireMessage(_RESPONSES[kind], parts), None if parts else "content_hidden"
    if told is None:
        told = _scalar(found.get("role")) or (kind if kind in _SPEAKERS else role)
    return _spoken(found, usual_role(told))


def _inside(found: Fields, kind: str | None) -> Fields | None:
    """The message within a wrapping."""
    for key in ("kwargs", "data", "message"):
        if key not in found:
            continue
        if key == "kwargs" and "lc" not in found:
            continue
        if key == "data" and kind not in _SPEAKERS:
            continue
        if key == "message" and ("role" in found and "content" in found):
            continue
        inner = fields(found[key])
        if inner is not None:
            return inner
    return None


def _speaker(found: Fields, kind: str | None) -> str | None:
    if kind in _SPEAKERS:
        return kind
    names = items(found["id"]) if "lc" in found and "id" in found else None
    last = string(names[-1]) if names else None
    if last is not None:
        for word, role in _CLASSES:
            if last.startswith(word):
                return role
    return None


_CLASSES: Final = (
    ("AI", "assistant"),
    ("Human", "user"),
    ("System", "system"),
    ("Tool", "tool"),
    ("Function", "tool"),
)


def _spoken(found: Fields, role: str) -> Read:
    parts: list[Part] = []
    unseen: Unseen | None = None
    content = found.get("content", _ABSENT)
    listed = found.get("parts")
    answered = _answered(found, role)
    if answered is not None:
        if not bytes(content) and (text := _joined(listed)) is not None:
            content, listed = text, None
        failed = string(found.get("status")) == "error"
        parts.append(
            ResultPart(answered or None, string(found.get("name")), content, failed=failed)
        )
    else:
        for part in _contents(content):
            if part is None:
                unseen = "content_hidden"
            else:
                parts.append(part)
    for part in _listed(listed):
        if part is None:
            unseen = "content_hidden"
        else:
            parts.append(part)
    asked = {part.id for part in parts if isinstance(part, CallPart) and part.id}
    for call in _tool_calls(found):
        if call is None:
            unseen = "content_hidden"
        elif call.id is None or call.id not in asked:
            parts.append(call)
    if (refusal := string(found.get("refusal"))) and not parts:
        parts.append(TextPart(refusal))
    return WireMessage(role, parts), unseen


def _joined(listed: Raw | None) -> Raw | None:
    """The texts of parts that are texts alone, as one JSON string; None where they are not."""
    parts = list(_listed(listed))
    texts = [part.content for part in parts if isinstance(part, TextPart)]
    if not texts or len(texts) < len(parts):
        return None
    return Raw(msgspec.json.encode("\n".join(texts)))


def _answered(found: Fields, role: str) -> str | None:
    """Id of the call that the whole message answers, empty when it has none; None: it is no such."""
    call_id = _scalar(found.get("tool_call_id"))
    if call_id is not None:
        return call_id
    if role != "tool":
        return None
    if "content" not in found:  # the message is there, and what it says is not shown
        return None if "parts" in found else _scalar(found.get("id"))
    if _holds_results(found["content"]):
        return None
    return _scalar(found.get("id")) or ""


def _holds_results(content: Raw) -> bool:
    """Whether the content is made of parts of which some are results with ids of their own."""
    if bytes(content)[:1] != b"[":
        return False
    return any(isinstance(part, ResultPart) for part in _contents(content))


def _tool_calls(found: Fields) -> Iterator[CallPart | None]:
    """Calls beside the content."""
    listed = items(found["tool_calls"]) if "tool_calls" in found else None
    if not listed and "additional_kwargs" in found:
        more = fields(found["additional_kwargs"])
        listed = items(more["tool_calls"]) if more and "tool_calls" in more else None
    for raw in listed or ():
        call = fields(raw)
        part = None if call is None else _part(call, "tool_call")
        yield part if isinstance(part, CallPart) else None
    if "function_call" in found and (call := fields(found["function_call"])):
        part = _part(call, "tool_call")
        yield part if isinstance(part, CallPart) else None


def _contents(content: Raw) -> Iterator[Part | None]:
    data = bytes(content)
    if not data or data == _NULL:
        return
    first = data[:1]
    if first == b"[":
        yield from _listed(content)
    elif first == b"{":
        yield from _listed(Raw(b"[" + data + b"]"))
    else:
        text = string(content)
        yield TextPart(data.decode("utf-8", "replace") if text is None else text)


def _listed(raw: Raw | None) -> Iterator[Part | None]:
    """The parts of an array; None for one of which nothing can be read."""
    if raw is None or bytes(raw) in (b"", _NULL):
        return
    listed = items(raw)
    if listed is None:
        yield None
        return
    for item in listed:
        found = fields(item)
        if found is None:
            text = string(item)
            yield None if text is None else TextPart(text)
        else:
            yield _part(found, string(found.get("type")))


def _part(found: Fields, kind: str | None) -> Part | None:
    """A part as the conventions would have it; None when what makes it one is missing."""
    kind = kind or _kind(found)
    if kind in _NESTED and (inner := fields(found.get(kind, _ABSENT))) is not None:
        found = {**inner, "id": inner.get("id", found.get("id", _ABSENT))}
    match kind:
        case "text" | "output_text" | "input_text":
            return _text(found)
        case _ if kind in _CALLS:
            return _call(found)
        case _ if kind in _RESULTS:
            return _result(found)
        case "refusal":
            text = string(found.get("refusal"))
            return None if text is None else TextPart(text)
    if kind is None and "content" in found:
        return _text(found)
    return ThoughtPart()


_CALLS: Final = {
    "tool_call",
    "tool-call",
    "tool_use",
    "server_tool_use",
    "server_tool_call",
    "toolUse",
    "function_call",
    "functionCall",
    "custom_tool_call",
    "mcp_call",
    "function",
}
_RESULTS: Final = {
    "tool_call_response",
    "server_tool_call_response",
    "tool-result",
    "tool-error",
    "tool_result",
    "tool_call_result",
    "toolResult",
    "function_response",
    "functionResponse",
    "function_call_output",
    "custom_tool_call_output",
}
_NESTED: Final = {
    "tool_call",
    "tool_call_result",
    "toolUse",
    "toolResult",
    "function_call",
    "functionCall",
    "function_response",
    "functionResponse",
}


def _kind(found: Fields) -> str | None:
    """The kind of a part that does not name it."""
    if string(found.get("text")) is not None:
        return "reasoning" if bytes(found.get("thought", b"")) == b"true" else "text"
    for key in found:
        if key in _NESTED:
            return key
    if "response" in found or "result" in found:
        return "tool_call_response"
    if "name" in found and ("arguments" in found or "args" in found or "input" in found):
        return "tool_call"
    return "tool_call" if "name" in found and "content" not in found else None


def _text(found: Fields) -> Part | None:
    for key in ("content", "text", "value"):
        raw = found.get(key)
        if raw is not None and bytes(raw) != _NULL:
            text = string(raw)
            return TextPart(bytes(raw).decode("utf-8", "replace") if text is None else text)
    return None


def _call(found: Fields) -> Part | None:
    function = fields(found.get("function", _ABSENT)) or found
    tool = _first(function, "name", "toolName", "tool_name")
    if tool is None:
        return None
    call_id = _first(found, "call_id", "toolCallId", "toolUseId", "tool_call_id", "id")
    given = _ABSENT
    for key in ("arguments", "args", "input", "parameters", "server_tool_call"):
        if key in function:
            given = function[key]
            break
    return CallPart(tool, call_id, given)


def _result(found: Fields) -> Part:
    call_id = _first(
        found, "call_id", "toolCallId", "toolUseId", "tool_use_id", "tool_call_id", "id"
    )
    tool = _first(found, "name", "toolName")
    if (origin := fields(found.get("origin", _ABSENT))) is not None:
        call_id, tool = call_id or _first(origin, "id"), tool or _first(origin, "tool_name")
    given = _ABSENT
    for key in (
        "response",
        "result",
        "output",
        "content",
        "error",
        "server_tool_call_response",
    ):
        if key in found:
            given = found[key]
            break
    failed = (
        string(found.get("status")) == "error"
        or string(found.get("type")) == "tool-error"
        or any(bytes(found.get(key, b"")) == b"true" for key in ("is_error", "isError", "error"))
    )
    return ResultPart(call_id, tool, given, failed=failed)


def _first(found: Fields, *keys: str) -> str | None:
    return next((text for key in keys if (text := _scalar(found.get(key))) is not None), None)


def _scalar(raw: Raw | None) -> str | None:
    """A name or id: a string, or a number or word as it is written; None for nothing or more."""
    if raw is None:
        return None
    text = string(raw)
    if text is not None:
        return text if text and not text.isspace() else None
    data = bytes(raw)
    if not data or data == _NULL or data[:1] in (b"{", b"["):
        return None
    return data.decode("utf-8", "replace")
