"""Settings of the role `parse`: which LLM reads steps, how, and what it may cost.

Settings are read by every command, so what only the role needs is imported when it asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, SecretStr
from pydantic_settings import BaseSettings

from streams.errors import UserError
from streams.setting_values import DURATION, NONE, Duration, http_url, setting

if TYPE_CHECKING:
    from streams.batches import Cut
    from streams.llm import Config
    from streams.spending import Limits, Price

_TOKENS = "whole number from 1; not set: no limit"
_DOLLARS = "number above 0; not set: no limit"


def _tokens(where: str, window: str) -> Any:
    return setting(None, f"Tokens, in and out, that {where} may cost in a {window}.", _TOKENS,
                   shown=NONE, ge=1)  # fmt: skip


def _dollars(where: str, window: str) -> Any:
    return setting(None, f"US dollars that {where} may cost in a {window}. Needs a known price.",
                   _DOLLARS, shown=NONE, gt=0)  # fmt: skip


class LlmSettings(BaseSettings):
    """Without `llm_url` and `llm_model` the role refuses to start; nothing else looks at these."""

    llm_url: Annotated[str, AfterValidator(http_url)] = setting(
        "",
        "Base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`.",
        "http:// or https:// URL; empty: none",
        shown=NONE,
    )
    llm_model: str = setting("", "Model that is asked for.", "name", shown=NONE)
    llm_api_key: SecretStr | None = setting(
        None, "Key for the server. Never printed.", "text", shown=NONE
    )
    llm_output: Literal["auto", "json_schema", "tool", "text"] = setting(
        "auto",
        "How structured output is asked for; `auto` finds out what the server can.",
        "auto, json_schema, tool or text",
    )
    llm_deadline: Duration = setting(
        60,
        "Time for a take of requests, with queueing, retries and splitting; what is not read by "
        "then is unassessed.",
        f"{DURATION}, 100ms to 5m",
        shown="60s",
        ge=0.1,
        le=300,
    )
    llm_concurrency: int = setting(
        4, "Calls of a worker at once.", "whole number from 1 to 1000", ge=1, le=1000
    )
    llm_batch_items: int = setting(
        16, "Steps of one call at most.", "whole number from 1 to 256", ge=1, le=256
    )
    llm_batch_tokens: int = setting(
        24_000,
        "Estimated tokens of the steps of one call; one step alone may have more.",
        "whole number from 100 to 10000000",
        ge=100,
        le=10_000_000,
    )
    llm_batch_age: Duration = setting(
        0.5,
        "How long requests are collected before they are asked.",
        f"{DURATION}, 10ms to 30s",
        shown="500ms",
        ge=0.01,
        le=30,
    )
    llm_output_tokens: int = setting(
        1500,
        "Tokens that the model may write for each step of a call.",
        "whole number from 16 to 100000",
        ge=16,
        le=100_000,
    )
    llm_cache_ttl: Duration = setting(
        7 * 86_400,
        "How long a reading is kept, by content, so that a repeat costs nothing.",
        f"{DURATION}, 1s to 365d",
        shown="7d",
        ge=1,
        le=365 * 86_400,
    )
    llm_prices: Path | None = setting(
        None, "File of prices; see docs/semantic.md.", "path of a YAML file", shown="(shipped)"
    )
    llm_tokens_per_minute: int | None = _tokens("all services together", "minute")
    llm_tokens_per_day: int | None = _tokens("all services together", "day")
    llm_dollars_per_minute: float | None = _dollars("all services together", "minute")
    llm_dollars_per_day: float | None = _dollars("all services together", "day")
    llm_service_tokens_per_minute: int | None = _tokens("each service", "minute")
    llm_service_tokens_per_day: int | None = _tokens("each service", "day")
    llm_service_dollars_per_minute: float | None = _dollars("each service", "minute")
    llm_service_dollars_per_day: float | None = _dollars("each service", "day")
    reading_deadline: Duration = setting(
        300,
        "Time after which a reading that has not come counts as unassessed (`timeout`), so that a "
        "label under `gate` does not stay open.",
        f"{DURATION}, 100ms to 24h",
        shown="300s",
        ge=0.1,
        le=86_400,
    )

    def llm_config(self) -> Config:
        """Raises UserError when no LLM is named."""
        from streams.llm import Config  # noqa: PLC0415

        missing = [n for n in ("llm_url", "llm_model") if not getattr(self, n)]
        if missing:
            names = " and ".join(f"AGENTTRUST_{name.upper()}" for name in missing)
            raise UserError(f"the role parse needs an LLM: set {names}")
        return Config(
            url=self.llm_url,
            model=self.llm_model,
            key="" if self.llm_api_key is None else self.llm_api_key.get_secret_value(),
            mode=self.llm_output,
            deadline=self.llm_deadline,
            concurrency=self.llm_concurrency,
            output_tokens=self.llm_output_tokens,
        )

    def llm_cut(self) -> Cut:
        from streams.batches import Cut  # noqa: PLC0415

        return Cut(self.llm_batch_items, self.llm_batch_tokens)

    def llm_budgets(self) -> tuple[Limits, Limits, dict[str, Price]]:
        """Limits of all services together and of each, and prices.

        Raises UserError when money is limited and the model has no known price, InputError for a
        file of prices that is wrong.
        """
        from streams.spending import Limits, price_of, read_prices  # noqa: PLC0415

        prices = read_prices(self.llm_prices)
        everyone, each = (
            Limits(
                tokens_minute=getattr(self, f"llm_{scope}tokens_per_minute"),
                tokens_day=getattr(self, f"llm_{scope}tokens_per_day"),
                money_minute=getattr(self, f"llm_{scope}dollars_per_minute"),
                money_day=getattr(self, f"llm_{scope}dollars_per_day"),
            )
            for scope in ("", "service_")
        )
        if (everyone.money or each.money) and price_of(self.llm_model, prices) is None:
            raise UserError(
                f"money is limited, but the price of {self.llm_model!r} is not known;"
                " name it in the file of AGENTTRUST_LLM_PRICES"
            )
        return everyone, each, prices
