"""The last few spans of a run whose messages travel apart from its spans.

What log records tell of a turn changes that turn, and it arrives before or after the turn's span: never
at the end of the prefix. To derive all anew for each would make such a run cost the square of its
length. So from the first rebuild that knew log records the state is kept as it stood then, beside
the spans that have come since; a record, or a span that records tell of, is put among those, and
they extend that state again. Where it concerns what lies before, or one of them does not extend,
`monitor.rge.rebuild` does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from monitor.bench import Bench
from monitor.extend import append
from monitor.head import Head, carry, decode_head, encode_head, revive
from monitor.index import Fields, log_fields, names, span_digest
from monitor.logs import joined
from monitor.model import Span

WINDOW: Final = 16
"""Spans that are kept apart at most; then the older half becomes part of the state before them."""
BYTES: Final = 256_000
"""Bytes of them: the field is written for every batch that names the run."""


class Recent(msgspec.Struct):
    """Index field `k:`."""

    head: bytes
    """The head as it stood."""
    fields: dict[str, bytes] = {}
    """Index fields that the spans since name, as they stood;"""
    written: dict[str, bytes] = {}
    """those that were written since, as they stand now."""
    spans: dict[str, bytes] = {}
    """Encoded spans since, by id."""

    def add(self, span: Span, data: bytes, fields: Fields, new: Mapping[str, bytes]) -> Recent:
        """With a span that extends the prefix. `fields` as they stood before it, `new` ones after."""
        named = {name: fields.get(name, b"") for name in (*names(span), *new)}
        return Recent(
            self.head,
            {**named, **self.fields},
            {**self.written, **new},
            {**self.spans, span.span_id: data},
        )

    def put(
        self, head: Head, span: Span, data: bytes, fields: Fields, bench: Bench
    ) -> tuple[Head, dict[str, bytes]] | None:
        """Puts a span where it belongs among the others. Gives the head, and all index fields that
        are written since the state before them; None when that cannot be."""
        published = {f.call for standing in head.standings for f in standing.raised.values()}
        if not published.isdisjoint(self.spans):
            return None  # a call that was published under its span's id keeps it
        about = span.parent if span.kind == "log" else span.span_id
        if any(self.fields.get(n, fields.get(n)) for n in (f"s:{about}", f"l:{about}")):
            return None
        wider = self.add(span, data, fields, {})
        found = _replay(self.head, wider.fields, wider.spans, bench)
        if found is None:
            return None
        later, new = found
        carry(head, later)
        later.spans = head.spans + 1
        return later, {name: self.fields[name] for name in self.written} | new

    def trim(self, head: Head, bench: Bench) -> Recent:
        """The same with fewer spans apart, once there are too many."""
        if sum(map(len, self.spans.values())) > BYTES:
            return Recent(encode_head(head))
        if len(self.spans) <= WINDOW:
            return self
        spans = {span_id: _decode_span(data) for span_id, data in self.spans.items()}
        order = sorted(joined(spans).values(), key=_when)
        old = {span.span_id for span in order[: len(order) // 2]}
        early = {i for i, s in spans.items() if (s.parent if s.kind == "log" else i) in old}
        first = {i: data for i, data in self.spans.items() if i in early}
        found = _replay(self.head, self.fields, first, bench)
        if found is None:
            return Recent(encode_head(head))
        begun, new = found
        fields = {**self.fields, **new}
        written = {n: data for n, data in self.written.items() if fields.get(n, b"") != data}
        kept = {i: data for i, data in self.spans.items() if i not in first}
        needed = {n for i in kept for n in names(spans[i])} | written.keys()
        return Recent(encode_head(begun), {n: fields.get(n, b"") for n in needed}, written, kept)


_decode_span = msgspec.msgpack.Decoder(Span).decode
_decode = msgspec.msgpack.Decoder(Recent).decode
encode = msgspec.msgpack.Encoder().encode


def decode(data: bytes | None) -> Recent | None:
    return _decode(data) if data else None


def begin(head: Head, spans: Iterable[Span]) -> Recent | None:
    """After all was derived anew: the state to extend, if log records are among the spans."""
    if head.closed is not None or all(span.kind != "log" for span in spans):
        return None
    return Recent(encode_head(head))


def _when(span: Span) -> Any:
    return span.start, span.span_id


def _replay(
    before: bytes, fields: Fields, encoded: Mapping[str, bytes], bench: Bench
) -> tuple[Head, dict[str, bytes]] | None:
    """Extends a state by spans, in the order of their time, each with what records tell of it."""
    head = decode_head(before)
    revive(head, bench)
    overlay = dict(fields)
    new: dict[str, bytes] = {}
    spans = {span_id: _decode_span(data) for span_id, data in encoded.items()}
    digests = {span_id: span_digest(data) for span_id, data in encoded.items()}
    whole = joined(spans)
    for span in sorted(whole.values(), key=_when):
        if overlay.get(f"l:{span.parent}") and not overlay.get(f"s:{span.parent}"):
            return None
        more = append(head, span, digests.get(span.span_id, ""), overlay, bench)
        if more is None:
            return None
        overlay.update(more)
        new.update(more)
    for span_id in whole.keys() - spans.keys():
        new[f"s:{span_id}"] = b""  # it stands in for a span that is not known
    return head, new | log_fields((s for s in spans.values() if s.kind == "log"), digests)
