"""Waiting for a part of the world that fails: back off, say so sparingly, give up in the end.

A port that fails says nothing about the data, so nothing is judged or skipped meanwhile. Giving up
means that the worker exits and whoever supervises it starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from streams import metrics

log = logging.getLogger(__name__)

T = TypeVar("T")
PATIENCE: Final = 120.0
"""Seconds after which waiting is no longer better than a fresh start."""
SLOW: Final = 5.0
"""Seconds after which an answer that came all the same counts as an outage: clients wait for a lost
server themselves."""
_FIRST: Final = 0.05
_LONGEST: Final = 5.0
_QUIET: Final = 15.0
"""Seconds between two lines about the same outage."""


async def patiently(
    what: str,
    attempt: Callable[[], Awaitable[T]],
    errors: tuple[type[BaseException], ...],
    *,
    patience: float = PATIENCE,
) -> T:
    """Calls `attempt` until it raises none of `errors`; after `patience` seconds raises the last.

    `what` names the part in the log: "state store: GET failed". The attempt must be safe to repeat.
    """
    began = said = 0.0
    delay = _FIRST
    called = time.monotonic()
    while True:
        try:
            result = await attempt()
        except errors as error:
            now = time.monotonic()
            if not began:
                began = now
                metrics.count("outages", part=_part(what))
            if now - began > patience:
                log.error("%s: gave up after %.0f s", what, now - began)  # noqa: TRY400 - raised
                raise
            if not said or now - said > _QUIET:
                log.warning("%s: %s; waiting and trying again", what, words(error))
                said = now
            await asyncio.sleep(delay)
            delay = min(delay * 2, _LONGEST)
        else:
            if not began and time.monotonic() - called > SLOW:
                metrics.count("outages", part=_part(what))
                began = called
            if began:
                waited = time.monotonic() - began
                metrics.count("outage_seconds", waited, part=_part(what))
                log.warning("%s: works again after %.1f s", what, waited)
            return result


def _part(what: str) -> str:
    return "store" if what.startswith("state store") else "kafka"


def words(error: BaseException) -> str:
    """An error as one short line of printable text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)[:300]
