"""Grounding: is what the answer says supported by what tools returned (paper, section III,
Algorithm 2)?

Lexical and deterministic: identifiers, quotations and numbers of the answer must occur somewhere
in the results; a claimed action needs a successful call of a tool whose name hints at writing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from monitor.contract import Rules
from monitor.corpus import Corpus
from monitor.model import Call, Finding, Judgement, Severity, Struct
from monitor.rule import CLEAN, excerpt, listed

PHRASES: Final = (
    "updated successfully",
    "closed the ticket",
    "ticket has been closed",
    "has been updated",
    "has been closed",
    "has been deleted",
    "successfully deleted",
    "successfully created",
    "has been created",
    "has been enabled",
    "has been disabled",
    "has been approved",
    "has been rejected",
)
"""Claims of an action, in lower case."""

WRITE_HINTS: Final = (
    "update",
    "set",
    "close",
    "delete",
    "create",
    "enable",
    "disable",
    "approve",
    "reject",
)
"""Parts of the names of tools that act, in lower case."""

QUOTE_MIN: Final = 3
"""Characters from which on a quoted span is a claim."""

# Linear: every attempt starts at a word boundary and reads its own word only.
_ID: Final = re.compile(r"\b[A-Z]+-\d+\b", re.ASCII)
_QUANTITY: Final = re.compile(r"\b\d{2,}\b", re.ASCII)
_HINT: Final = re.compile("|".join(WRITE_HINTS))
_PHRASE: Final = re.compile("|".join(sorted(PHRASES, key=len, reverse=True)))
_CLAIMS: Final = {
    "ID": ("FABRICATED_ID", "an identifier in the answer stands in no result"),
    "QUOTE": ("FABRICATED_QUOTE", "a quotation in the answer stands in no result"),
    "QUANTITY": ("FABRICATED_QUANTITY", "a number in the answer stands in no result"),
    "ACTION": (
        "UNSUPPORTED_ACTION_CLAIMED",
        "the answer claims an action that no successful call backs",
    ),
}
"""Check and message of each kind of claim."""


class GroundingState(Struct, frozen=True, array_like=True):
    """Whether an executed, not failed call of a writing tool backs actions; whether one of unknown
    execution may.
    """

    backed: bool = False
    maybe: bool = False


class GroundingMonitor:
    """A contract's grounding as a monitor. Everything is found at the end, in the answer."""

    def __init__(self, rules: Rules, severities: dict[str, Severity] | None = None) -> None:
        fields = dict.fromkeys(rules.filtered_fields)
        self._filtered = tuple((name, name.lower()) for name in fields)
        self._severities = severities or {}
        named = {*rules.allowed_tools, *rules.expected_trajectory, *rules.parameter_rules}
        self._writes = {tool: writes(tool) for tool in named}

    def initial(self) -> GroundingState:
        return _INITIAL

    def step(self, state: GroundingState, call: Call) -> GroundingState:
        if state.backed or call.failed or call.execution == "requested":
            return state
        backs = self._writes.get(call.tool)
        if backs is None:
            backs = writes(call.tool)
        if not backs:
            return state
        return _BACKED if call.execution == "executed" else _MAYBE

    def judge(self, state: GroundingState, answer: str | None, corpus: Corpus) -> Judgement:
        """What the answer would violate if the run ended here; None is an answer that is blank.

        Evidence excerpts are withheld where a filtered field's value may be near: its name occurs
        in the answer or in a result.
        """
        if answer is None or not answer.strip():
            return Judgement(later=(self._blank(),))
        lowered = answer.lower()
        findings, shown = self._leaks(lowered, corpus) if self._filtered else ([], True)
        if "-" in answer:
            ids = corpus.missing(map(str.lower, _ID.findall(answer)))
            if ids:
                spans = _first(_ID, answer)
                findings += self._claims("ID", ids, spans, answer, shown=shown)
        if '"' in answer or "“" in answer:
            spans = {}
            for start, end in quotes(answer):
                spans.setdefault(answer[start:end], (start, end))
            absent = set(corpus.missing(map(str.lower, spans)))
            if absent:
                quoted = [claim for claim in spans if claim.lower() in absent]
                findings += self._claims("QUOTE", quoted, spans, answer, shown=shown)
        numbers = _QUANTITY.findall(answer)
        if numbers:
            numbers = corpus.missing(numbers)
            if numbers:
                spans = _first(_QUANTITY, answer)
                findings += self._claims("QUANTITY", numbers, spans, answer, shown=shown)
        undecided = corpus.exhausted()
        if not state.backed and (
            "has been" in lowered or "successfully" in lowered or "closed the" in lowered
        ):
            spans = _first(_PHRASE, lowered)
            if spans and state.maybe:
                undecided = (*undecided, "SAFETY_UNSUPPORTED_ACTION_CLAIMED")
            elif spans:
                findings += self._claims("ACTION", spans, spans, answer, shown=shown)
        if not findings and not undecided:
            return CLEAN
        return Judgement(later=listed((), findings), undecided=undecided)

    def _leaks(self, lowered: str, corpus: Corpus) -> tuple[list[Finding], bool]:
        """Filtered fields that the answer names; whether excerpts of it may be shown."""
        findings = []
        shown = True
        for name, field in self._filtered:
            if field in lowered:
                message = f"the answer names {name}"
                findings.append(self._finding("FILTERED_FIELD_LEAKED", name, message, None))
                shown = False
            elif field in corpus.text:
                shown = False
        return findings, shown

    def _claims(
        self,
        kind: str,
        claims: Iterable[str],
        spans: dict[str, tuple[int, int]],
        answer: str,
        *,
        shown: bool,
    ) -> list[Finding]:
        check, message = _CLAIMS[kind]
        return [
            self._finding(check, claim, message, excerpt(answer, *spans[claim]) if shown else None)
            for claim in claims
        ]

    def judge_blank(self, answer: str | None) -> Finding | None:
        """The first check alone."""
        return None if answer is not None and answer.strip() else self._blank()

    def _blank(self) -> Finding:
        return self._finding("EMPTY_ANSWER", "answer", "the answer is empty", None)

    def _finding(self, check: str, subject: str, message: str, evidence: str | None) -> Finding:
        code = f"SAFETY_{check}"
        return Finding(
            layer="grounding",
            code=code,
            subject=subject,
            message=message,
            severity=self._severities.get(code, "error"),
            evidence=evidence,
        )


_INITIAL: Final = GroundingState()
_BACKED: Final = GroundingState(backed=True)
_MAYBE: Final = GroundingState(maybe=True)


def writes(tool: str) -> bool:
    """Whether a tool's name hints at writing."""
    return _HINT.search(tool.lower()) is not None


def _first(pattern: re.Pattern[str], text: str) -> dict[str, tuple[int, int]]:
    """Where each thing that matches (in lower case) stands first, in order."""
    spans: dict[str, tuple[int, int]] = {}
    for match in pattern.finditer(text):
        spans.setdefault(match[0].lower(), match.span())
    return spans


def quotes(text: str) -> Iterator[tuple[int, int]]:
    """Spans inside quotes, of QUOTE_MIN characters or more. Quotes pair from left to right, each
    closing in its own style; one that never closes opens nothing.
    """
    position = 0
    straight = text.find('"')
    curly = text.find("“")
    while straight >= 0 or curly >= 0:
        if curly < 0 or 0 <= straight < curly:
            start = straight + 1
            end = text.find('"', start)
            if end < 0:
                straight = -1
                continue
        else:
            start = curly + 1
            end = text.find("”", start)
            if end < 0:
                curly = -1
                continue
        if end - start >= QUOTE_MIN:
            yield start, end
        position = end + 1
        if 0 <= straight < position:
            straight = text.find('"', position)
        if 0 <= curly < position:
            curly = text.find("“", position)
