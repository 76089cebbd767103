"""The id that a model's provider gave a response, by which two spans tell of the same one.

Instrumentations that follow the conventions of OpenTelemetry write it as an attribute. Others keep
the provider's whole response, which begins with it, or LangChain's form of that:

    {"generations": [[{"message": {"kwargs": {"response_metadata": {"id": ..}, "id": ..}}}]],
     "llm_output": {"id": ..}}
"""

from __future__ import annotations

from typing import Final

from monitor.semconv.raw import RawSpan, first_label, label
from monitor.semconv.wrapped import Fields, Raw, fields, items, string

_TOLD: Final = ("gen_ai.response.id", "ai.response.id", "llm.response.id")
_KEPT: Final = (
    "output.value",
    "langfuse.observation.output",
    "gen_ai.completion",
    "response_data",
)
_IDS: Final = ("id", "response_id", "responseId")
_GENERATIONS: Final = "generations"
_OWN: Final = ("lc_", "run-")
"""How ids begin that LangChain gives its messages where the provider gave none."""

KEYS: frozenset[str] = frozenset({*_TOLD, *_KEPT})


def of(raw: RawSpan) -> str | None:
    """The response's id; None where the span tells none, or more than is kept of a text."""
    attributes = raw.attributes
    if (told := first_label(attributes, _TOLD)) is not None:
        return told
    for key in _KEPT:
        kept = attributes.get(key)
        if isinstance(kept, str) and kept[:1] == "{" and key not in raw.cut:
            found = fields(kept.encode("utf-8", "replace")) or {}
            return _of_langchain(found) if _GENERATIONS in found else _id(found)
    return None


def _id(found: Fields) -> str | None:
    for key in _IDS:
        if (told := label(string(found.get(key)))) is not None:
            return told
    return None


def _of_langchain(found: Fields) -> str | None:
    if (told := _id(_within(found, "llm_output"))) is not None:
        return told
    prompts = items(found[_GENERATIONS]) or []
    said = (items(prompts[0]) or [prompts[0]]) if len(prompts) == 1 else []
    if len(said) != 1:
        return None  # the answers to several prompts
    kept = _within(_within(fields(said[0]) or {}, "message"), "kwargs")
    if (told := _id(_within(kept, "response_metadata"))) is not None:
        return told
    own = _id(kept)
    return None if own is None or own.startswith(_OWN) else own


def _within(found: Fields, key: str) -> Fields:
    return fields(found.get(key, Raw())) or {}
