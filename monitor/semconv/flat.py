"""Messages flattened into attributes with numbered keys.

    llm.input_messages.0.message.role             OpenInference
    gen_ai.prompt.0.role, gen_ai.completion.0...  OpenLLMetry up to 0.4x

The keys below a number become the object that they came from, one number being one message. Those of
a history are built and read only when they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from monitor.model import Unseen
from monitor.semconv.limits import MAX_MESSAGES
from monitor.semconv.messages import Read, read, together
from monitor.semconv.parts import (
    CallPart,
    Part,
    ResultPart,
    TextPart,
    WireMessage,
    usual_role,
)
from monitor.semconv.raw import Value

_DEPTH: Final = 12
_LONGEST: Final = 4
_encode: Final = msgspec.json.Encoder().encode
_in_order: Final = msgspec.json.Encoder(order="sorted").encode

Tree = dict[str, Any]
"""The keys of one message, those below a common name together."""


class FlatHistory:
    """A history of flattened messages. `build` turns the tree of one into a chat message."""

    __slots__ = ("_build", "_trees")

    def __init__(self, trees: list[Tree], build: Callable[[Tree], Tree]) -> None:
        self._trees = trees
        self._build = build

    def __len__(self) -> int:
        return len(self._trees)

    def role(self, index: int) -> str:
        told = self._build(self._trees[index]).get("role")
        return usual_role(told if isinstance(told, str) else None)

    def read(self, index: int) -> Read:
        return read_chat(self._build(self._trees[index]))

    def raw(self, index: int) -> bytes:
        return _in_order(self._trees[index])


def read_chat(message: Tree) -> Read:
    """A message of the shape of OpenAI's chat API, its values as attributes have them."""
    content = message.get("content")
    listed = message.get("tool_calls")
    role = message.get("role")
    if not (
        isinstance(role, str)
        and isinstance(content, str | None)
        and isinstance(listed, list | None)
        and "function_call" not in message
    ):
        return read(msgspec.Raw(_encode(message)))
    parts: list[Part] = []
    unseen: Unseen | None = None
    role = usual_role(role)
    call_id = message.get("tool_call_id")
    if content is not None and (role == "tool" or isinstance(call_id, str)):
        tool = message.get("name")
        parts.append(
            ResultPart(
                call_id if isinstance(call_id, str) else None,
                tool if isinstance(tool, str) else None,
                msgspec.Raw(_encode(content)),
            )
        )
    elif content is not None:
        parts.append(TextPart(content))
    for call in listed or ():
        part = _call(call) if isinstance(call, dict) else None
        if part is None:
            unseen = "content_hidden"
        else:
            parts.append(part)
    return together(WireMessage(role, parts), unseen)


def _call(call: Tree) -> CallPart | None:
    inner = call.get("function")
    function = inner if isinstance(inner, dict) else call
    tool, call_id = function.get("name"), call.get("id")
    if not isinstance(tool, str) or not tool:
        return None
    given = function.get("arguments")
    return CallPart(
        tool,
        call_id if isinstance(call_id, str) else None,
        msgspec.Raw() if given is None else msgspec.Raw(_encode(given)),
    )


def gather(attributes: Mapping[str, Value], prefix: str) -> list[Tree]:
    """The objects below `prefix`, in order of their numbers, with dicts and lists rebuilt.

    Numbers need not be without gaps: an SDK's attribute limit drops some.
    """
    trees: dict[int, Tree] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, rest = key[len(prefix) :].partition(".")
        if not rest or len(number) > _LONGEST or not (number.isascii() and number.isdigit()):
            continue
        tree = trees.setdefault(int(number), {})
        if "." not in rest:
            tree.setdefault(rest, value)
            continue
        path = rest.split(".")
        if len(path) <= _DEPTH:
            _plant(tree, path, value)
    kept = sorted(trees)
    if len(kept) > 2 * MAX_MESSAGES:
        kept = kept[:2] + kept[2 - 2 * MAX_MESSAGES :]
    return [trees[number] for number in kept]


def _plant(tree: Tree, path: list[str], value: Value) -> None:
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree.setdefault(path[-1], value)


def listed(tree: Any) -> list[Any]:
    """The values of an object whose keys are numbers, in their order."""
    if not isinstance(tree, dict):
        return []
    numbers = [key for key in tree if key.isascii() and key.isdigit() and len(key) <= _LONGEST]
    return [tree[key] for key in sorted(numbers, key=int)]
