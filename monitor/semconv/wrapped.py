"""Arguments and results taken out of what frameworks wrap them in.

| wire | meaning |
|---|---|
| `{"args": [], "kwargs": {..}}` | a Python call: the keyword arguments |
| `{"input_str": "<repr>", "inputs": {..}}` | a LangChain run: the inputs |
| `{"name": .., "args": {..}, "id": .., "type": "tool_call"}` | a LangChain tool call: its arguments |
| `{"lc": 1, "kwargs": {"content": .., "tool_call_id": ..}}`, `{"type": "tool", "data": {..}}` | a LangChain ToolMessage |
| `{"output": <one of those>}` | the same, as a run's output |
| `[{"text": ".."}]`, `{"content": [{"type": "text", "text": ".."}], "isError": ..}` | content blocks of Bedrock, MCP |
| `meta=None content=[TextContent(..)] isError=..` | an MCP result as Python prints it |
| `[true, {"role": "function", "content": ..}]` | whether a call of AG2 went well, and the answer |
| `{"blocks": [..], "tool_name": .., "is_error": ..}` | a ToolOutput of LlamaIndex |
| `{"type": "json" or "text" or "error-text", "value": ..}` | an output of the AI SDK |

Whether a call failed is told by a flag of the wrapping, by an object that holds nothing but an
error, or by a text that begins as frameworks begin their reports of an exception. A payload that
says in a tool's own words that nothing was found is an ordinary result.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from monitor.model import Struct, Unseen
from monitor.semconv.content import Shown, shown, shown_raw, shown_text, unquoted
from monitor.semconv.limits import Memo
from monitor.semconv.printed import contents
from monitor.semconv.raw import Value

Raw = msgspec.Raw
Fields = dict[str, msgspec.Raw]
"""A JSON object whose values are not read yet, so that numbers stand as they were written."""

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
_string: Final = msgspec.json.Decoder(str)
_FAILURES: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_DEPTH: Final = 6
"""Wrappings within each other that are taken off."""

_PYTHON_CALL: Final = {"args", "kwargs", "sanitize_inputs_outputs"}
_ERROR_KEYS: Final = {"error", "message", "code", "status", "type", "error_type", "details"}
_ERROR_TEXT: Final = re.compile(
    r"""(?x) Error: | Error[ ](?:executing|running|calling|invoking)[ ]tool\b
      | An[ ]error[ ]occurred[ ]while[ ](?:running|executing|calling)[ ]the[ ]tool\b
      | Tool[ ](?:execution|call)[ ]failed\b | ToolException\b
      | Traceback[ ]\(most[ ]recent[ ]call[ ]last\):
      | [A-Za-z_][\w.]{0,60}(?:Error|Exception)(?::[ ]|\() """
)
_WRAPPED: Final = re.compile(
    r'"(?:text|json|kwargs|data|content|output|value|error|result|tool_call_id|blocks)"\s*+:'
)
_CALLED: Final = re.compile(r'"(?:args|kwargs|input_str)"\s*+:')
_LOOK: Final = 300
"""Characters in which a wrapping shows itself."""


class Result(Struct, frozen=True):
    """What a tool returned: its text, why there is none or not all of it, whether it failed."""

    text: str | None = None
    unseen: Unseen | None = None
    failed: bool = False
    call_id: str | None = None
    tool: str | None = None


def fields(raw: bytes | Raw) -> Fields | None:
    """The object that a JSON text holds; None when it holds something else."""
    if bytes(raw)[:1] != b"{":
        return None
    try:
        return _fields.decode(raw)
    except _FAILURES:
        return None


def items(raw: bytes | Raw) -> list[Raw] | None:
    """The array that a JSON text holds; None when it holds something else."""
    try:
        return _items.decode(raw)
    except _FAILURES:
        return None


def string(raw: Raw | None) -> str | None:
    """The string that a JSON value is; None when it is none."""
    if raw is None or bytes(raw)[:1] != b'"':
        return None
    try:
        return _string.decode(raw)
    except _FAILURES:
        return None


# -- arguments -----------------------------------------------------------------------------


def arguments(value: Value, note: str | None = None) -> Shown:
    """A tool span's arguments: the object that they were, wherever the wire lets one recover it."""
    if note is None and value.__class__ is str:
        return arguments_of(value)
    found = shown(value, note)
    return found if found[0] is None or found[1] is not None else unwrapped(found[0])


_arguments: Final = Memo[str, Shown](entries=4096, size=4 * 1024 * 1024)
_results: Final = Memo[str, "Result"](entries=4096, size=8 * 1024 * 1024)
"""Texts that were read: a call is told by the model that asks for it, by its tool's span and by the
next model call's history, its result by the last two."""


def forget() -> None:
    """Forgets the texts that were read."""
    _arguments.forget()
    _results.forget()


def arguments_of(text: str) -> Shown:
    """Arguments that are told by a text."""
    found = _arguments.get(text)
    if found is None:
        found = shown_text(text)
        if found[0] is not None and found[1] is None:
            found = unwrapped(found[0])
        _arguments.remember(text, found, 2 * len(text))
    return found


def unwrapped(text: str) -> Shown:
    """Arguments as shown, without what a framework wrapped them in."""
    if text[:1] != "{" or _CALLED.search(text, 0, _LOOK) is None:
        return text, None
    found = fields(text.encode())
    if not found:
        return text, None
    if "kwargs" in found and "args" in found and found.keys() <= _PYTHON_CALL:
        return _python_call(found, text)
    if "input_str" in found:
        inner = found.get("inputs")
        if inner is not None and bytes(inner)[:1] == b"{":
            return shown_raw(bytes(inner))
        return shown_raw(bytes(found["input_str"]))
    if string(found.get("type")) == "tool_call" and "args" in found:
        return shown_raw(bytes(found["args"]))
    return text, None


def _python_call(found: Fields, text: str) -> Shown:
    positional, named = items(found["args"]), fields(found["kwargs"])
    if positional is None or named is None:
        return text, None
    if not positional:
        return shown_raw(bytes(found["kwargs"]))
    if len(positional) == 1 and not named:
        return shown_raw(bytes(positional[0]))
    return text, None


def arguments_raw(data: bytes) -> str | None:
    """Arguments within a message, still JSON, as far as they are shown."""
    first = data[:1]
    if first == b'"':
        return arguments_of(unquoted(data))[0]
    if first in (b"{", b"["):
        return arguments_of(data.decode("utf-8", "replace"))[0]
    return shown_raw(data)[0]


# -- results -------------------------------------------------------------------------------


def result(value: Value, note: str | None = None) -> Result:
    """A tool span's result."""
    if note is None and value.__class__ is str:
        return result_of(value)
    text, unseen = shown(value, note)
    if text is None or unseen is not None:
        return Result(text, unseen)
    return taken_out(text)


def result_of(told: str) -> Result:
    """A result that is told by a text."""
    found = _results.get(told)
    if found is None:
        text, unseen = shown_text(told)
        found = Result(text, unseen) if text is None or unseen is not None else taken_out(text)
        _results.remember(told, found, 2 * len(told))
    return found


def result_raw(data: bytes) -> Result:
    """A result within a message, still JSON; null is a value, absence is not shown."""
    if not data:
        return Result()
    if data == b"null":
        return Result("null")
    first = data[:1]
    if first == b'"':
        return result_of(unquoted(data))
    if first in (b"{", b"["):
        return result_of(data.decode("utf-8", "replace"))
    text, unseen = shown_raw(data)
    return Result(text, unseen) if text is None or unseen is not None else taken_out(text)


def within(text: str | None, key: str) -> str | None:
    """The value of an object that has this key alone."""
    if text is None or not text.startswith(f'{{"{key}":'):
        return text
    found = fields(text.encode())
    if found is None or len(found) != 1:
        return text
    data = bytes(found[key])
    return "null" if data == b"null" else shown_raw(data)[0]


def taken_out(text: str, depth: int = _DEPTH) -> Result:
    """A result as shown, without what a framework wrapped it in."""
    first = text[:1]
    if first not in ("{", "["):
        printed = contents(text) if first in "m_cC" else None
        if printed is not None and depth:
            return _printed(*printed, depth)
        return Result(text, failed=_ERROR_TEXT.match(text) is not None)
    if first == "[" and depth and (printed := contents(text)) is not None:
        return _printed(*printed, depth)
    if depth == 0 or _WRAPPED.search(text, 0, _LOOK) is None:
        return Result(text)
    if first == "[":
        return _blocks(text, depth)
    found = fields(text.encode())
    return Result(text) if found is None else _object(found, text, depth)


def _printed(texts: list[str], failed: bool, depth: int) -> Result:
    """A result of the texts of an object that Python printed."""
    text, unseen = shown_text("\n".join(texts))
    if text is None or unseen is not None:
        return Result(text, unseen, failed)
    found = taken_out(text, depth - 1)
    return msgspec.structs.replace(found, failed=failed or found.failed)


def _object(found: Fields, text: str, depth: int) -> Result:
    inner = found.get("kwargs") if "lc" in found else found.get("data")
    kind = string(found.get("type"))
    if inner is not None and (kind in ("tool", "constructor") or "lc" in found):
        message = fields(inner)
        return Result(text) if message is None else _tool_message(message, depth)
    if "tool_call_id" in found and "content" in found:
        return _tool_message(found, depth)
    if (
        kind is not None
        and kind.startswith(("json", "text", "error", "content"))
        and (found.keys() <= {"type", "value", "text"})
    ):
        value = found.get("value", found.get("text"))
        if value is not None:
            return _inner(value, depth, failed=kind.startswith("error"))
    if "isError" in found and "content" in found:
        return _inner(found["content"], depth, failed=bytes(found["isError"]) == b"true")
    if "blocks" in found and "tool_name" in found and "raw_output" in found:
        failed = bytes(found.get("is_error", b"")) == b"true"
        return _inner(found["blocks"], depth, failed=failed)
    if "output" in found and (wrapped := _wrapped_message(found["output"], depth)) is not None:
        return wrapped
    error = found.get("error")
    if error is not None and bytes(error) not in _NOTHING and found.keys() <= _ERROR_KEYS:
        return Result(text, failed=True)
    return Result(text)


_NOTHING: Final = (b"null", b"false", b'""', b"{}", b"[]", b"0")


def _wrapped_message(raw: Raw, depth: int) -> Result | None:
    """The ToolMessage that a run's output is, or that its graph update holds alone."""
    found = fields(raw)
    if found is None:
        return None
    if "lc" in found or "tool_call_id" in found or string(found.get("type")) == "tool":
        return _object(found, bytes(raw).decode("utf-8", "replace"), depth - 1)
    return None


def _tool_message(message: Fields, depth: int) -> Result:
    failed = string(message.get("status")) == "error"
    found = _inner(message.get("content", Raw(b"null")), depth, failed=failed)
    return Result(
        found.text,
        found.unseen,
        found.failed,
        string(message.get("tool_call_id")),
        string(message.get("name")),
    )


def _inner(raw: Raw, depth: int, *, failed: bool) -> Result:
    text, unseen = shown_raw(bytes(raw))
    if text is None or unseen is not None:
        return Result(text, unseen, failed)
    found = taken_out(text, depth - 1)
    return Result(found.text, found.unseen, failed or found.failed, found.call_id, found.tool)


_BLOCK_KEYS: Final = {"type", "text", "json", "annotations"}
_TEXT_KEYS: Final = _BLOCK_KEYS | {"block_type", "id", "index"}
"""Of a block that says it is a text; else an id would make it a record of the tool's own."""


def _is_text(found: Fields) -> bool:
    return string(found.get("type", found.get("block_type"))) == "text"


def _blocks(text: str, depth: int) -> Result:
    """Content blocks: their texts; an array of anything else is the tool's own."""
    blocks = items(text.encode())
    if not blocks:
        return Result(text)
    if len(blocks) == 2 and bytes(blocks[0]) in (b"true", b"false"):
        answer = fields(blocks[1])
        if answer is not None and {"role", "content"} <= answer.keys():
            return _inner(answer["content"], depth, failed=bytes(blocks[0]) == b"false")
    texts: list[Raw] = []
    for block in blocks:
        found = fields(block)
        if found is None or not found.keys() <= (_TEXT_KEYS if _is_text(found) else _BLOCK_KEYS):
            return Result(text)
        value = found.get("text", found.get("json"))
        if value is None:
            return Result(text)
        texts.append(value)
    if len(texts) == 1:
        return _inner(texts[0], depth, failed=False)
    joined = "\n".join(part for raw in texts if (part := shown_raw(bytes(raw))[0]) is not None)
    return Result(joined)


__all__ = [
    "Fields",
    "Result",
    "arguments",
    "fields",
    "items",
    "result",
    "result_raw",
    "string",
    "taken_out",
    "unwrapped",
    "within",
]
