"""Settings: environment variables `AGENTTRUST_*`, typed, checked before anything starts.

`load()` is the only way in. A wrong value raises `SettingsError`, whose lines name the variable,
the value (never a secret) and what is allowed. docs/settings.md is generated from this model.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from streams.connection import Connection
from streams.errors import UserError
from streams.llm_settings import LlmSettings
from streams.setting_values import (
    DURATION,
    PREFIX,
    SIZE,
    TOPIC,
    DisagreementError,
    Duration,
    Names,
    Size,
    TopicName,
    extra,
    http_url,
    listen,
    listen_or_off,
    safe,
    setting,
    variable,
)

__all__ = [
    "PREFIX",
    "Settings",
    "SettingsError",
    "load",
    "markdown",
    "misspelt",
    "variable",
]


class SettingsError(UserError):
    """Settings that cannot be used, a line for each."""


class Settings(LlmSettings, Connection):
    """Everything that a deployment chooses. Durations are seconds, sizes bytes.

    How to reach Kafka and Redis comes first, with `Connection`; then the LLM, with `LlmSettings`.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    contracts: Path | None = setting(
        None,
        "Directory of contracts. Without one every label is `unassessed`, reason `no_contract`.",
        "path of an existing directory",
        shown="(none)",
    )
    gateway_listen: Annotated[str, AfterValidator(listen)] = setting(
        "127.0.0.1:4318",
        "Address of the OTLP/HTTP gateway.",
        "host:port; port 0 takes any free port",
    )
    gateway_max_request: Size = setting(
        20 * 1024**2,
        "Largest request that the gateway accepts, measured after decompression.",
        f"{SIZE}, 64 KiB to 256 MiB",
        shown="20MiB",
        ge=64 * 1024,
        le=256 * 1024**2,
    )

    # -- topics ------------------------------------------------------------------------------

    spans_topic: TopicName = setting("otlp_spans", "Topic with the agents' OTLP traces.", TOPIC)
    logs_topic: TopicName = setting("otlp_logs", "Topic with the agents' OTLP logs.", TOPIC)
    topic_prefix: TopicName = setting(
        "agenttrust", "First part of the names of all topics that the monitor writes.", TOPIC
    )
    partitions: int = setting(
        12,
        "Partitions of the journal. Fixed once topics exist: it decides where a trajectory lives.",
        "whole number from 1 to 1000",
        ge=1,
        le=1000,
    )
    replication: int = setting(
        1,
        "Replicas of each topic that `topics create` makes; with 3 or more, writes need one fewer.",
        "whole number from 1 to 10",
        ge=1,
        le=10,
    )
    max_message_bytes: Size = setting(
        1_000_000,
        "Largest message that the gateway writes to the spans topic; larger requests are split.",
        f"{SIZE}, 64 KiB to 64 MiB",
        shown="1MB",
        ge=64 * 1024,
        le=64 * 1024**2,
    )
    journal_retention: Duration = setting(
        7 * 86_400,
        "How long the journal is kept: at least STATE_TTL + ALLOWED_LAG.",
        f"{DURATION}, 1h to 3650d",
        shown="7d",
        ge=3600,
        le=3650 * 86_400,
    )
    event_retention: Duration = setting(
        30 * 86_400,
        "How long labels, violations and dead letters are kept.",
        f"{DURATION}, 1h to 3650d",
        shown="30d",
        ge=3600,
        le=3650 * 86_400,
    )

    # -- what is monitored -------------------------------------------------------------------

    services: Names = setting(
        (),
        "Services (`service.name`) whose spans are monitored; spans of others are dropped unread. "
        "Empty: all.",
        "names separated by commas",
        shown="(all)",
    )
    event_attributes: Names = setting(
        (),
        "Resource attributes that events carry for routing, such as `deployment.environment.name`.",
        "attribute names separated by commas",
        shown="(none)",
    )
    evidence: Literal["plain", "hash", "off"] = setting(
        "plain",
        "How the evidence excerpts (up to 200 characters) in violations are written.",
        "plain, hash or off",
    )

    # -- when a trajectory ends --------------------------------------------------------------

    settle_delay: Duration = setting(
        5,
        "Quiet time after which a trajectory whose run is complete is closed.",
        f"{DURATION}, 0s to 1h",
        shown="5s",
        ge=0,
        le=3600,
    )
    idle_timeout: Duration = setting(
        300,
        "Quiet time after which any other trajectory is closed. At least SETTLE_DELAY.",
        f"{DURATION}, 100ms to 24h",
        shown="300s",
        ge=0.1,
        le=86_400,
    )
    max_steps: int = setting(
        2000,
        "Steps after which a trajectory is closed as `step_limit`.",
        "whole number from 1 to 100000",
        ge=1,
        le=100_000,
    )
    max_bytes: Size = setting(
        8 * 1024**2,
        "Content after which a trajectory is closed as `byte_limit`.",
        f"{SIZE}, 64 KiB to 1 GiB",
        shown="8MiB",
        ge=64 * 1024,
        le=1024**3,
    )
    max_age: Duration = setting(
        86_400,
        "Age after which a trajectory is closed as `age_limit`.",
        f"{DURATION}, 1m to 30d",
        shown="24h",
        ge=60,
        le=30 * 86_400,
    )
    state_ttl: Duration = setting(
        48 * 3600,
        "Age after which a trajectory's state is forgotten. At least MAX_AGE + 1h.",
        f"{DURATION}, 1h to 90d",
        shown="48h",
        ge=3600,
        le=90 * 86_400,
    )
    allowed_lag: Duration = setting(
        24 * 3600,
        "How far behind the workers may fall before it is an alarm.",
        f"{DURATION}, 1m to 30d",
        shown="24h",
        ge=60,
        le=30 * 86_400,
    )

    # -- workers -----------------------------------------------------------------------------

    session_timeout: Duration = setting(
        10,
        "Silence after which Kafka gives a worker's partitions to another. At least the brokers' "
        "`group.min.session.timeout.ms`, which is 6s unless they say otherwise.",
        f"{DURATION}, 3s to 5m",
        shown="10s",
        ge=3,
        le=300,
    )
    dead_letter_halt: int = setting(
        100,
        "Consecutive dead letters after which a worker stops: the stream is not what it should be.",
        "whole number from 1 to 1000000",
        ge=1,
        le=1_000_000,
    )
    stall_timeout: Duration = setting(
        150,
        "Records wait and none was handled for so long: `/healthz` fails, and the worker ends "
        "unless it has a batch in hand. Longer than the 2 minutes that an outage is waited for.",
        f"{DURATION}, 5s to 1h",
        shown="150s",
        ge=5,
        le=3600,
    )
    in_flight: Size = setting(
        256 * 1024**2,
        "Bytes of messages that a worker holds at once, at most: fetched, waiting and in hand. "
        "The gateway answers 503 above so much.",
        f"{SIZE}, 4 MiB to 4 GiB",
        shown="256MiB",
        ge=4 * 1024**2,
        le=4 * 1024**3,
    )

    # -- watching the monitor itself ---------------------------------------------------------

    http_listen: Annotated[str, AfterValidator(listen_or_off)] = setting(
        "",
        "Address of `/healthz` and `/metrics`. A worker of several roles is one process a role: the "
        "second listens on the next port.",
        "host:port; port 0 takes any free port; empty: off",
        shown="(off)",
    )
    telemetry_endpoint: Annotated[str, AfterValidator(http_url)] = setting(
        "",
        "OTLP/HTTP endpoint for the monitor's own traces and metrics: `/v1/traces` and "
        "`/v1/metrics` are appended. Never the monitor's own gateway: that is refused.",
        "http:// or https:// URL; empty: off",
        shown="(off)",
    )
    log_format: Literal["text", "json"] = setting(
        "text", "How processes log: lines for people, or a JSON object a line.", "text or json"
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "What workers and gateway log, on standard error.", "debug, info, warning or error"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.contracts is not None and not self.contracts.is_dir():
            raise DisagreementError("contracts", "no such directory")
        if self.idle_timeout < self.settle_delay:
            raise DisagreementError("idle_timeout", "shorter than AGENTTRUST_SETTLE_DELAY")
        if self.state_ttl < self.max_age + 3600:
            raise DisagreementError("state_ttl", "shorter than AGENTTRUST_MAX_AGE + 1h")
        if self.journal_retention < self.state_ttl + self.allowed_lag:
            raise DisagreementError(
                "journal_retention", "shorter than AGENTTRUST_STATE_TTL + AGENTTRUST_ALLOWED_LAG"
            )
        return self

    def shown(self) -> dict[str, str]:
        """Every setting as text that may be logged."""
        return {name: safe(name, getattr(self, name)) for name in type(self).model_fields}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v}' for k, v in self.shown().items())})"

    __str__ = __repr__


def load(**overrides: Any) -> Settings:
    """Reads the environment; `overrides` (command-line options) win, None counts as not given.

    Raises SettingsError.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            cause = problem.get("ctx", {}).get("error")
            disagree = isinstance(cause, DisagreementError)
            name = cause.field if isinstance(cause, DisagreementError) else str(problem["loc"][0])
            info = Settings.model_fields.get(name)
            if info is None:
                lines.append(f"{variable(name)}: there is no such setting")
                continue
            value = given.get(name, os.environ.get(variable(name), extra(info)["shown"]))
            parts = [str(cause)] if cause is not None else []
            if not disagree or name == "contracts":
                parts.append(f"allowed: {extra(info)['allowed']}")
            lines.append(f"{variable(name)}={safe(name, value)}: {'; '.join(parts)}")
        raise SettingsError(*lines) from None


def misspelt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """A line for each variable that looks like a setting but is none.

    Only near misses are reported: platforms put variables of their own under the same prefix.
    """
    known = [variable(name) for name in Settings.model_fields]
    lines = []
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            if near:
                lines.append(f"{safe('', name)} is no setting and is ignored; meant: {near[0]}?")
    return lines


def markdown() -> str:
    """docs/settings.md."""
    rows = [
        f"| `{variable(name)}` | `{extra(info)['shown']}` | {info.description} "
        f"| {extra(info)['allowed']} |"
        for name, info in Settings.model_fields.items()
    ]
    head = (
        "<!-- Generated by `make docs` from streams/settings.py. -->\n\n# Settings\n\n"
        "Environment variables, read once at start. A wrong value is refused with its name, its\n"
        "value and what is allowed; the program then exits with status 2. Passwords are never\n"
        "printed.\n\n| variable | default | meaning | allowed |\n| --- | --- | --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"
