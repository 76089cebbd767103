"""Settings: environment variables `AGENTTRUST_*`, typed, checked before anything starts.

`load()` is the only way in. A wrong value raises `SettingsError`, whose lines name the variable,
the value (never a secret) and what is allowed. docs/settings.md is generated from this model.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from monitor.errors import plain
from streams.errors import UserError

PREFIX: Final = "AGENTTRUST_"

_SECONDS: Final = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES: Final = {
    "": 1,
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}


class SettingsError(UserError):
    """Settings that cannot be used, a line for each."""


# -- how values are written ------------------------------------------------------------------


def _quantity(value: Any, units: Mapping[str, float], what: str) -> float:
    if isinstance(value, int | float):
        return float(value)
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})\s*", str(value))
    if match is None or match[2] not in units:
        raise ValueError(f"not a {what}")
    return float(match[1]) * units[match[2]]


def parse_duration(value: Any) -> float:
    """Seconds of `5s`, `1.5m`, `24h`, `250ms` or a plain number of seconds."""
    return _quantity(value, _SECONDS, "duration")


def parse_size(value: Any) -> int:
    """Bytes of `8MiB`, `900kB` or a plain number of bytes."""
    return int(_quantity(value, _BYTES, "size"))


def _names(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def redacted(url: str) -> str:
    """The URL without its user name and password, and without its query, which may hold them."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")
        netloc = f"***@{host[2]}" if host[1] else host[2]
        return urlunsplit((parts.scheme, netloc, parts.path, "***" if parts.query else "", ""))
    except ValueError:
        return "***"


def _bootstrap(value: str) -> str:
    for server in value.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError("not a list of host:port")
    return ",".join(server.strip() for server in value.split(","))


def _redis_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"redis", "rediss", "unix"} or not (parts.netloc or parts.path):
        raise ValueError("not a Redis URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port is not a number below 65536") from None
    return value


def _listen(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError("not host:port")
    return value


def _listen_or_off(value: str) -> str:
    return _listen(value) if value else value


def _http_url(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query:
        raise ValueError("not an HTTP URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port is not a number below 65536") from None
    return value.rstrip("/")


def _topic(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value) or value in {".", ".."}:
        raise ValueError("not a topic name")
    return value


Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
TopicName = Annotated[str, AfterValidator(_topic)]

_DURATION: Final = "a number with ms, s, m, h or d (plain: seconds)"
_SIZE: Final = "a number with KiB, MiB, GiB, kB, MB or GB (plain: bytes)"
_TOPIC: Final = "up to 200 of the characters A-Z a-z 0-9 . _ -"


def _setting(
    default: Any, purpose: str, allowed: str, *, shown: str | None = None, **bounds: Any
) -> Any:
    """A setting; `shown` is how docs write its default when `str()` would not do."""
    return Field(
        default=default,
        description=purpose,
        validate_default=True,
        json_schema_extra={"allowed": allowed, "shown": str(default) if shown is None else shown},
        **bounds,
    )


class Settings(BaseSettings):
    """Everything that a deployment chooses. Durations are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # -- where the parts are -----------------------------------------------------------------
    # Everything that a client needs to reach Kafka is handed out by `kafka_args`, and to reach
    # Redis by `redis_url`: transport security and credentials belong there.

    kafka_bootstrap: Annotated[str, AfterValidator(_bootstrap)] = _setting(
        "127.0.0.1:9092", "Kafka brokers to ask first.", "host:port, several separated by commas"
    )
    redis_url: Annotated[str, AfterValidator(_redis_url)] = _setting(
        "redis://127.0.0.1:6379/0",
        "State store. A password in the URL is never printed.",
        "redis://, rediss:// or unix:// URL",
    )
    contracts: Path | None = _setting(
        None,
        "Directory of contracts. Without one every label is `unassessed`, reason `no_contract`.",
        "path of an existing directory",
        shown="(none)",
    )
    gateway_listen: Annotated[str, AfterValidator(_listen)] = _setting(
        "127.0.0.1:4318",
        "Address of the OTLP/HTTP gateway.",
        "host:port; port 0 takes any free port",
    )
    gateway_max_request: Size = _setting(
        20 * 1024**2,
        "Largest request that the gateway accepts, measured after decompression.",
        f"{_SIZE}, 64 KiB to 256 MiB",
        shown="20MiB",
        ge=64 * 1024,
        le=256 * 1024**2,
    )

    # -- topics ------------------------------------------------------------------------------

    spans_topic: TopicName = _setting("otlp_spans", "Topic with the agents' OTLP traces.", _TOPIC)
    logs_topic: TopicName = _setting("otlp_logs", "Topic with the agents' OTLP logs.", _TOPIC)
    topic_prefix: TopicName = _setting(
        "agenttrust", "First part of the names of all topics that the monitor writes.", _TOPIC
    )
    partitions: int = _setting(
        12,
        "Partitions of the journal. Fixed once topics exist: it decides where a trajectory lives.",
        "whole number from 1 to 1000",
        ge=1,
        le=1000,
    )
    replication: int = _setting(
        1,
        "Replicas of each topic that `topics create` makes; with 3 or more, writes need one fewer.",
        "whole number from 1 to 10",
        ge=1,
        le=10,
    )
    max_message_bytes: Size = _setting(
        1_000_000,
        "Largest message that the gateway writes to the spans topic; larger requests are split.",
        f"{_SIZE}, 64 KiB to 64 MiB",
        shown="1MB",
        ge=64 * 1024,
        le=64 * 1024**2,
    )
    journal_retention: Duration = _setting(
        7 * 86_400,
        "How long the journal is kept: at least STATE_TTL + ALLOWED_LAG.",
        f"{_DURATION}, 1h to 3650d",
        shown="7d",
        ge=3600,
        le=3650 * 86_400,
    )
    event_retention: Duration = _setting(
        30 * 86_400,
        "How long labels, violations and dead letters are kept.",
        f"{_DURATION}, 1h to 3650d",
        shown="30d",
        ge=3600,
        le=3650 * 86_400,
    )

    # -- what is monitored -------------------------------------------------------------------

    services: Names = _setting(
        (),
        "Services (`service.name`) whose spans are monitored; spans of others are dropped unread. "
        "Empty: all.",
        "names separated by commas",
        shown="(all)",
    )
    event_attributes: Names = _setting(
        (),
        "Resource attributes that events carry for routing, such as `deployment.environment.name`.",
        "attribute names separated by commas",
        shown="(none)",
    )
    evidence: Literal["plain", "hash", "off"] = _setting(
        "plain",
        "How the evidence excerpts (up to 200 characters) in violations are written.",
        "plain, hash or off",
    )

    # -- when a trajectory ends --------------------------------------------------------------

    settle_delay: Duration = _setting(
        5,
        "Quiet time after which a trajectory whose run is complete is closed.",
        f"{_DURATION}, 0s to 1h",
        shown="5s",
        ge=0,
        le=3600,
    )
    idle_timeout: Duration = _setting(
        300,
        "Quiet time after which any other trajectory is closed. At least SETTLE_DELAY.",
        f"{_DURATION}, 100ms to 24h",
        shown="300s",
        ge=0.1,
        le=86_400,
    )
    max_steps: int = _setting(
        2000,
        "Steps after which a trajectory is closed as `step_limit`.",
        "whole number from 1 to 100000",
        ge=1,
        le=100_000,
    )
    max_bytes: Size = _setting(
        8 * 1024**2,
        "Content after which a trajectory is closed as `byte_limit`.",
        f"{_SIZE}, 64 KiB to 1 GiB",
        shown="8MiB",
        ge=64 * 1024,
        le=1024**3,
    )
    max_age: Duration = _setting(
        86_400,
        "Age after which a trajectory is closed as `age_limit`.",
        f"{_DURATION}, 1m to 30d",
        shown="24h",
        ge=60,
        le=30 * 86_400,
    )
    state_ttl: Duration = _setting(
        48 * 3600,
        "Age after which a trajectory's state is forgotten. At least MAX_AGE + 1h.",
        f"{_DURATION}, 1h to 90d",
        shown="48h",
        ge=3600,
        le=90 * 86_400,
    )
    allowed_lag: Duration = _setting(
        24 * 3600,
        "How far behind the workers may fall before it is an alarm.",
        f"{_DURATION}, 1m to 30d",
        shown="24h",
        ge=60,
        le=30 * 86_400,
    )

    # -- workers -----------------------------------------------------------------------------

    session_timeout: Duration = _setting(
        10,
        "Silence after which Kafka gives a worker's partitions to another.",
        f"{_DURATION}, 3s to 5m",
        shown="10s",
        ge=3,
        le=300,
    )
    dead_letter_halt: int = _setting(
        100,
        "Consecutive dead letters after which a worker stops: the stream is not what it should be.",
        "whole number from 1 to 1000000",
        ge=1,
        le=1_000_000,
    )
    stall_timeout: Duration = _setting(
        150,
        "Records wait and none was handled for so long: `/healthz` fails, and the worker ends "
        "unless it has a batch in hand. Longer than the 2 minutes that an outage is waited for.",
        f"{_DURATION}, 5s to 1h",
        shown="150s",
        ge=5,
        le=3600,
    )
    in_flight: Size = _setting(
        64 * 1024**2,
        "Bytes of messages that a worker holds at once, at most: fetched, waiting and in hand. "
        "The gateway answers 503 above so much.",
        f"{_SIZE}, 4 MiB to 4 GiB",
        shown="64MiB",
        ge=4 * 1024**2,
        le=4 * 1024**3,
    )

    # -- watching the monitor itself ---------------------------------------------------------

    http_listen: Annotated[str, AfterValidator(_listen_or_off)] = _setting(
        "",
        "Address of `/healthz` and `/metrics`. A worker of several roles is one process a role: the "
        "second listens on the next port.",
        "host:port; port 0 takes any free port; empty: off",
        shown="(off)",
    )
    telemetry_endpoint: Annotated[str, AfterValidator(_http_url)] = _setting(
        "",
        "OTLP/HTTP endpoint for the monitor's own traces and metrics: `/v1/traces` and "
        "`/v1/metrics` are appended. Never the monitor's own gateway: that is refused.",
        "http:// or https:// URL; empty: off",
        shown="(off)",
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "How processes log: lines for people, or a JSON object a line.", "text or json"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "What workers and gateway log, on standard error.", "debug, info, warning or error"
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.contracts is not None and not self.contracts.is_dir():
            raise _DisagreementError("contracts", "no such directory")
        if self.idle_timeout < self.settle_delay:
            raise _DisagreementError("idle_timeout", "shorter than AGENTTRUST_SETTLE_DELAY")
        if self.state_ttl < self.max_age + 3600:
            raise _DisagreementError("state_ttl", "shorter than AGENTTRUST_MAX_AGE + 1h")
        if self.journal_retention < self.state_ttl + self.allowed_lag:
            raise _DisagreementError(
                "journal_retention", "shorter than AGENTTRUST_STATE_TTL + AGENTTRUST_ALLOWED_LAG"
            )
        return self

    def kafka_args(self) -> dict[str, Any]:
        """Arguments with which every aiokafka client of the project reaches the brokers."""
        return {"bootstrap_servers": self.kafka_bootstrap}

    def shown(self) -> dict[str, str]:
        """Every setting as text that may be logged."""
        return {name: _safe(name, getattr(self, name)) for name in type(self).model_fields}

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{k}={v}' for k, v in self.shown().items())})"

    __str__ = __repr__


class _DisagreementError(ValueError):
    """Two settings do not fit together; raised inside validation, reported under `field`."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


def _safe(name: str, value: Any) -> str:
    """A value as text without secrets, control characters or undue length."""
    text = str(value)
    if name.endswith(("_url", "_endpoint")):
        text = redacted(text)
    return plain(text, 80)


def variable(field: str) -> str:
    """Name of the environment variable of a field."""
    return PREFIX + field.upper()


def _extra(info: FieldInfo) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


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
            disagree = isinstance(cause, _DisagreementError)
            name = cause.field if isinstance(cause, _DisagreementError) else str(problem["loc"][0])
            info = Settings.model_fields.get(name)
            if info is None:
                lines.append(f"{variable(name)}: there is no such setting")
                continue
            value = given.get(name, os.environ.get(variable(name), _extra(info)["shown"]))
            parts = [str(cause)] if cause is not None else []
            if not disagree or name == "contracts":
                parts.append(f"allowed: {_extra(info)['allowed']}")
            lines.append(f"{variable(name)}={_safe(name, value)}: {'; '.join(parts)}")
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
                lines.append(f"{_safe('', name)} is no setting and is ignored; meant: {near[0]}?")
    return lines


def markdown() -> str:
    """docs/settings.md."""
    rows = [
        f"| `{variable(name)}` | `{_extra(info)['shown']}` | {info.description} "
        f"| {_extra(info)['allowed']} |"
        for name, info in Settings.model_fields.items()
    ]
    head = (
        "<!-- Generated by `make docs` from streams/settings.py. -->\n\n# Settings\n\n"
        "Environment variables, read once at start. A wrong value is refused with its name, its\n"
        "value and what is allowed; the program then exits with status 2. Passwords are never\n"
        "printed.\n\n| variable | default | meaning | allowed |\n| --- | --- | --- | --- |\n"
    )
    return head + "\n".join(rows) + "\n"
