"""The LLM: one OpenAI-compatible server, asked with a total deadline and never trusted to answer.

Output is constrained by JSON schema where the server can, else by a forced tool call, else only
asked for in words; what comes back is parsed strictly in every case. Which of these a server can is
found out from how it refuses, once.

Whatever is no answer is a `Failed` with a reason that stands in the reading: nothing here is ever
turned into a verdict. `openai` is imported when a client is made, and by nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, Self

import msgspec

from monitor.reading import Reason
from streams.errors import UserError

log = logging.getLogger(__name__)

Mode = Literal["json_schema", "tool", "text"]
MODES: Final[tuple[Mode, ...]] = ("json_schema", "tool", "text")
_RETRYABLE: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_DIVISIBLE: Final = frozenset({400, 413, 422})
"""One step of a batch may be what the server will not take."""
ATTEMPTS: Final = 5
_BACKOFF: Final = 0.5
_BACKOFF_MOST: Final = 20.0
_NAME: Final = "readings"


class Config(msgspec.Struct, frozen=True):
    """How the server is asked. Times are seconds."""

    url: str
    model: str
    key: str = ""
    mode: Mode | Literal["auto"] = "auto"
    deadline: float = 60.0
    concurrency: int = 4
    output_tokens: int = 1500
    """For each step of a call."""
    temperature: float = 0.0
    seed: int = 0
    breaker_failures: int = 5
    breaker_pause: float = 15.0

    @property
    def decoding(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "seed": self.seed, "mode": self.mode}


class Reply(msgspec.Struct, frozen=True):
    """A complete answer: `text` is what should be JSON."""

    text: str
    model: str
    input_tokens: int
    output_tokens: int
    latency: float
    decoding: dict[str, Any]


class Failed(Exception):  # noqa: N818 - an outcome, not an error
    """No valid answer. `divisible`: a smaller batch may fare better. `tokens`: what it cost."""

    def __init__(
        self,
        reason: Reason,
        detail: str,
        *,
        divisible: bool = False,
        tokens: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = " ".join(detail.split())[:300]
        self.divisible = divisible
        self.tokens = tokens


class Breaker:
    """Opens after failures in a row, so that a dead server costs nothing but a look now and then."""

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self._most = failures
        self._pause = pause
        self._clock = clock
        self._row = 0
        self._until: float | None = None
        self.opened = 0

    @property
    def open(self) -> bool:
        return self._until is not None

    def allows(self) -> bool:
        """Whether a call may be made; after the pause one is let through."""
        if self._until is None:
            return True
        if self._clock() < self._until:
            return False
        self._until = self._clock() + self._pause  # the next look, unless this one succeeds
        return True

    def success(self) -> None:
        if self._until is not None:
            log.warning("the LLM answers again")
        self._row, self._until = 0, None

    def failure(self, why: str) -> None:
        self._row += 1
        if self._row >= self._most:
            if self._until is None:
                self.opened += 1
                log.error("the LLM is not asked any more for now, after %d failures: %s",
                          self._row, why)  # fmt: skip
            self._until = self._clock() + self._pause


class Llm:
    """A client. Use as `async with Llm(config) as llm`."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Raises UserError when `openai` is not installed."""
        try:
            import openai  # noqa: PLC0415 - an extra
        except ImportError:
            raise UserError(
                "the role parse needs the package openai; install agenttrust-monitor[llm]"
            ) from None
        self._openai = openai
        self.config = config
        self._client = openai.AsyncOpenAI(
            base_url=config.url, api_key=config.key or "none", max_retries=0, timeout=None
        )
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._slots = asyncio.Semaphore(config.concurrency)
        self.breaker = Breaker(config.breaker_failures, config.breaker_pause, clock)
        self._mode: Mode = "json_schema" if config.mode == "auto" else config.mode
        self._dropped: set[str] = set()
        self._limit = "max_tokens"
        self.calls = 0
        """Requests that were sent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def ask(
        self,
        messages: Sequence[Mapping[str, str]],
        schema: Mapping[str, Any],
        *,
        items: int,
        until: float,
    ) -> Reply:
        """One call for `items` steps. `until` is the end on `clock`, retries and queue included.

        Raises Failed.
        """
        began = False
        try:
            async with asyncio.timeout(max(0.0, until - self._clock())), self._slots:
                began = True
                return await self._attempts(messages, schema, items, until)
        except TimeoutError:
            if began:  # else it only waited for its turn
                self.breaker.failure("no answer in time")
            raise Failed("timeout", "no answer in time") from None

    async def _attempts(
        self, messages: Any, schema: Mapping[str, Any], items: int, until: float
    ) -> Reply:
        attempt = 0
        while True:
            if not self.breaker.allows():
                raise Failed("breaker", "the server failed too often of late")
            attempt += 1
            try:
                return await self._call(messages, schema, items)
            except self._openai.APIStatusError as error:
                status = error.status_code
                told = f"HTTP {status}: {_body(error)}"
                if status == 400 and self._adapt(_body(error)):
                    attempt -= 1
                    continue
                if status in _DIVISIBLE:
                    raise Failed("refused", told, divisible=True) from None
                if status not in _RETRYABLE or attempt >= ATTEMPTS:
                    self.breaker.failure(told)
                    raise Failed("refused", told) from None
                if status != 429:  # asked to wait is not broken
                    self.breaker.failure(told)
                wait = retry_after(error.response.headers)
            except self._openai.APIConnectionError as error:
                told = f"{type(error).__name__}: {error.__cause__ or error}"
                self.breaker.failure(told)
                if attempt >= ATTEMPTS:
                    raise Failed("timeout", told) from None
                wait = None
            if wait is None:
                wait = min(_BACKOFF_MOST, _BACKOFF * 2 ** (attempt - 1)) * (
                    0.5 + self._jitter() / 2
                )
            if self._clock() + wait >= until:
                raise Failed("timeout", f"no time left to ask again after {told}")
            await self._sleep(wait)

    async def _call(self, messages: Any, schema: Mapping[str, Any], items: int) -> Reply:
        mode = self._mode
        args: dict[str, Any] = {
            "model": self.config.model,
            "messages": messages,
            self._limit: self.config.output_tokens * items,
            "temperature": self.config.temperature,
            "seed": self.config.seed,
        }
        for name in self._dropped:
            args.pop(name, None)
        decoding = {k: v for k, v in args.items() if k not in ("model", "messages")}
        if mode == "json_schema":
            args["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": _NAME, "strict": True, "schema": schema},
            }
        elif mode == "tool":
            args["tools"] = [{"type": "function",
                              "function": {"name": _NAME, "parameters": schema}}]  # fmt: skip
            args["tool_choice"] = {"type": "function", "function": {"name": _NAME}}
        self.calls += 1
        began = self._clock()
        try:
            answer = await self._client.chat.completions.create(**args)
        except (self._openai.APIStatusError, self._openai.APIConnectionError):
            raise
        except (self._openai.OpenAIError, ValueError) as error:
            self.breaker.success()
            raise Failed("invalid", f"no chat completion: {error}", divisible=True) from None
        self.breaker.success()
        return self._reply(answer, decoding | {"mode": mode}, self._clock() - began)

    def _reply(self, answer: Any, decoding: dict[str, Any], latency: float) -> Reply:
        usage = getattr(answer, "usage", None)
        tokens = (_count(usage, "prompt_tokens"), _count(usage, "completion_tokens"))
        choices = getattr(answer, "choices", None)
        message = getattr(choices[0], "message", None) if choices else None
        if message is None:
            raise Failed("invalid", "no choice in the answer", divisible=True, tokens=tokens)
        finish = choices[0].finish_reason if choices else None
        if finish == "length":
            raise Failed("truncated", "the answer was cut at its limit",
                         divisible=True, tokens=tokens)  # fmt: skip
        if finish == "content_filter" or getattr(message, "refusal", None):
            raise Failed("refused", f"the model declined: {message.refusal or finish}",
                         divisible=True, tokens=tokens)  # fmt: skip
        calls = getattr(message, "tool_calls", None) or ()
        text = next((c.function.arguments for c in calls if c.function.name == _NAME), None)
        text = message.content if text is None else text
        if not isinstance(text, str) or not text.strip():
            raise Failed("invalid", "the answer is empty", divisible=True, tokens=tokens)
        return Reply(text, str(answer.model), *tokens, latency, decoding)

    def _adapt(self, told: str) -> bool:
        """Whether a refusal was of a way to ask for which there is another."""
        lowered = told.lower()
        if "max_tokens" in lowered and self._limit == "max_tokens":
            self._limit = "max_completion_tokens"
            return True
        for name in ("temperature", "seed"):
            if name in lowered and name not in self._dropped:
                self._dropped.add(name)
                return True
        words = {"json_schema": ("response_format", "json_schema"), "tool": ("tool",), "text": ()}
        if self.config.mode == "auto" and any(word in lowered for word in words[self._mode]):
            self._mode = MODES[MODES.index(self._mode) + 1]
            log.info("the LLM server cannot %s; now asking by %s", told[:200], self._mode)
            return True
        return False


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait; None when it says nothing that can be read."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _body(error: Any) -> str:
    """What a refusal says, on one line."""
    return " ".join(str(error.message).split())[:500]


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, 0)
    return value if isinstance(value, int) and value >= 0 else 0
