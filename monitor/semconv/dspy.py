"""The fields that DSPy writes into its prompts and reads from what models say.

https://dspy.ai/learn/programming/adapters. Its chat adapter marks fields with `[[ ## name ## ]]`, its
JSON adapter has the model answer with an object of them. `ReAct` asks for `next_tool_name` and
`next_tool_args`; its tool `finish` ends the run. A prompt has one user message that counts, the last:
those before it are examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from monitor.model import Message, RequestedCall
from monitor.semconv.limits import name
from monitor.semconv.wrapped import arguments, fields, string

SCOPE: Final = "openinference.instrumentation.dspy"
FINISH: Final = "finish"
_FIELD: Final = re.compile(r"^\[\[ ## (\w+) ## \]\][ \t]*$", re.MULTILINE)
_WANTED: Final = "\n\nRespond with the corresponding output fields"
_TOOL: Final = "next_tool_name"
_ARGUMENTS: Final = "next_tool_args"
_THOUGHTS: Final = {"reasoning", "rationale", "next_thought", "completed"}
_TRAJECTORY: Final = "trajectory"


def asked(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The instructions, and what is asked without how it is to be answered."""
    kept = [message for message in messages if message.role == "system"]
    users = [message for message in messages if message.role == "user" and message.text is not None]
    for message in users[-1:]:
        found = _fields((message.text or "").partition(_WANTED)[0])
        found.pop(_TRAJECTORY, None)
        kept.append(msgspec.structs.replace(message, text=_together(found) or message.text))
    return tuple(kept)


def said(message: Message) -> Message | None:
    """The call that a model asks for, or the fields that it gives; None where it ends the run,
    whose answer another model call then gives."""
    if message.text is None or message.calls:
        return message
    found = _fields(message.text) or _object(message.text)
    if not found:
        return message
    tool = found.get(_TOOL)
    if tool is not None:
        if not tool or tool == FINISH:
            return None
        call = RequestedCall(name(tool), None, arguments(found.get(_ARGUMENTS))[0])
        return Message(message.role, None, (call,))
    given = {key: value for key, value in found.items() if key not in _THOUGHTS}
    return Message(message.role, _together(given or found))


def _fields(text: str) -> dict[str, str]:
    """The marked fields of a text, in order."""
    parts = _FIELD.split(text)
    return dict(zip(parts[1::2], [part.strip() for part in parts[2::2]], strict=True))


def _object(text: str) -> dict[str, str]:
    found = fields(text.strip().encode("utf-8", "replace")) or {}
    return {
        key: bytes(raw).decode("utf-8", "replace") if (value := string(raw)) is None else value
        for key, raw in found.items()
    }


def _together(found: dict[str, str]) -> str | None:
    """The value of the only field; of several each with its name."""
    if len(found) == 1:
        return next(iter(found.values()))
    return "\n".join(f"{key}: {value}" for key, value in found.items()) or None
