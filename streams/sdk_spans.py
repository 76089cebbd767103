"""Spans of the OpenTelemetry SDK, in the agent's own process -> OTLP export requests of one trace.

What a span says may come from a model: text with half a surrogate pair or an integer beyond 64 bits
has no place in protobuf. The SDK's encoder leaves such an attribute out without a trace of it, or
refuses the whole batch; here it is mended, so that a call cannot be hidden in that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, Status

from streams.split import TRACES, cut_protobuf

_INT64: Final = range(-(2**63), 2**63)


def requests(spans: Sequence[ReadableSpan], limit: int) -> Iterator[tuple[bytes | None, int]]:
    """Serialized export requests of up to `limit` bytes, each with how many spans it holds.

    A single span that is too large loses its largest attributes, and says so in its dropped counts.
    None stands for spans that cannot be written.
    """
    try:
        request = encode_spans([_sound(span) for span in spans])
    except Exception:  # noqa: BLE001 - whatever it is, it must reach neither the agent nor the rest
        if len(spans) == 1:
            yield None, 1
        else:
            yield from _halves(spans, limit)
        return
    if request.ByteSize() <= limit:
        yield request.SerializeToString(), len(spans)
    elif len(spans) > 1:
        yield from _halves(spans, limit)
    else:
        yield next(iter(cut_protobuf(request, TRACES, limit).messages), None), 1


def _halves(spans: Sequence[ReadableSpan], limit: int) -> Iterator[tuple[bytes | None, int]]:
    middle = len(spans) // 2
    yield from requests(spans[:middle], limit)
    yield from requests(spans[middle:], limit)


# -- what protobuf cannot hold -----------------------------------------------------------------


def _sound(span: ReadableSpan) -> ReadableSpan:
    """The span, or a mended copy of one that protobuf cannot hold as it is."""
    told = [span.name, span.status.description, span.attributes]
    told += [part for event in span.events for part in (event.name, event.attributes)]
    told += [link.attributes for link in span.links]
    return span if _fits(told) else _Mended(span)


def _fits(value: Any) -> bool:
    match value:
        case str():
            return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)
        case int():
            return value in _INT64
        case Mapping():
            return all(_fits(key) and _fits(item) for key, item in value.items())
        case Sequence() if not isinstance(value, bytes):
            return all(map(_fits, value))
    return True


def _mended(value: Any) -> Any:
    """The same with U+FFFD for half a surrogate pair, and text for an integer that is too large."""
    match value:
        case str():
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        case int() if value not in _INT64:
            return hex(value)  # in decimal, a long one would be refused by Python
        case Mapping():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case Sequence() if not isinstance(value, bytes):
            return [_mended(item) for item in value]
    return value


class _Mended(ReadableSpan):
    def __init__(self, span: ReadableSpan) -> None:
        super().__init__(
            name=_mended(span.name),
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=_mended(span.attributes),
            events=[
                Event(_mended(e.name), _mended(e.attributes), e.timestamp) for e in span.events
            ],
            links=[Link(link.context, _mended(link.attributes)) for link in span.links],
            kind=span.kind,
            status=Status(span.status.status_code, _mended(span.status.description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=span.instrumentation_scope,
        )
        self._whole = span

    @property
    def dropped_attributes(self) -> int:
        return self._whole.dropped_attributes

    @property
    def dropped_events(self) -> int:
        return self._whole.dropped_events

    @property
    def dropped_links(self) -> int:
        return self._whole.dropped_links
