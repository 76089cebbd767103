"""How values of settings are written, checked and shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import NoDecode

from monitor.errors import plain

PREFIX: Final = "AGENTTRUST_"
SECRET: Final = ("_password", "_command")
"""Ends of the names of settings whose values are never shown."""

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


def names(value: Any) -> Any:
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


def servers(value: str) -> str:
    for server in value.split(","):
        host, colon, port = server.strip().rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValueError("not a list of host:port")
    return ",".join(server.strip() for server in value.split(","))


def redis_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in {"redis", "rediss", "unix"} or not (parts.netloc or parts.path):
        raise ValueError("not a Redis URL")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError("the port is not a number below 65536") from None
    if parts.scheme != "unix" and not re.fullmatch(r"(/\d{0,4})?", parts.path):
        raise ValueError("what follows the port is not the number of a database")
    if {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)} - {"db"}:
        raise ValueError("its query may hold nothing but db; for the rest there are settings")
    return value


def listen(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ValueError("not host:port")
    return value


def listen_or_off(value: str) -> str:
    return listen(value) if value else value


def http_url(value: str) -> str:
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
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(names)]
TopicName = Annotated[str, AfterValidator(_topic)]

DURATION: Final = "a number with ms, s, m, h or d (plain: seconds)"
SIZE: Final = "a number with KiB, MiB, GiB, kB, MB or GB (plain: bytes)"
NONE: Final = "(none)"
"""How the absence of a value is shown."""
PATH: Final = "path of a PEM file"
TOPIC: Final = "up to 200 of the characters A-Z a-z 0-9 . _ -"


def setting(
    default: Any, purpose: str, allowed: str, *, shown: str | None = None, **bounds: Any
) -> Any:
    """A setting; `shown` is how docs write its default when `safe()` would not do."""
    return Field(
        default=default,
        description=purpose,
        validate_default=True,
        json_schema_extra={"allowed": allowed, "shown": shown or safe("", default)},
        **bounds,
    )


class DisagreementError(ValueError):
    """Two settings do not fit together; raised inside validation, reported under `field`."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(why)
        self.field = field


def safe(name: str, value: Any) -> str:
    """A value as text without secrets, control characters or undue length."""
    text = NONE if value is None else str(value)
    if name.endswith(SECRET) and text != NONE:
        return "***"
    if name.endswith(("_url", "_endpoint")):
        text = redacted(text)
    return plain(text, 80)


def variable(field: str) -> str:
    """Name of the environment variable of a field."""
    return PREFIX + field.upper()


def extra(info: FieldInfo) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
