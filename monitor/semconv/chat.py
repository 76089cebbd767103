"""Messages as most frameworks keep them, in one step; `shapes` reads these and all others.

| shape | from |
|---|---|
| `{role, content: text, tool_calls: [{id, function: {name, arguments}}], tool_call_id}` | OpenAI chat |
| `{role, content: [{type: text}, {type: tool-call, ..}, {type: tool-result, ..}]}` | AI SDK |
| `{role, content: [{text}, {toolUse: {..}}, {toolResult: {..}}]}` | Bedrock, Strands |
| `{role, message: {..}}` | a choice |

What is read here is read as there. An object with any other key, or with one of these in another
use, is left to them, so that no rule stands twice.
"""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.semconv.parts import (
    ABSENT,
    CallPart,
    Part,
    ResultPart,
    TextPart,
    WireMessage,
    usual_role,
)

_NULL: Final = b"null"
_TEXTS: Final = (None, "text", "input_text", "output_text")


class _Function(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: msgspec.Raw


class _Call(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A call beside the content: OpenAI's, or one of the AI SDK."""

    id: str | None = None
    type: str | None = None
    function: _Function | None = None
    index: int = 0
    tool_call_id: str | None = msgspec.field(default=None, name="toolCallId")
    tool: str | None = msgspec.field(default=None, name="toolName")
    input: msgspec.Raw = ABSENT


class _ToolUse(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str = msgspec.field(name="toolUseId")
    name: str
    input: msgspec.Raw


class _ToolResult(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str = msgspec.field(name="toolUseId")
    content: msgspec.Raw
    status: str = ""


class _Piece(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One part of a content."""

    type: str | None = None
    text: str | None = None
    use: _ToolUse | None = msgspec.field(default=None, name="toolUse")
    result: _ToolResult | None = msgspec.field(default=None, name="toolResult")
    call_id: str | None = msgspec.field(default=None, name="toolCallId")
    tool: str | None = msgspec.field(default=None, name="toolName")
    input: msgspec.Raw = ABSENT
    output: msgspec.Raw = ABSENT


class _Chat(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: msgspec.Raw = ABSENT
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    id: str | None = None
    message: _Chat | None = None
    # Of no meaning:
    index: msgspec.Raw = ABSENT
    finish_reason: msgspec.Raw = ABSENT
    system: msgspec.Raw = msgspec.field(default=ABSENT, name="gen_ai.system")
    place: msgspec.Raw = msgspec.field(default=ABSENT, name="gen_ai.message.index")
    event: msgspec.Raw = msgspec.field(default=ABSENT, name="event.name")


_chat: Final = msgspec.json.Decoder(_Chat)
_pieces: Final = msgspec.json.Decoder(list[_Piece])
_text: Final = msgspec.json.Decoder(str)


def read(data: bytes | msgspec.Raw) -> WireMessage | None:
    """The message; None when it is for `shapes`. Raises what decoding JSON may raise."""
    found = _chat.decode(data)
    inner = found.message
    if inner is not None:
        if inner.message is not None or bytes(found.content):
            return None
        found = inner
    role = usual_role(found.role)
    content = bytes(found.content)
    parts: list[Part] | None
    if not content or content == _NULL:
        if role == "tool" or found.tool_call_id is not None:
            return None
        parts = []
    elif found.tool_call_id is not None or role == "tool":
        parts = _answer(found, content)
    elif content[:1] == b'"':
        parts = [TextPart(_text.decode(content))]
    else:
        parts = _several(content)
    if parts is None:
        return None
    if found.tool_calls:
        asked = {part.id for part in parts if part.__class__ is CallPart}
        for call in found.tool_calls:
            part = _call(call)
            if part is None or part.id in asked:
                return None
            parts.append(part)
    return WireMessage(role, parts)


def _answer(found: _Chat, content: bytes) -> list[Part] | None:
    """The parts of a message that answers a call as a whole, or of one that holds such answers."""
    if found.tool_call_id is None:
        if content[:1] != b"[":
            return None
        parts = _several(content)
        if parts is not None and any(part.__class__ is ResultPart for part in parts):
            return parts
        return None
    if _blank(found.tool_call_id):
        return None
    return [ResultPart(found.tool_call_id, found.name, found.content)]


def _several(content: bytes) -> list[Part] | None:
    if content[:1] != b"[":
        return None
    parts = []
    for piece in _pieces.decode(content):
        part = _part(piece)
        if part is None:
            return None
        parts.append(part)
    return parts


def _part(piece: _Piece) -> Part | None:
    kind = piece.type
    if piece.text is not None:
        return TextPart(piece.text) if kind in _TEXTS else None
    if kind is None:
        use, result = piece.use, piece.result
        if use is not None and result is None and not _blank(use.id) and not _blank(use.name):
            return CallPart(use.name, use.id, use.input)
        if result is not None and use is None and not _blank(result.id):
            failed = result.status == "error"
            return ResultPart(result.id, None, result.content, failed=failed)
        return None
    if _blank(piece.call_id) or _blank(piece.tool):
        return None
    if kind == "tool-call" and bytes(piece.input):
        return CallPart(piece.tool, piece.call_id, piece.input)  # type: ignore[arg-type]
    if kind == "tool-result" and bytes(piece.output):
        return ResultPart(piece.call_id, piece.tool, piece.output)
    return None


def _call(call: _Call) -> CallPart | None:
    function = call.function
    if function is not None:
        if _blank(call.id) or _blank(function.name) or call.tool_call_id is not None:
            return None
        return CallPart(function.name, call.id, function.arguments)
    if _blank(call.tool_call_id) or _blank(call.tool) or not bytes(call.input):
        return None
    return CallPart(call.tool, call.tool_call_id, call.input)  # type: ignore[arg-type]


def _blank(text: str | None) -> bool:
    return not text or text.isspace()
