"""What asking an LLM costs: prices, and budgets that all workers share.

Budgets are counters in Redis, by minute and by day (UTC), for the deployment and for each service.
An estimate is taken before a call and corrected after it, so that workers which ask at the same time
cannot spend more than is left. Money is counted in millionths of a dollar.

| key                              | holds                                   |
| -------------------------------- | --------------------------------------- |
| `{<prefix>:llm}:<who>:<window>`  | hash: tokens, money spent in the window |

`<who>` is `all` or a digest of the service's name; a key expires one window after its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Protocol

import msgspec
from pydantic import Field

from monitor import yaml
from monitor.document import load
from monitor.validate import Written, build
from streams.patience import PATIENCE, patiently

_PRICES: Final = Path(__file__).with_name("prices.yaml")
MILLION: Final = 1_000_000
_WINDOWS: Final = {"minute": 60, "day": 86_400}


class Price(Written):
    """US dollars for a million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]

    def cost(self, input_tokens: float, output_tokens: float) -> float:
        """US dollars."""
        return (self.input * input_tokens + self.output * output_tokens) / MILLION


def read_prices(path: Path | None = None) -> dict[str, Price]:
    """A file of prices; the shipped one by default. Raises InputError."""
    path = path or _PRICES
    document = yaml.parse(load(path, 1 << 20), str(path), limit=1 << 20)
    if not isinstance(document.value, dict):
        raise document.error((), "holds no prices", "a mapping of models")
    return {
        str(name): build(Price, value, document, (name,)) for name, value in document.value.items()
    }


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The price of a model: the longest name that it begins with."""
    names = [name for name in prices if model.startswith(name)]
    return prices[max(names, key=len)] if names else None


class Limits(msgspec.Struct, frozen=True):
    """Most that may be spent in a window; None is no limit. Money is US dollars."""

    tokens_minute: int | None = None
    tokens_day: int | None = None
    money_minute: float | None = None
    money_day: float | None = None

    @property
    def any(self) -> bool:
        return any(getattr(self, name) is not None for name in self.__struct_fields__)

    @property
    def money(self) -> bool:
        return self.money_minute is not None or self.money_day is not None


class Scripts(Protocol):
    """What is used of a Redis client."""

    def eval(self, script: str, numkeys: int, *args: Any) -> Awaitable[Any]: ...


# KEYS: hashes; ARGV: tokens, money, then for each key: limit of tokens, of money (-1: none), TTL.
# What another program wrote there counts as nothing spent.
# The answer is 0, or the number of the first key whose limit is reached; then nothing is counted.
_TAKE: Final = """
local tokens, money = tonumber(ARGV[1]), tonumber(ARGV[2])
for i, key in ipairs(KEYS) do
  local have = redis.pcall('HMGET', key, 'tokens', 'money')
  if have.err or not (tonumber(have[1] or '0') and tonumber(have[2] or '0')) then
    redis.call('DEL', key)
    have = {false, false}
  end
  local most, dear = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  if most >= 0 and tonumber(have[1] or '0') + tokens > most then return i end
  if dear >= 0 and tonumber(have[2] or '0') + money > dear then return i end
end
for i, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, 'tokens', tokens)
  redis.call('HINCRBY', key, 'money', money)
  redis.call('EXPIRE', key, tonumber(ARGV[3 * i + 2]))
end
return 0
"""


class Taken(msgspec.Struct, frozen=True):
    """An estimate that was counted, and where."""

    keys: tuple[str, ...]
    tokens: int
    money: int


class Budget:
    """Tokens and money, taken before they are spent. `clock` gives Unix seconds."""

    def __init__(
        self,
        client: Scripts,
        *,
        prefix: str,
        everyone: Limits,
        service: Limits,
        failures: tuple[type[Exception], ...],
        clock: Callable[[], float] = time.time,
        patience: float = PATIENCE,
    ) -> None:
        """`service` limits each service for itself."""
        self._client = client
        self._prefix = prefix
        self._all = everyone
        self._each = service
        self._failures = failures
        self._clock = clock
        self._patience = patience
        self._turn = asyncio.Lock()
        """One script after the other: many calls may end at once, and each would want a connection."""

    async def take(self, service: str | None, tokens: int, cost: float | None) -> Taken | str:
        """Counts an estimate; or, as text, which limit is reached, and counts nothing."""
        money = round((cost or 0) * MILLION)
        keys: list[str] = []
        args: list[int] = [tokens, money]
        names: list[str] = []
        now = self._clock()
        who = hashlib.blake2b((service or "").encode(), digest_size=8).hexdigest()
        for scope, limits in (("all", self._all), (who, self._each)):
            for window, seconds in _WINDOWS.items():
                most = getattr(limits, f"tokens_{window}")
                dear = getattr(limits, f"money_{window}")
                if most is None and dear is None:
                    continue
                keys.append(f"{{{self._prefix}:llm}}:{scope}:{window}:{int(now // seconds)}")
                args += (-1 if most is None else most,
                         -1 if dear is None else round(dear * MILLION), 2 * seconds)  # fmt: skip
                names.append(f"{'all services' if scope == 'all' else 'the service'}, per {window}")
        if not keys:
            return Taken((), tokens, money)
        reached = await self._eval(_TAKE, keys, args)
        return names[int(reached) - 1] if reached else Taken(tuple(keys), tokens, money)

    async def settle(self, taken: Taken, tokens: float, cost: float | None) -> None:
        """Corrects an estimate by what was spent."""
        if not taken.keys:
            return
        more = round(tokens) - taken.tokens
        dearer = round((cost or 0) * MILLION) - taken.money
        args = [more, dearer, *(-1, -1, 2 * _WINDOWS["day"]) * len(taken.keys)]
        await self._eval(_TAKE, list(taken.keys), args)

    async def _eval(self, script: str, keys: list[str], args: list[int]) -> Any:
        async def attempt() -> Any:
            return await self._client.eval(script, len(keys), *keys, *args)

        async with self._turn:
            return await patiently(
                "state store: budget", attempt, self._failures, patience=self._patience
            )
