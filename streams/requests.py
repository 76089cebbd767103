"""Parse requests on the wire: the value is msgpack `[version, request]`, the key the trajectory id,
the partition that of the journal, so that a worker's readings go where its requests came from.
"""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.reading import ParseRequest
from streams.events import Message
from streams.journal import is_trajectory, partition_of

VERSION: Final = 1


class _Value(msgspec.Struct, array_like=True):
    version: int
    request: ParseRequest


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Value)


class BadRequestError(ValueError):
    """Bytes that are no parse request; the text says why."""


class RequestWriter:
    """Turns requests into messages for the parse topic of one deployment."""

    def __init__(self, topic: str, partitions: int) -> None:
        self._topic = topic
        self._partitions = partitions

    def message(self, request: ParseRequest) -> Message:
        """The same request always gives the same message, byte for byte."""
        return Message(
            self._topic,
            partition_of(request.trajectory, self._partitions),
            request.trajectory.encode(),
            _encode(_Value(VERSION, request)),
        )


def decode(value: bytes | None) -> ParseRequest:
    """The request of a message. Raises BadRequestError."""
    try:
        found = _decoder.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequestError(f"not_a_parse_request: {error}") from None
    if found.version != VERSION:
        raise BadRequestError(f"not_a_parse_request: version {found.version}, {VERSION} is known")
    if not is_trajectory(found.request.trajectory):
        raise BadRequestError("bad_trajectory: not 32 lower-case hex digits")
    return found.request
