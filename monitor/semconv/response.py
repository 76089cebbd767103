"""The id that a model's provider gave a response, by which two spans tell of the same one.

Instrumentations that follow the conventions of OpenTelemetry write it as an attribute. Others keep
the provider's whole response, which begins with it, or LangChain's form of that:

    {"generations": [[{"message": {"kwargs": {"response_metadata": {"id": ..}, "id": ..}}}]],
     "llm_output": {"id": ..}}
"""

from __future__ import annotations

from typing import Final

import msgspec

from monitor.semconv.raw import RawSpan, first_label, label
from monitor.semconv.wrapped import Raw, fields, items, string

_TOLD: Final = ("gen_ai.response.id", "ai.response.id", "llm.response.id")
_KEPT: Final = (
    "output.value",
    "langfuse.observation.output",
    "gen_ai.completion",
    "response_data",
)
_OWN: Final = ("lc_", "run-")
"""How ids begin that LangChain gives its messages where the provider gave none."""

KEYS: frozenset[str] = frozenset({*_TOLD, *_KEPT})


class _Kept(msgspec.Struct, gc=False):
    """A response, of which nothing else is read."""

    id: Raw = Raw()
    response_id: Raw = Raw()
    responseId: Raw = Raw()  # noqa: N815 - as Gemini's API writes it
    generations: Raw = Raw()
    llm_output: Raw = Raw()


_decode: Final = msgspec.json.Decoder(_Kept).decode


def of(raw: RawSpan) -> str | None:
    """The response's id; None where the span tells none, or more than is kept of a text."""
    attributes = raw.attributes
    if (told := first_label(attributes, _TOLD)) is not None:
        return told
    for key in _KEPT:
        kept = attributes.get(key)
        if isinstance(kept, str) and kept[:1] == "{" and key not in raw.cut:
            try:
                found = _decode(kept)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return None
            if bytes(found.generations):
                return _of_langchain(found)
            return _label(found.id) or _label(found.response_id) or _label(found.responseId)
    return None


def _of_langchain(found: _Kept) -> str | None:
    if (told := _id(found.llm_output)) is not None:
        return told
    prompts = items(found.generations) or []
    said = (items(prompts[0]) or [prompts[0]]) if len(prompts) == 1 else []
    if len(said) != 1:
        return None  # the answers to several prompts
    kept = _within(_within(said[0], "message"), "kwargs")
    if (told := _id(_within(kept, "response_metadata"))) is not None:
        return told
    own = _id(kept)
    return None if own is None or own.startswith(_OWN) else own


def _within(raw: Raw, key: str) -> Raw:
    return (fields(raw) or {}).get(key, Raw())


def _id(raw: Raw) -> str | None:
    return _label(_within(raw, "id"))


def _label(raw: Raw) -> str | None:
    return label(string(raw))
