"""Claude Code and the Claude Agent SDK: spans of their enhanced telemetry.

https://code.claude.com/docs/en/monitoring-usage (traces, beta). `claude_code.interaction` is a turn of
the user, below it `claude_code.llm_request` and `claude_code.tool`; a tool's outcome stands on its
child `claude_code.tool.execution`. What the model said is in no span, so that it counts as hidden,
and of a tool's arguments only the few that the span shows are known.
"""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.model import Message
from monitor.semconv.content import plain, shown
from monitor.semconv.dialect import Content
from monitor.semconv.limits import name
from monitor.semconv.raw import RawSpan, label, text_of

_PREFIX: Final = "claude_code."
_TOOL: Final = "tool_name"
_CALL_IDS: Final = ("tool_use_id", "gen_ai.tool.call.id")
_SESSION: Final = "session.id"
_PROMPT: Final = "user_prompt"
_INPUT: Final = ("tool_input", "tool_parameters")
_SHOWN: Final = {
    "full_command": "command",
    "file_path": "file_path",
    "skill_name": "skill",
    "subagent_type": "subagent_type",
}
"""Attributes of a tool span and the parameters that they are."""
_SUCCESS: Final = "success"
_ERROR: Final = "error"
_OUTPUT_EVENT: Final = "tool.output"
_OUTPUTS: Final = ("output", "content")
_AGENTS: Final = ("agent_name", "agent.name", "agent_id")

KEYS: frozenset[str] = frozenset(
    {_TOOL, _SESSION, _PROMPT, _SUCCESS, _ERROR, *_CALL_IDS, *_INPUT, *_SHOWN, *_AGENTS}
)
PREFIXES: tuple[str, ...] = ()
MARKS: frozenset[str] = frozenset()
TELLS: frozenset[str] = frozenset()


def read(raw: RawSpan) -> Content | None:
    if not raw.name.startswith(_PREFIX):
        return None
    attributes = raw.attributes
    agent = next((found for key in _AGENTS if (found := label(attributes.get(key)))), None)
    session = label(attributes.get(_SESSION))
    match raw.name.removeprefix(_PREFIX):
        case "interaction":
            content = Content("agent", agent or "claude-code", session)
            text, why = shown(attributes.get(_PROMPT), raw.cut.get(_PROMPT))
            content.miss("input", why)
            if text is not None:
                content.inputs = (Message("user", text),)
            return content
        case "llm_request":
            content = Content("llm", agent, session)
            content.miss("output", "content_hidden")
            return content
        case "tool":
            content = Content("tool", agent, session)
            _tool(raw, content)
            return content
        case "tool.execution":
            content = Content("tool", agent, session)  # of the tool above, which it does not name
            content.call_id = _call_id(raw)
            _outcome(raw, content)
            return content
    return Content("other")


def _call_id(raw: RawSpan) -> str | None:
    return next((found for key in _CALL_IDS if (found := label(raw.attributes.get(key)))), None)


def _tool(raw: RawSpan, content: Content) -> None:
    attributes = raw.attributes
    content.tool = label(attributes.get(_TOOL)) or name(raw.name)
    content.call_id = _call_id(raw)
    for key in _INPUT:
        if key in attributes:
            content.take_arguments(attributes[key], raw.cut.get(key))
            break
    else:
        some = {
            parameter: attributes[key] for key, parameter in _SHOWN.items() if key in attributes
        }
        if some:
            content.arguments = msgspec.json.encode(some).decode()
            content.miss("arguments", "content_truncated")  # these few of them
        else:
            content.miss("arguments", "content_hidden")
    for event in raw.events:
        if event.name == _OUTPUT_EVENT:
            for key in _OUTPUTS:
                if key in event.attributes:
                    content.take_result(event.attributes[key])
                    break
    _outcome(raw, content)


def _outcome(raw: RawSpan, content: Content) -> None:
    if text_of(raw.attributes.get(_SUCCESS)) == "false":
        told = text_of(raw.attributes.get(_ERROR))
        content.error = (plain(told)[0] if told is not None else None) or ""
