"""The state of one trajectory while a batch is folded, and what is to be saved of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from monitor import recent
from monitor.bench import Bench
from monitor.counters import Counters
from monitor.head import Head, decode_head, encode_head, new_head, revive
from monitor.index import RECENT, span_digest
from monitor.model import Span
from monitor.ports import Loaded, Saving
from monitor.reading import ParseRequest
from monitor.recent import Recent

_decode_span = msgspec.msgpack.Decoder(Span).decode


class NeedContent(Exception):  # noqa: N818 - a request, not an error
    """The spans of this trajectory are needed to go on."""


class Work:
    """The state of one trajectory while a batch is folded, and what is to be saved of it."""

    def __init__(self, trajectory: str, loaded: Loaded, counters: Counters | None = None) -> None:
        self.trajectory = trajectory
        self.counters = Counters() if counters is None else counters
        self.head: Head | None = None if loaded.head is None else decode_head(loaded.head)
        self.fields: dict[str, bytes] = dict(loaded.fields)
        self.new_fields: dict[str, bytes] = {}
        self.new_content: dict[str, bytes] = {}
        self.changed = False
        self.fresh = False
        self.requests: list[ParseRequest] = []
        """What the last arrivals asked to be read; taken by who publishes."""
        self.recent: Recent | None = recent.decode(self.fields.pop(RECENT, None))
        self._kept = self.recent is not None
        self._spans: dict[str, Span] | None = None
        self._digests: dict[str, str] = {}
        self._revived = self.head is None
        if self.head is None:
            self._spans = {}
        elif loaded.content is not None:
            self.add_content(loaded)

    def add_content(self, loaded: Loaded) -> None:
        """All stored spans and index fields, below what this batch has added."""
        content = {**(loaded.content or {}), **self.new_content}
        self.fields = {**loaded.fields, **self.new_fields}
        self.fields.pop(RECENT, None)
        self._spans = {span_id: _decode_span(data) for span_id, data in content.items()}
        self._digests = {span_id: span_digest(data) for span_id, data in content.items()}

    def revive(self, bench: Bench) -> None:
        if not self._revived and self.head is not None:
            revive(self.head, bench)
            self._revived = True

    def begin(self, bench: Bench, time: int) -> Head:
        self.head = new_head(self.trajectory, bench, time)
        self._revived = True
        return self.head

    def forget(self) -> None:
        """Removes the trajectory; what arrives later begins it anew."""
        self.head, self.fresh, self.changed = None, True, True
        self.fields, self.new_fields, self.new_content = {}, {}, {}
        self._spans, self._digests = {}, {}
        self.recent, self._kept = None, False

    def expire(self, time: int, state_ttl: int) -> None:
        """State that began longer ago than its time to live counts as absent."""
        if self.head is not None and time - self.head.first > state_ttl:
            self.forget()

    @property
    def complete(self) -> bool:
        return self._spans is not None

    @property
    def spans(self) -> Mapping[str, Span]:
        if self._spans is None:
            raise NeedContent(self.trajectory)
        return self._spans

    @property
    def digests(self) -> Mapping[str, str]:
        return self._digests

    def store(self, span: Span, data: bytes, name: str) -> None:
        self.new_content[span.span_id] = data
        if self._spans is not None:
            self._spans[span.span_id] = span
            self._digests[span.span_id] = name

    def write_fields(self, fields: Mapping[str, bytes], *, whole: bool = False) -> None:
        """Writes those that differ; of the `whole` index also that the others are gone."""
        if whole:
            stale = {name: b"" for name, data in self.fields.items() if data and name not in fields}
            fields = {**fields, **stale}
        for name, data in fields.items():
            if self.fields.get(name, b"") != data:
                self.fields[name] = self.new_fields[name] = data

    def saving(self, due: int | None) -> Saving:
        head = None if self.head is None else encode_head(self.head)
        if self.recent is not None or self._kept:
            self.new_fields[RECENT] = b"" if self.recent is None else recent.encode(self.recent)
            self._kept = self.recent is not None
        return Saving(head, self.new_fields, self.new_content, due, fresh=self.fresh)

    def saved(self) -> None:
        """What was to be saved is."""
        self.new_fields, self.new_content = {}, {}
        self.changed = self.fresh = False

    def let_go(self) -> None:
        """Forgets the spans, which must be saved: what needs them asks for them again."""
        if self.head is not None and not self.new_content:
            self._spans = None
            self._digests = {}
