"""Readings by content, in Redis: what was read once, the same way, is not paid for again.

| key                             | holds                                                   |
| ------------------------------- | ------------------------------------------------------- |
| `<prefix>:llm:reading:<digest>` | the model's answer for one step, and how it came about  |

The digest covers server, model, decoding, prompt, rubric, the text with its evidence, and the
attempt. Keys expire; nothing but cost depends on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streams.patience import PATIENCE, patiently

T = TypeVar("T")


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

    async def get(self, keys: Sequence[str]) -> list[bytes | None]:
        async def attempt() -> list[bytes | None]:
            # One by one, side by side: on a cluster the keys lie on many nodes.
            return list(await asyncio.gather(*(self._client.get(self._name(k)) for k in keys)))

        return await self._patiently("read", attempt)

    async def put(self, entries: dict[str, bytes]) -> None:
        async def attempt() -> None:
            await asyncio.gather(
                *(self._client.set(self._name(k), v, ex=self._ttl) for k, v in entries.items())
            )

        await self._patiently("write", attempt)

    def _name(self, key: str) -> str:
        return f"{self._prefix}:llm:reading:{key}"

    async def _patiently(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await patiently(
            f"state store: readings, {what}", attempt, self._failures, patience=self._patience
        )
