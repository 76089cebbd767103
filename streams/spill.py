"""A store for replays: what is open in memory, what is closed in a file.

A closed trajectory is rarely named again, but may be for as long as its state lives. So a replay's
memory grows with the trajectories that are open at a time, not with those that it has seen.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from monitor.memory import MemoryStore
from monitor.ports import Loaded, SaveOutcome, Saving, Wanted, Watermark

_EVERY: Final = 3_600_000
"""Milliseconds of journal time between two looks at what has outlived its time."""


def scratch(path: Path) -> sqlite3.Connection:
    """A database that nobody reads after a crash: nothing is synced, nothing is ever committed."""
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("PRAGMA cache_size = -16384")
    return database


class SpillingStore(MemoryStore):
    """State during a replay.

    `path` is a file that does not exist yet; whoever made its folder removes it. `state_ttl` is in
    milliseconds: state that was last named longer ago counts as absent in the fold, and is dropped.
    """

    def __init__(self, path: Path, state_ttl: int) -> None:
        super().__init__()
        self.state_ttl = state_ttl
        self._file = scratch(path)
        self._file.execute(
            "CREATE TABLE closed (partition INT, trajectory TEXT, time INT, state BLOB,"
            " PRIMARY KEY (partition, trajectory))"
        )
        self._returned: dict[int, set[str]] = {}
        self._newest = self._swept = 0

    @property
    def open(self) -> int:
        """Trajectories that are not closed."""
        return sum(map(len, self.entries.values()))

    async def load(
        self, partition: int, wanted: Mapping[str, Wanted]
    ) -> tuple[Watermark | None, dict[str, Loaded]]:
        known = self.entries.get(partition, {})
        for trajectory in wanted:
            if trajectory not in known:
                self._bring_back(partition, trajectory)
        return await super().load(partition, wanted)

    def _bring_back(self, partition: int, trajectory: str) -> None:
        query = "SELECT state FROM closed WHERE partition = ? AND trajectory = ?"
        row = self._file.execute(query, (partition, trajectory)).fetchone()
        if row is not None:
            self.put(partition, trajectory, row[0])
            self._returned.setdefault(partition, set()).add(trajectory)

    async def save(
        self,
        partition: int,
        expected: Watermark | None,
        watermark: Watermark,
        changes: Mapping[str, Saving],
    ) -> SaveOutcome:
        known = self.entries.get(partition, {})
        for trajectory in changes:  # an earlier save of the same batch may have closed it
            if trajectory not in known:
                self._bring_back(partition, trajectory)
        outcome = await super().save(partition, expected, watermark, changes)
        if outcome != "written":
            return outcome
        forgotten = [(partition, name) for name, change in changes.items() if change.head is None]
        query = "DELETE FROM closed WHERE partition = ? AND trajectory = ?"
        self._file.executemany(query, forgotten)
        closed = {name for name, change in changes.items() if change.due is None}
        for name in self._returned.pop(partition, set()) - changes.keys():
            self.entries[partition].pop(name, None)
        rows = [
            (partition, name, watermark.timestamp, state)
            for name in closed
            if (state := self.take(partition, name)) is not None
        ]
        self._file.executemany("INSERT OR REPLACE INTO closed VALUES (?, ?, ?, ?)", rows)
        self._sweep(partition, watermark.timestamp)
        return outcome

    def _sweep(self, partition: int, now: int) -> None:
        self._newest = max(self._newest, now)
        if self._newest - self._swept < _EVERY:
            return
        self._swept = self._newest
        # An hour more than its time, because the clocks of brokers differ a little.
        absent = self._newest - self.state_ttl - _EVERY
        self._file.execute("DELETE FROM closed WHERE time < ?", (absent,))
        entries = self.entries.get(partition, {})
        for name in [n for n, e in entries.items() if e.due is not None and e.due < absent]:
            del entries[name]

    def close(self) -> None:
        self._file.close()
