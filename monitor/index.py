"""Index fields: what is stored beside the head and looked up by the ids that a span names.

s:<span id>    digest and place of a known span
w:<span id>    a parent that known spans name and that is not known
c:<call id>    how a call with this id stands: open, settled, several calls, or before this
l:<span id>    log records tell of this span
r:<response>   when the last known span that names this response of a model ended
k:             the last spans of a run that log records tell of (monitor.recent)
o:<digest>, n:<tool>   an assistant message, by which a later turn's history is recognised
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from monitor.calls import LogicalCall
from monitor.model import Span, digest
from monitor.places import Place
from monitor.turns import marks, preceding


class Known(msgspec.Struct, array_like=True, gc=False):
    """Index field `s:`."""

    digest: str
    place: Place


def span_digest(data: bytes) -> str:
    """By which a known span's bytes are told from another's under the same id."""
    return digest(data, size=8)


encode_known = msgspec.msgpack.Encoder().encode


_decode_known = msgspec.msgpack.Decoder(Known).decode


Fields = Mapping[str, bytes]
RECENT: Final = "k:"


def known(fields: Fields, span_id: str) -> Known | None:
    data = fields.get(f"s:{span_id}")
    return _decode_known(data) if data else None


def names(span: Span) -> list[str]:
    """Index fields that `extend` may look at for a span."""
    wanted = [RECENT, f"s:{span.span_id}", f"w:{span.span_id}", f"l:{span.span_id}"]
    if span.parent is not None:
        wanted += (f"s:{span.parent}", f"w:{span.parent}", f"l:{span.parent}")
    if span.call_id is not None:
        wanted.append(f"c:{span.call_id}")
    for message in (*span.inputs, *span.outputs):
        wanted += (f"c:{call.call_id}" for call in message.calls if call.call_id)
        wanted += (f"c:{quoted.call_id}" for quoted in message.results if quoted.call_id)
    if span.kind in ("llm", "log"):
        wanted += preceding(span)
    if span.response is not None:
        wanted.append(f"r:{span.response}")
    return wanted


def turn_fields(span: Span) -> dict[str, bytes]:
    """Index fields by which a later turn's history recognises this one."""
    return {mark: b"1" for mark in marks(span.outputs) if not mark.startswith("c:")}


def response_end(span: Span, at: Place, fields: Fields) -> dict[str, bytes]:
    """Index field `r:`: spans that begin later are not told of the same response."""
    if span.kind != "llm" or span.response is None:
        return {}
    name = f"r:{span.response}"
    return {name: str(max(at.end, int(fields.get(name) or 0))).encode()}


def log_fields(logs: Iterable[Span], digests: Mapping[str, str]) -> dict[str, bytes]:
    """Index fields of what log records told: that it is known, and of which span it tells."""
    found: dict[str, bytes] = {}
    for log in logs:
        at = Place(log.span_id, "log", log.parent, log.start, log.start, log.end)
        found[f"s:{log.span_id}"] = encode_known(Known(digests[log.span_id], at))
        found[f"l:{log.parent}"] = b"1"
    return found


def waiting(before: bytes | None, child: Span) -> bytes:
    """Index field `w:`: the service whose spans wait for a parent, `*` for several or remote."""
    service = b"*" if child.remote else b"=" + (child.service or "").encode("utf-8", "replace")
    return service if not before or before == service else b"*"


def call_mark(call: LogicalCall, status: str) -> bytes:
    return f"{status}{'r' if call.requested else '-'}".encode()
