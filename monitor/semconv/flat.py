"""Messages flattened into attributes with numbered keys.

    llm.input_messages.0.message.role             OpenInference
    gen_ai.prompt.0.role, gen_ai.completion.0...  OpenLLMetry up to 0.4x

The keys below a number become the object that they came from, one number being one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from monitor.semconv.limits import MAX_MESSAGES
from monitor.semconv.messages import Read, read
from monitor.semconv.raw import Value

_DEPTH: Final = 12
_LONGEST: Final = 4


class FlatHistory:
    """A history of messages whose keys are gathered and which are built when they are read."""

    __slots__ = ("_items",)

    def __init__(self, items: list[dict[str, Any]]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def role(self, index: int) -> str:
        return self.read(index)[0].role

    def read(self, index: int) -> Read:
        return read(msgspec.Raw(self.raw(index)))

    def raw(self, index: int) -> bytes:
        return msgspec.json.encode(self._items[index])


def gather(attributes: Mapping[str, Value], prefix: str) -> list[dict[str, Any]]:
    """The objects below `prefix`, in order of their numbers, with dicts and lists rebuilt.

    Numbers need not be without gaps: an SDK's attribute limit drops some.
    """
    trees: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if not key.startswith(prefix):
            continue
        number, _, rest = key[len(prefix) :].partition(".")
        if not rest or not (number.isascii() and number.isdigit()) or len(number) > _LONGEST:
            continue
        path = rest.split(".")
        if len(path) <= _DEPTH:
            _plant(trees.setdefault(int(number), {}), path, value)
    kept = sorted(trees)
    if len(kept) > 2 * MAX_MESSAGES:
        kept = kept[:2] + kept[2 - 2 * MAX_MESSAGES :]
    return [_grown(trees[number]) for number in kept]


def _plant(tree: dict[str, Any], path: list[str], value: Value) -> None:
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree.setdefault(path[-1], value)


def _grown(tree: Any) -> Any:
    """Dicts whose keys are all numbers are lists."""
    if not isinstance(tree, dict):
        return tree
    if tree and all(key.isascii() and key.isdigit() and len(key) <= _LONGEST for key in tree):
        return [_grown(tree[key]) for key in sorted(tree, key=int)]
    return {key: _grown(below) for key, below in tree.items()}
