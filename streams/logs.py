"""How processes log: on standard error, text or one JSON object a line.

What is logged is bounded and free of control characters, and no secret of the settings appears in
it, whoever wrote the line: a client library may quote a URL. Nothing of a span's content is logged;
dead letters are named by reason code and place.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit

from monitor.errors import plain
from streams.settings import Settings

LONGEST: Final = 2000
"""Characters of a message at most."""
_FRAMES: Final = 8
"""Innermost calls of a traceback that are told."""
_SHORTEST: Final = 4
"""A secret of fewer characters is in every line by chance."""
_LIBRARIES: Final = ("faust", "mode", "aiokafka", "kafka", "aiohttp")

_QUIET: Final = 15.0
"""Seconds between two equal lines of a library."""
_LINES: Final = 1000
"""Lines that are remembered at most."""


def secrets(settings: Settings) -> tuple[str, ...]:
    """What must not be logged: passwords of the settings, also as they stand in URLs."""
    found = set()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        text = value.get_secret_value() if hasattr(value, "get_secret_value") else value
        if not isinstance(text, str):
            continue
        if any(word in name for word in ("password", "secret", "token")):
            found.add(text)
        elif "://" in text:
            try:
                password = urlsplit(text).password
            except ValueError:
                continue
            found |= {password, unquote(password)} if password else set()
    return tuple(sorted((s for s in found if len(s) >= _SHORTEST), key=len, reverse=True))


class Safe(logging.Formatter):
    """One bounded line a record: `time level logger: message`."""

    def __init__(self, hidden: tuple[str, ...] = (), role: str = "") -> None:
        super().__init__()
        self._hidden = hidden
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_time(record)} {record.levelname} {record.name}: {self._message(record)}"
        error = self._error(record)
        return line if error is None else f"{line} [{error[0]} at {' < '.join(error[1])}]"

    def _message(self, record: logging.LogRecord) -> str:
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - a log line is no reason to fail
            text = str(record.msg)
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return plain(" ".join(text.split()), LONGEST)

    def _error(self, record: logging.LogRecord) -> tuple[str, list[str]] | None:
        """An error's type and where it came from, innermost first. Not its text, which may quote
        what it failed on; who logs it puts into the message what may be told."""
        if not record.exc_info or record.exc_info[0] is None:
            return None
        kind, _, trace = record.exc_info
        frames = traceback.extract_tb(trace)[-_FRAMES:]
        return kind.__name__, [f"{f.filename}:{f.lineno} {f.name}" for f in reversed(frames)]


class Json(Safe):
    """The same as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
        }
        if self._role:
            told["role"] = self._role
        error = self._error(record)
        if error is not None:
            told["error"], told["at"] = error
        return json.dumps(told, ensure_ascii=True)


class Sparing(logging.Filter):
    """Lets an equal line of a library through once in 15 seconds, with how many were left out:
    clients tell hundreds of times a second that a topic is gone. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _LIBRARIES:
            return True
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - the formatter copes with it
            return True
        now = self._clock()
        line = record.name, text
        since, left_out = self._told.get(line, (-_QUIET, 0))
        if now - since < _QUIET:
            self._told[line] = since, left_out + 1
            return False
        if len(self._told) >= _LINES:
            self._told.clear()
        self._told[line] = now, 0
        if left_out:
            record.msg, record.args = f"{text} ({left_out} times more meanwhile)", ()
        return True


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def to_stderr(settings: Settings, role: str = "") -> None:
    """Logging of this process from now on; `role` is told in every line of JSON."""
    kind = Json if settings.log_format == "json" else Safe
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(kind(secrets(settings), role))
    if settings.log_level != "debug":
        handler.addFilter(Sparing())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    if settings.log_level != "debug":  # they tell every step of their own
        for name in _LIBRARIES:
            logging.getLogger(name).setLevel(logging.WARNING)
