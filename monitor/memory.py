"""The ports in memory, and a fuse that blows at the n-th effect.

Part of the product: `agenttrust inspect` and golden cases run on them, and whoever writes a store
or a driver tests it against them. Values are kept as bytes, as in any real store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from monitor.contract import PolicySet
from monitor.label import Event
from monitor.ports import Loaded, SaveOutcome, Saving, StoreCorrupt, Wanted, Watermark
from monitor.reading import ParseRequest


class Crash(Exception):  # noqa: N818 - it plays a killed process, not an error
    """The process died here."""


@dataclass
class Fuse:
    """Every effect passes through it, before and after; it blows at the `at`-th passage, once."""

    at: int = -1
    count: int = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count - 1 == self.at:
            raise Crash(f"effect {self.at}")


@dataclass
class _Entry:
    head: bytes
    fields: dict[str, bytes] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)
    due: int | None = None


_entries = msgspec.msgpack.Decoder(_Entry)


class MemoryStore:
    """A `Store` in memory."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        self.fuse = fuse or Fuse()
        self.watermarks: dict[int, Watermark] = {}
        self.entries: dict[int, dict[str, _Entry]] = {}
        self.loads = 0
        self.content_loads = 0
        self.bytes_saved = 0

    async def load(
        self, partition: int, wanted: Mapping[str, Wanted]
    ) -> tuple[Watermark | None, dict[str, Loaded]]:
        self.fuse()
        self.loads += 1
        entries = self.entries.get(partition, {})
        found: dict[str, Loaded] = {}
        for trajectory, want in wanted.items():
            entry = entries.get(trajectory)
            if entry is None:
                found[trajectory] = Loaded(None, {}, {} if want.content else None)
            elif want.content:
                self.content_loads += 1
                found[trajectory] = Loaded(entry.head, dict(entry.fields), dict(entry.content))
            else:
                fields = {n: entry.fields[n] for n in want.fields if n in entry.fields}
                found[trajectory] = Loaded(entry.head, fields)
        return self.watermarks.get(partition), found

    async def save(
        self,
        partition: int,
        expected: Watermark | None,
        watermark: Watermark,
        changes: Mapping[str, Saving],
    ) -> SaveOutcome:
        self.fuse()
        have = self.watermarks.get(partition)
        if have != expected:
            ahead = have is not None and (expected is None or _order(have) > _order(expected))
            return "newer" if ahead else "older"
        self.watermarks[partition] = watermark
        entries = self.entries.setdefault(partition, {})
        for trajectory, change in changes.items():
            if change.fresh or change.head is None:
                entries.pop(trajectory, None)
            if change.head is None:
                continue
            entry = entries.setdefault(trajectory, _Entry(b""))
            entry.head, entry.due = change.head, change.due
            entry.fields.update(change.fields)
            entry.content.update(change.content)
            self.bytes_saved += len(change.head)
            for part in (change.fields, change.content):
                self.bytes_saved += sum(len(name) + len(data) for name, data in part.items())
        self.fuse()
        return "written"

    async def give_up(self, partition: int, why: str) -> NoReturn:
        self.watermarks.pop(partition, None)
        self.entries.pop(partition, None)
        raise StoreCorrupt(f"partition {partition}: {why}")

    async def due(self, partition: int, now: int, limit: int) -> Sequence[str]:
        self.fuse()
        due = sorted(
            (entry.due, trajectory)
            for trajectory, entry in self.entries.get(partition, {}).items()
            if entry.due is not None and entry.due <= now
        )
        return [trajectory for _, trajectory in due[:limit]]

    def take(self, partition: int, trajectory: str) -> bytes | None:
        """Removes a trajectory and gives its state for `put`; None when it is not there."""
        entry = self.entries.get(partition, {}).pop(trajectory, None)
        return None if entry is None else msgspec.msgpack.encode(entry)

    def put(self, partition: int, trajectory: str, state: bytes) -> None:
        """Brings back what `take` gave."""
        self.entries.setdefault(partition, {})[trajectory] = _entries.decode(state)


def _order(mark: Watermark) -> tuple[int, int, int]:
    return mark.epoch, mark.offset, mark.index


class MemoryPublisher:
    """A `Publisher` that keeps what it is given, in order."""

    def __init__(self, fuse: Fuse | None = None) -> None:
        self.fuse = fuse or Fuse()
        self.events: list[Event] = []
        self.requests: list[ParseRequest] = []

    async def publish(self, events: Sequence[Event], requests: Sequence[ParseRequest]) -> None:
        for event in events:
            self.fuse()
            self.events.append(event)
            self.fuse()
        for request in requests:
            self.fuse()
            self.requests.append(request)
            self.fuse()


class MemoryPolicySets:
    """`PolicySets` that are known from the start."""

    def __init__(self, *sets: PolicySet) -> None:
        self._sets = {policy_set.digest: policy_set for policy_set in sets}

    def add(self, policy_set: PolicySet) -> None:
        self._sets[policy_set.digest] = policy_set

    async def get(self, digest: str) -> PolicySet:
        return self._sets[digest]
