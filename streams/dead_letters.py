"""Dead letters: what could not be read is kept, told, and never tried again.

A failure of pure code on an input is deterministic, so repeating it would only hold up the others.
But when nothing can be read any more, the fault is not the data's: after a number of dead letters
in a row the worker stops instead of emptying a topic into the bin.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from typing import Final

from streams import metrics
from streams.errors import UserError
from streams.events import Headers, Message, percent
from streams.journal import partition_of

log = logging.getLogger(__name__)

_HEADERS: Final = 4096
"""Bytes of headers at most, left free below the topic's limit."""
_REASON: Final = 500


class NothingReadableError(UserError):
    """Too many dead letters in a row."""


class DeadLetters:
    """Writes dead letters for one worker and counts those in a row."""

    def __init__(self, topic: str, *, partitions: int, max_bytes: int, halt: int) -> None:
        self._topic = topic
        self._partitions = partitions
        self._room = max_bytes - _HEADERS
        self._halt = halt
        self._row = 0

    def good(self) -> None:
        """Something was read: the row is broken."""
        if self._row:
            self._row = 0
            metrics.put("dead_letters_in_a_row", 0)

    def letter(self, reason: str, source: str, raw: bytes, trajectory: str | None) -> Message:
        """The message for one dead letter. `source` is topic:partition:offset:place.

        Raises NothingReadableError when it is one too many in a row.
        """
        code = reason.partition(":")[0]
        self._row += 1
        metrics.put("dead_letters_in_a_row", self._row)
        if self._row >= self._halt:
            raise NothingReadableError(
                f"{self._row} dead letters in a row, the last from {source}: {code[:80]}; "
                "stopped (AGENTTRUST_DEAD_LETTER_HALT)"
            )
        if self._row == 1:
            log.warning("dead letter: %s (%s)", code[:80], source)
        metrics.count("dead_letters", reason=code)
        headers: Headers = [
            ("reason", percent(reason[:_REASON])),
            ("source", percent(source)),
            ("size", b"%d" % len(raw)),
            ("blake2b", blake2b(raw, digest_size=16).hexdigest().encode()),
        ]
        if trajectory is not None:
            headers.append(("trajectory", trajectory.encode()))
        if len(raw) > self._room:
            headers.append(("truncated", b"true"))
            raw = raw[: self._room]
        # Without a trajectory, spread them by where they came from: repeats land together.
        place = int(blake2b(source.encode(), digest_size=8).hexdigest(), 16) % self._partitions
        if trajectory is not None:
            place = partition_of(trajectory, self._partitions)
        key = None if trajectory is None else trajectory.encode()
        return Message(self._topic, place, key, raw, headers)
