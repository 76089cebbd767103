"""Messages flattened into attributes with numbered keys.

    llm.input_messages.0.message.role             OpenInference
    gen_ai.prompt.0.role, gen_ai.completion.0...  OpenLLMetry up to 0.4x

The keys below a number become the object that they came from, one number being one message. Those of
a history are built and read only when they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from monitor.model import Message, RequestedCall, ReturnedResult, Unseen
from monitor.semconv.content import plain
from monitor.semconv.limits import MAX_MESSAGES, Memo, name
from monitor.semconv.messages import Read, read
from monitor.semconv.parts import usual_role
from monitor.semconv.raw import Value
from monitor.semconv.wrapped import arguments, result

_DEPTH: Final = 12
_LONGEST: Final = 4
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="sorted").encode

Tree = dict[str, Any]
"""The keys of one message, those below a common name together."""


class FlatHistory:
    """A history of flattened messages. `build` turns the tree of one into a chat message."""

    __slots__ = ("_attributes", "_build", "_built", "_place", "_plans")

    def __init__(
        self, attributes: Mapping[str, Value], prefix: str, build: Callable[[Tree], Tree]
    ) -> None:
        self._attributes = attributes
        self._plans = _plans_of(tuple(attributes), prefix)
        self._build = build
        self._place = -1
        self._built: Tree = {}

    def __len__(self) -> int:
        return len(self._plans)

    def role(self, index: int) -> str:
        told = self._message(index).get("role")
        return usual_role(told if isinstance(told, str) else None)

    def read(self, index: int) -> Read:
        return read_chat(self._message(index))

    def read_all(self) -> list[Read]:
        return [self.read(index) for index in range(len(self._plans))]

    def raw(self, index: int) -> bytes:
        return _in_order(_grown(self._plans[index], self._attributes))

    def _message(self, index: int) -> Tree:
        if self._place != index:  # the role of a message is asked for, and then the message
            self._built = self._build(_grown(self._plans[index], self._attributes))
            self._place = index
        return self._built


def read_chat(message: Tree) -> Read:
    """A message of the shape of OpenAI's chat API, its values as attributes have them."""
    content = message.get("content")
    listed = message.get("tool_calls")
    role = message.get("role")
    if not (
        isinstance(role, str)
        and (content is None or isinstance(content, str))
        and (listed is None or (isinstance(listed, list) and len(listed) < MAX_MESSAGES))
        and "function_call" not in message
    ):
        return read(msgspec.Raw(_encode(message)))
    role = usual_role(role)
    call_id = message.get("tool_call_id")
    text: str | None = None
    unseen: Unseen | None = None
    results: tuple[ReturnedResult, ...] = ()
    if content is not None:
        if role == "tool" or isinstance(call_id, str):
            results, unseen = _returned(content, call_id, message.get("name"))
            if role == "user":
                role = "tool"
        else:
            text, unseen = plain(content)
    calls: list[RequestedCall] = []
    for call in listed or ():
        found = _call(call) if isinstance(call, dict) else None
        if found is None:
            unseen = "content_hidden"
        else:
            calls.append(found)
    return Message(role, text, tuple(calls), results), unseen


def _returned(
    content: str, call_id: Value, tool: Value
) -> tuple[tuple[ReturnedResult, ...], Unseen | None]:
    found = result(content)
    return (
        ReturnedResult(
            name(call_id)
            if isinstance(call_id, str) and call_id
            else found.call_id and name(found.call_id),
            name(tool) if isinstance(tool, str) and tool else found.tool and name(found.tool),
            found.text,
            found.failed,
        ),
    ), found.unseen


def _call(call: Tree) -> RequestedCall | None:
    inner = call.get("function")
    function = inner if isinstance(inner, dict) else call
    tool, call_id = function.get("name"), call.get("id")
    if not isinstance(tool, str) or not tool:
        return None
    return RequestedCall(
        name(tool),
        name(call_id) if isinstance(call_id, str) and call_id else None,
        arguments(function.get("arguments"))[0],
    )


_Plan = dict[str, Any]
"""The tree of a message with keys of attributes where their values will be."""
_plans: Final = Memo[tuple[str, ...], dict[str, list[_Plan]]](entries=2048, size=8 * 1024 * 1024)
"""For the keys of a span and a prefix the plans of its messages: histories of one length and shape
have the same keys."""


def _plans_of(keys: tuple[str, ...], prefix: str) -> list[_Plan]:
    """What lies below `prefix`, in order of the numbers.

    Numbers need not be without gaps: an SDK's attribute limit drops some.
    """
    known = _plans.get(keys)
    if known is None:
        known = _plans.remember(keys, {}, 4 * sum(map(len, keys)))
    found = known.get(prefix)
    if found is None:
        found = known[prefix] = _planned(keys, prefix)
    return found


def _planned(keys: Iterable[str], prefix: str) -> list[_Plan]:
    plans: dict[int, _Plan] = {}
    for key in keys:
        if not key.startswith(prefix):
            continue
        number, _, rest = key[len(prefix) :].partition(".")
        if not rest or len(number) > _LONGEST or not (number.isascii() and number.isdigit()):
            continue
        plan = plans.setdefault(int(number), {})
        path = rest.split(".")
        if len(path) <= _DEPTH:
            _plant(plan, path, key)
    kept = sorted(plans)
    if len(kept) > 2 * MAX_MESSAGES:
        kept = kept[:2] + kept[2 - 2 * MAX_MESSAGES :]
    return [plans[number] for number in kept]


def _plant(plan: _Plan, path: list[str], key: str) -> None:
    for step in path[:-1]:
        below = plan.setdefault(step, {})
        if not isinstance(below, dict):
            return
        plan = below
    plan.setdefault(path[-1], key)


def _grown(plan: _Plan, attributes: Mapping[str, Value]) -> Tree:
    """The tree that a plan is of."""
    return {
        step: attributes[below] if below.__class__ is str else _grown(below, attributes)
        for step, below in plan.items()
    }


def listed(tree: Any) -> list[Any]:
    """The values of an object whose keys are numbers, in their order."""
    if not isinstance(tree, dict):
        return []
    numbers = [key for key in tree if key.isascii() and key.isdigit() and len(key) <= _LONGEST]
    return [tree[key] for key in sorted(numbers, key=int)]
