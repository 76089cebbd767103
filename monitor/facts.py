"""Facts that readings tell of tool results and of what the user said: further places for claims.

The reading of an answer may point at nothing where a result does say it: it was shown long results
only in part, or missed the place. The reading of that result names places of its own, each with what
it speaks of and what stands there. Code looks there, and a claim that points at nothing which can be
compared is `backed` when a place says it, by the rules that its own pointer would have been held to,
and is about the same thing. What code compared and found otherwise stays so.

What an agent itself said is no evidence, and backs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from monitor.model import Reading
from monitor.reading import Claim, Fact, Kept, Outcome, Pointer, Shown, Stated, StepKind
from monitor.resolve import leaves, normal, resolve, says, trail, words_of

FACTS: Final = 64
"""Facts kept of one trajectory: the state is written again for every batch."""
EXCERPT: Final = 200
"""Characters of a text that is kept to be compared later; what is longer is not."""

_OPEN: Final = ("unsupported", "undecided", "unchecked")
_NOT_STATED: Final = ("action", "absence")
"""A place in a result tells neither that a call was made nor that something is not there."""
_NAME: Final = re.compile(
    r"\b[A-Za-z][A-Za-z_-]{0,32}\d[\w-]{0,64}|(?<![\w.,])\d{4,40}\b", re.ASCII
)
"""What tells one thing from another of its kind."""

Source = tuple[StepKind, Shown, Sequence[Stated]]
"""A step that was read, as recorded, with what its reading states."""


def stated(reading: Reading, shown: Shown, answers: Sequence[str]) -> tuple[Stated, ...]:
    """Facts of a reading that stand where it says, and that one of the answers may rest on."""
    try:
        facts = [Fact.model_validate(fact) for fact in reading.facts]
    except ValidationError:
        return ()
    said = " ".join(normal(answer) for answer in answers)
    found = []
    for fact in facts:
        if max(len(fact.subject), len(fact.value), len(fact.path)) > EXCERPT:
            continue
        value = normal(fact.value)
        if value and _touches(value, said) and any(value in normal(t) for t in _there(shown, fact)):
            found.append(Stated(fact.subject, fact.value, fact.path))
    return tuple(dict.fromkeys(found))


def left_open(claim: Claim, outcome: Outcome) -> Outcome:
    """The outcome of a claim, with what it takes to look for it in facts that come later."""
    longest = max(map(len, (claim.subject, claim.value, claim.words)))
    if outcome.decided in _OPEN and claim.kind not in _NOT_STATED and longest <= EXCERPT:
        outcome.subject, outcome.value = claim.subject, claim.value
    return outcome


def back(kept: Kept, sources: Iterable[Source], evidence: Sequence[Shown]) -> bool:
    """Marks the claims of a reading that facts back. Whether that changed anything."""
    before = [outcome.backed for outcome in kept.outcomes]
    known = list(sources)
    for outcome in kept.outcomes:
        if outcome.value:
            by = {kind for kind, shown, facts in known if _says(outcome, shown, facts, evidence)}
            outcome.backed = tuple(sorted(by))
    return before != [outcome.backed for outcome in kept.outcomes]


# -- whether a place says it -----------------------------------------------------------------


def _says(
    outcome: Outcome, shown: Shown, facts: Sequence[Stated], evidence: Sequence[Shown]
) -> bool:
    for fact in facts:
        claim = Claim(
            kind=outcome.kind, subject=outcome.subject, value=outcome.value, words=outcome.words,
            evidence=Pointer(step=shown.step, path=fact.path), confidence=outcome.confidence,
        )  # fmt: skip
        named = words_of(claim.value)
        if not (says(claim, fact.value) or (named and named <= words_of(fact.value))):
            continue
        if _same_thing(claim, fact, shown) and resolve(claim, evidence, whole=True) is None:
            return True
    return False


def _same_thing(claim: Claim, fact: Stated, shown: Shown) -> bool:
    """Whether a place is about what the claim is about.

    The nearest object around the place that names anything by an identifier must name all that the
    claim names; where nothing does, the call's arguments; in plain text the fact's own subject.
    """
    wanted = _names(f"{claim.words} {claim.subject}") - _names(claim.value)
    if not wanted:
        return bool(words_of(claim.subject) & words_of(f"{fact.subject} {fact.path}"))
    way = trail(shown, fact.path) or []
    for around in reversed(way[:-1]):
        if isinstance(around, dict) and (there := _names(" ".join(leaves(around)))):
            return wanted <= there
    if len(way) > 1 and (there := _names(shown.arguments or "")):
        return wanted <= there
    return wanted <= _names(fact.subject)


def _names(text: str) -> set[str]:
    return {name.lower() for name in _NAME.findall(text)}


def _there(shown: Shown, fact: Fact) -> list[str]:
    """The text that stands at a fact's place; none when that is no single value."""
    way = trail(shown, fact.path)
    leaf: Any = None if way is None else way[-1]
    if leaf is None or isinstance(leaf, dict | list):
        return []
    return [leaf if isinstance(leaf, str) else msgspec.json.encode(leaf).decode()]


def _touches(value: str, said: str) -> bool:
    """Whether a text that was said may speak of a value: it shares a word or a number with it."""
    if value in said:
        return True
    return any(part in said for part in re.findall(r"[^\W\d_]{4,6}|\d+", value))
