"""Messages read in one step are what reading them by their shape gives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.semconv import chat, shapes
from monitor.semconv.decode import UNREADABLE, decode
from monitor.semconv.wrapped import fields

texts = st.sampled_from(["", " ", "hi", "Zürich", "c1", '{"a": 1}'])
values = st.one_of(st.none(), texts, st.integers(0, 3), st.just({"a": 1}), st.just([]))
functions = st.fixed_dictionaries({"name": texts}, optional={"arguments": values})
calls = st.fixed_dictionaries(
    {},
    optional={
        "id": values,
        "type": st.sampled_from(["function", "tool_call", None]),
        "function": st.one_of(functions, values),
        "index": values,
        "toolCallId": values,
        "toolName": values,
        "input": values,
    },
)
uses = st.fixed_dictionaries(
    {}, optional={"toolUseId": values, "name": values, "input": values, "status": values}
)
results = st.fixed_dictionaries(
    {},
    optional={
        "toolUseId": values,
        "content": values,
        "status": st.sampled_from(["error", "success", None]),
    },
)
pieces = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "tool-call", "tool-result", "input_text", "image", None]),
        "text": values,
        "toolUse": st.one_of(uses, values),
        "toolResult": st.one_of(results, values),
        "toolCallId": values,
        "toolName": values,
        "input": values,
        "output": values,
        "content": values,
    },
)
roles = st.sampled_from(["user", "assistant", "system", "tool", "human", "Model", "", None, 5])
plain = {
    "role": roles,
    "content": st.one_of(values, st.lists(pieces, max_size=3)),
    "tool_calls": st.one_of(values, st.lists(calls, max_size=3)),
    "tool_call_id": values,
    "name": values,
    "id": values,
    "index": values,
    "finish_reason": values,
    "type": values,
    "refusal": values,
}
inner = st.fixed_dictionaries({}, optional=plain)
messages = st.fixed_dictionaries({}, optional={**plain, "message": st.one_of(inner, values)})


def both(message: dict[str, Any]) -> tuple[Any, Any]:
    data = msgspec.json.encode(message)
    try:
        found = chat.read(data)
    except UNREADABLE:
        found = None
    return found, shapes.read(fields(data) or {})


@given(messages)
def test_what_is_read_in_one_step_is_what_its_shape_gives(message):
    found, by_shape = both(message)
    assert found is None or (found, None) == by_shape


USUAL = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "a", "arguments": ""}}
        ],
    },
    {"role": "assistant", "tool_calls": [{"toolCallId": "c1", "toolName": "a", "input": {"b": 1}}]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"a": 1}'},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "content": [{"type": "tool-call", "toolCallId": "c1", "toolName": "a", "input": {}}],
    },
    {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": "c1", "toolName": "a", "output": {}}],
    },
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c", "name": "a", "input": 1}}]},
    {
        "role": "tool",
        "content": [{"toolResult": {"toolUseId": "c", "status": "error", "content": 1}}],
    },
    {"role": "assistant", "index": 0, "message": {"role": "assistant", "content": "yes"}},
]


@pytest.mark.parametrize("message", USUAL, ids=str)
def test_usual_messages_are_read_in_one_step(message):
    found, by_shape = both(message)
    assert (found, None) == by_shape
    assert decode(msgspec.Raw(msgspec.json.encode(message))) == by_shape


def test_a_key_written_with_escapes_hides_nothing():
    message = rb'{"role":"user","content":"no","\u0070arts":[{"type":"text","content":"hi"}]}'
    said, unseen = decode(msgspec.Raw(message))
    assert unseen is None
    assert [part.content for part in said.parts] == ["hi"]
