"""A reader without a model: claims are what a rule finds in an answer, pointers are found by search.

It answers requests as an LLM would, so what it is measured by is how well *code* decides when every
pointer is as good as a search can make it. What it cannot find it points at nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from monitor.resolve import normal
from tests.llm_server import Asked, data

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_ITEM = re.compile(r"\b[A-Z]+-\d+\b|\b[A-Z0-9]*\d[A-Z0-9]*[A-Z][A-Z0-9]*\b|\b\d[\d,]*(?:\.\d+)?\b")
_MARKS = re.compile(r"^\s*(?:[-*#>|]+|\d+[.)])\s+")
"""Of lists and headings."""
_QUOTED = re.compile(r'"([^"\n]{3,200})"|“([^”\n]{3,200})”')
_ACTION = re.compile(
    r"\b(?:I|We)(?:'ve| have)? (?:also |now |just |successfully |went ahead and )*"
    r"(sent|booked|cancell?ed|updated|changed|issued|transferred|added|deleted|created|scheduled|paid"
    r"|refunded|removed|reset|put|let|reserved|shared|invited|posted|exchanged|returned)\b"
)
_STEM = 4
_CLAIMS = 60


def search(asked: Asked) -> list[dict[str, Any]]:
    """A script for `tests.llm_server`."""
    return [
        {"id": name, "claims": list(_claims(body["answer"], body["evidence"]))[:_CLAIMS]}
        if "answer" in body
        else {"id": name, "entities": [], "facts": []}
        for name, body in data(asked).items()
    ]


def _claims(answer: str, evidence: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    leaves = [(one, path, normal(text)) for one in evidence for path, text in _leaves(one)]
    for sentence in (_MARKS.sub("", part).strip() for part in _SENTENCE.split(answer)):
        if not sentence or sentence[-1] in ":?":
            continue
        items = [m[0] for m in _ITEM.finditer(sentence) if len(m[0]) > 1]
        for item in items:
            kind = "identifier" if re.search("[A-Za-z]", item) else "quantity"
            wanted = re.compile(rf"(?<!\w){re.escape(item.replace(',', '').lower())}(?!\w)")
            found = next(((o, p) for o, p, t in leaves if wanted.search(t.replace(",", ""))), None)
            yield _claim(kind, sentence, item, item, found)
        for one, two in _QUOTED.findall(sentence):
            words = one or two
            found = next(((o, p) for o, p, t in leaves if normal(words) in t), None)
            yield _claim("quotation", sentence, words, words, found)
        if done := _ACTION.search(sentence):
            stem = done[1][:_STEM].lower()
            call = next((o for o in reversed(evidence) if stem in str(o.get("tool")).lower()), None)
            yield _claim("action", sentence, done[1], sentence, call and (call, "$"))
        elif not items:
            yield _claim("other", sentence, sentence, sentence, _nearest(sentence, leaves))


def _claim(kind: str, subject: str, value: str, words: str, at: Any) -> dict[str, Any]:
    pointer = None if at is None else {"step": at[0]["step"], "path": at[1]}
    return {"kind": kind, "subject": subject[:200], "value": value[:900], "words": words[:900],
            "evidence": pointer, "confidence": 0.9}  # fmt: skip


def _nearest(sentence: str, leaves: list[tuple[Any, str, str]]) -> tuple[Any, str] | None:
    """The leaf that shares most words, if it shares a third of them."""
    wanted = set(re.findall(r"[^\W\d_]{4,}", sentence.lower()))
    best, place = 0, None
    for one, path, text in leaves:
        shared = sum(word in text for word in wanted)
        if shared > best:
            best, place = shared, (one, path)
    return place if 3 * best >= len(wanted) else None


def _leaves(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    stack = [("$", one.get("returned", one.get("error")))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            stack += [(f"{path}[{key!r}]", v) for key, v in value.items() if "'" not in key]
        elif isinstance(value, list):
            stack += [(f"{path}[{n}]", v) for n, v in enumerate(value)]
        elif value is not None:
            yield path, str(value)
