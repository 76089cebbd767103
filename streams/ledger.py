"""What a replay gives and what was published, side by side on disk, for one partition.

Both may be far more than memory holds: the topics keep weeks. So each goes into a table of a
scratch database as it is read, and their difference is a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from monitor.label import Event, Label
from monitor.model import FOLD_VERSION, digest
from streams.events import Headers
from streams.spill import scratch

Kind = Literal["missing", "extra", "changed"]

_TABLES: Final = """
CREATE TABLE outside (trajectory TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE arrived (trajectory TEXT PRIMARY KEY, time INT, outside INT) WITHOUT ROWID;
CREATE TABLE expected (
    id TEXT PRIMARY KEY, digest TEXT, time INT, type TEXT, trajectory TEXT, said TEXT, unsure INT
) WITHOUT ROWID;
CREATE TABLE published (
    id TEXT PRIMARY KEY, digest TEXT, time INT, type TEXT, trajectory TEXT, said TEXT,
    place TEXT, version INT, astray INT, other TEXT
) WITHOUT ROWID;
CREATE TABLE excused (trajectory TEXT PRIMARY KEY, why TEXT) WITHOUT ROWID;
"""

# `other` is the place of a copy that is not byte for byte the first one. What has arrivals outside
# the range was not folded, so nothing about it can be missing, extra or changed.
_DIFFERENCES: Final = """
CREATE TEMP VIEW difference AS
SELECT 'changed' AS kind, p.id, p.type, p.trajectory, p.said, p.time,
       CASE WHEN p.other IS NULL THEN p.place ELSE p.other END AS place
  FROM published p JOIN expected e USING (id)
 WHERE p.digest != e.digest OR p.other IS NOT NULL
UNION ALL
SELECT 'missing', e.id, e.type, e.trajectory, e.said, e.time, ''
  FROM expected e LEFT JOIN published p USING (id)
 WHERE p.id IS NULL AND NOT e.unsure
UNION ALL
SELECT 'extra', p.id, p.type, p.trajectory, p.said, p.time, p.place
  FROM published p LEFT JOIN expected e USING (id)
 WHERE e.id IS NULL
   AND (p.astray OR p.time BETWEEN (SELECT first FROM range) AND (SELECT last FROM range)
        AND p.trajectory NOT IN (SELECT trajectory FROM outside));
"""


class Difference(msgspec.Struct, frozen=True):
    """An event that is not on the topics as the journal gives it. `time` is milliseconds."""

    kind: Kind
    id: str
    type: str
    trajectory_id: str
    said: str
    """Contract, and a label's revision or a violation's code and state."""
    time: int
    place: str
    """Topic, partition and offset, for what is on a topic."""


def fingerprint(
    key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]
) -> str:
    """Digest of a message in every detail that a subscriber sees."""
    parts: list[bytes | str] = [key or b"", value or b""]
    for name, raw in headers:
        parts += (name, raw)
    return digest(*parts)


def said(event: Event) -> str:
    """What an event says, in a few words and without what only a reader of the whole needs."""
    body = event.body
    contract = (
        "no contract" if body.contract is None else f"{body.contract.name} v{body.contract.version}"
    )
    if isinstance(body, Label):
        return f"{contract} revision {body.revision} {body.verdict} {body.phase}"
    return f"{contract} {body.code} {body.state}"


class Ledger:
    """The tables of one partition. Times are milliseconds of journal time."""

    def __init__(self, path: Path) -> None:
        self._db = scratch(path)
        self._db.executescript(_TABLES)
        self._looked_back = False

    def close(self) -> None:
        self._db.close()

    # -- filling -----------------------------------------------------------------------------

    def outside(self, trajectories: Iterable[str]) -> None:
        """These have arrivals before the range."""
        rows = ((name,) for name in trajectories)
        self._db.executemany("INSERT OR IGNORE INTO outside VALUES (?)", rows)
        self._looked_back = True

    def arrived(self, trajectories: Mapping[str, int]) -> set[str]:
        """Notes arrivals inside the range, by trajectory with their time; gives the trajectories
        that began before it."""
        before: set[str] = set()
        if self._looked_back:
            query = "SELECT 1 FROM outside WHERE trajectory = ?"
            before = {name for name in trajectories if self._db.execute(query, (name,)).fetchone()}
        rows = ((name, time, name in before) for name, time in trajectories.items())
        self._db.executemany("INSERT OR IGNORE INTO arrived VALUES (?, ?, ?)", rows)
        return before

    def holds(self, trajectory: str) -> bool:
        """Whether a trajectory has arrivals in the range, and none before it."""
        query = "SELECT 1 FROM arrived WHERE trajectory = ? AND NOT outside"
        return self._db.execute(query, (trajectory,)).fetchone() is not None

    def expect(self, events: Iterable[tuple[Event, Headers, bytes]], *, unsure: bool) -> None:
        """What the journal gives. `unsure`: the workers may not have published it yet."""
        rows = (
            (
                event.id,
                fingerprint(event.trajectory.encode(), value, headers),
                event.time,
                event.type,
                event.trajectory,
                said(event),
                unsure,
            )
            for event, headers, value in events
        )
        self._db.executemany("INSERT OR IGNORE INTO expected VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def publish(self, events: Iterable[tuple[Event, str, str, bool]]) -> None:
        """What is on the topics: each event with the digest of its message, its place, and whether
        that is a partition where it does not belong."""
        rows = (
            (
                event.id,
                print_,
                event.time,
                event.type,
                event.trajectory,
                said(event),
                place,
                event.body.fold_version if isinstance(event.body, Label) else None,
                astray,
            )
            for event, print_, place, astray in events
        )
        self._db.executemany(
            "INSERT INTO published VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL) ON CONFLICT (id) DO UPDATE"
            " SET other = coalesce(other, iif(digest = excluded.digest, NULL, excluded.place))",
            rows,
        )

    # -- asking ------------------------------------------------------------------------------

    def compare(self, first: int, last: int) -> None:
        """From now on published events of this time are expected to come from the range."""
        self._db.execute("CREATE INDEX whose ON published (trajectory, time)")
        self._db.execute("CREATE TABLE range AS SELECT ? AS first, ? AS last", (first, last))
        self._db.executescript(_DIFFERENCES)

    def unexplained(self) -> set[str]:
        """Trajectories with an extra event."""
        return {name for (name,) in self._db.execute(
            "SELECT DISTINCT trajectory FROM difference WHERE kind = 'extra'"
        )}  # fmt: skip

    def unkept(self, type_: str, until: int) -> int:
        """Takes out what is missing because the topic no longer keeps events of its time."""
        return self._db.execute(
            "UPDATE expected SET unsure = 2 WHERE type = ? AND time <= ? AND NOT unsure"
            " AND id NOT IN (SELECT id FROM published)",
            (type_, until),
        ).rowcount

    def excuse_cut(self, start: int, until: int) -> None:
        """Takes out differing trajectories of which retention may have removed the beginning: of
        those some event is older than the log's first record (`start`), or their first arrival in
        it comes so soon (`until`) that they may have been under way."""
        self._db.execute(
            "INSERT OR IGNORE INTO excused SELECT DISTINCT trajectory, 'it began, or may have begun,"
            " before what retention has left' FROM difference d"
            " WHERE EXISTS (SELECT 1 FROM published p"
            "               WHERE p.trajectory = d.trajectory AND p.time < ?)"
            " OR EXISTS (SELECT 1 FROM arrived a WHERE a.trajectory = d.trajectory AND a.time <= ?)",
            (start, until),
        )

    def excuse_versions(self) -> None:
        """Takes out differing trajectories that another version of the fold has judged."""
        self._db.execute(
            "INSERT OR IGNORE INTO excused SELECT d.trajectory, 'it was judged by version '"
            " || p.version || ' of the fold, this program is version ' || ?1"
            " FROM difference d JOIN published p ON p.trajectory = d.trajectory"
            " WHERE p.version != ?1",
            (FOLD_VERSION,),
        )

    def not_compared(self) -> Iterator[tuple[str, str]]:
        """Trajectories in the range that are not compared, each with the reason."""
        yield from self._db.execute(
            "SELECT trajectory, 'it began before the range' FROM arrived WHERE outside"
            " UNION ALL SELECT trajectory, why FROM excused ORDER BY 2, 1"
        )

    def differences(self) -> Iterator[Difference]:
        """By trajectory, in order of time."""
        rows = self._db.execute(
            "SELECT kind, id, type, trajectory, said, time, place FROM difference"
            " WHERE trajectory NOT IN (SELECT trajectory FROM excused)"
            " ORDER BY trajectory, time, kind, id"
        )
        yield from (Difference(*row) for row in rows)

    def count(self, what: Literal["alike", "late", "older", "arrived", "compared"]) -> int:
        """`alike`: events that are as published; `late`: that are not published yet; `older`:
        published ones from before the range; `arrived` and `compared`: trajectories."""
        query = {
            "alike": "SELECT count(*) FROM published p JOIN expected e USING (id, digest)"
            " WHERE p.other IS NULL",
            "late": "SELECT count(*) FROM expected WHERE unsure = 1"
            " AND id NOT IN (SELECT id FROM published)",
            "older": "SELECT count(*) FROM published WHERE time < (SELECT first FROM range)",
            "arrived": "SELECT count(*) FROM arrived",
            "compared": "SELECT count(*) FROM arrived WHERE NOT outside"
            " AND trajectory NOT IN (SELECT trajectory FROM excused)",
        }[what]
        return int(self._db.execute(query).fetchone()[0])
