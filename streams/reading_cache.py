"""Readings by content, in Redis: what was read once, the same way, is not paid for again.

| key                             | holds                                                   |
| ------------------------------- | ------------------------------------------------------- |
| `<prefix>:llm:reading:<digest>` | the model's answer for one step, and how it came about  |

The digest covers server, model, decoding, prompt, rubric, the text with its evidence, and the
attempt. Keys expire; nothing but cost depends on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from streams.patience import PATIENCE, patiently
from streams.redis_wire import of_another_type

T = TypeVar("T")
_TOGETHER: Final = 64
"""Keys of one round trip, so that replies stay a few megabytes."""


class ReadingCache:
    """`ttl` is seconds."""

    def __init__(
        self,
        client: Any,
        *,
        prefix: str,
        ttl: float,
        failures: tuple[type[Exception], ...],
        patience: float = PATIENCE,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._ttl = max(1, round(ttl))
        self._failures = failures
        self._patience = patience
        self._turn = asyncio.Lock()
        """One round trip after the other: a take is not to hold a connection for each of its keys."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        async def attempt(some: Sequence[str]) -> list[bytes | None]:
            pipe = self._client.pipeline(transaction=False)
            for key in some:
                pipe.get(self._name(key))
            return [_value(one) for one in await pipe.execute(raise_on_error=False)]

        found: list[bytes | None] = []
        for some in _parts(keys):
            found += await self._patiently("read", partial(attempt, some))
        return found

    async def put(self, entries: dict[str, bytes]) -> None:
        async def attempt(some: Sequence[str]) -> None:
            pipe = self._client.pipeline(transaction=False)
            for key in some:
                pipe.set(self._name(key), entries[key], ex=self._ttl)
            await pipe.execute()

        for some in _parts(list(entries)):
            await self._patiently("write", partial(attempt, some))

    def _name(self, key: str) -> str:
        return f"{self._prefix}:llm:reading:{key}"

    async def _patiently(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            return await patiently(
                f"state store: readings, {what}", attempt, self._failures, patience=self._patience
            )


def _value(answer: Any) -> bytes | None:
    """A key of another type, which some other program wrote, holds no reading."""
    if isinstance(answer, Exception):
        if not of_another_type(answer):
            raise answer
        return None
    return cast("bytes | None", answer)


def _parts(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[at : at + _TOGETHER] for at in range(0, len(keys), _TOGETHER))
