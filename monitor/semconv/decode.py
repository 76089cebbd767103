"""A message from its JSON: in one step when it keeps to the schema, else by its shape."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from monitor.model import Unseen
from monitor.semconv import chat, shapes, wrapped
from monitor.semconv.content import without_lone_surrogates
from monitor.semconv.parts import TextPart, UsualMessage, WireMessage, usual_role
from monitor.semconv.raw import label


class _Role(msgspec.Struct, gc=False):
    role: Any = None


UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What decoding JSON of unknown origin may raise."""

_PARTS: Final = b'"parts"'
_USUAL: Final = ("assistant", "tool", "user", "system")
_role: Final = msgspec.json.Decoder(_Role)
_usual: Final = msgspec.json.Decoder(UsualMessage)


def decode(raw: msgspec.Raw) -> tuple[WireMessage, Unseen | None]:
    """The message, and the evidence that some of it cannot be read."""
    if _PARTS not in bytes(raw):
        try:
            found = chat.read(raw)
        except UNREADABLE:
            found = None
        if found is not None:
            return found, None
    try:
        return _usual.decode(raw), None
    except UNREADABLE:
        return _decode_odd(raw)


def role_of(raw: msgspec.Raw) -> str:
    """The role alone."""
    try:
        told = _role.decode(raw).role
    except UNREADABLE:
        told = None
    if told in _USUAL:
        return told  # type: ignore[no-any-return]
    return _decode_odd(raw)[0].role if told is None else usual_role(label(told))


def _decode_odd(raw: msgspec.Raw) -> tuple[WireMessage, Unseen | None]:
    text = bytes(raw).decode("utf-8", "replace")
    if (mended := without_lone_surrogates(text)) is not text:
        return decode(msgspec.Raw(mended.encode()))
    found = wrapped.fields(text.encode())
    if found is None:
        said = wrapped.string(msgspec.Raw(text.encode()))
        if said is not None:
            return WireMessage("unknown", [TextPart(said)]), None
        return WireMessage("unknown", ()), "content_hidden"
    return shapes.read(found)
