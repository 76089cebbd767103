"""What is to be read of a settled prefix: requests to the role `parse`.

A pure function of prefix and contracts: the same prefix gives the same requests, with the same ids.
The content of an answer covers the evidence that it is held against, so that a result which comes
late supersedes a reading that did not know it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from monitor.bench import Bench, Judge
from monitor.contract import Contract
from monitor.head import Head, LastAnswer, Standing
from monitor.model import digest
from monitor.prefix import Prefix, Request
from monitor.reading import (
    ARGUMENTS_LIMIT,
    EVIDENCE_LIMIT,
    RESULT_LIMIT,
    TEXT_LIMIT,
    ParseRequest,
    Shown,
    StepKind,
    parser_digest,
    step_name,
)

STEPS_LIMIT: Final = 100
"""Tool results and messages of one trajectory that are read at most, the last ones."""
_FILTERED: Final = "[filtered]"
_DEPTH: Final = 64
_encode = msgspec.msgpack.Encoder().encode


def asks(contract: Contract, trajectory: str) -> bool:
    """Whether a contract wants steps of this trajectory read."""
    semantic = contract.semantic
    if semantic.mode == "off":
        return False
    return semantic.sample >= 1 or int(digest(trajectory, size=8), 16) < semantic.sample * 2**64


def answer_of(head: Head, standing: Standing, judge: Judge) -> LastAnswer | None:
    """The answer that a contract judges, if it can be read as it stands."""
    answer = standing.answer if judge.one_agent else head.answer
    return answer if answer is not None and answer.shown and answer.follows else None


def step_of(head: Head, answer: LastAnswer) -> str:
    own = head.answer is not None and head.answer.span_id == answer.span_id
    return "answer" if own else f"answer:{answer.span_id}"


def requests(prefix: Prefix, head: Head, bench: Bench, time: int) -> list[ParseRequest]:
    """One request per step content and parser that some bound contract asks for."""
    if head.limit is not None:
        return []
    found: dict[str, ParseRequest] = {}
    evidence: list[Shown] | None = None
    shown: tuple[Shown, ...] = ()
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        contract = judge.contract
        if not standing.bound or not asks(contract, head.trajectory):
            continue
        if evidence is None:
            evidence = shown_steps(prefix, bench)
            shown = bounded(evidence)
        for type_, step, content, text in _texts(prefix, head, standing, judge, evidence):
            own = shown if type_ == "answer" else ()
            cut = ["text"] if len(text) > TEXT_LIMIT else []
            if type_ == "answer" and (len(shown) < len(evidence) or any(s.cut for s in shown)):
                cut.append("evidence")
            request = ParseRequest(
                trajectory=head.trajectory,
                step=step,
                type=type_,
                content=content,
                parser=parser_digest(contract.semantic.rubric),
                text=text[:TEXT_LIMIT],
                evidence=own,
                rubric=contract.semantic.rubric,
                service=head.service,
                cut=tuple(cut),
                asked=time,
            )
            found.setdefault(request.id, request)
    return list(found.values())


def _texts(
    prefix: Prefix, head: Head, standing: Standing, judge: Judge, evidence: Sequence[Shown]
) -> Iterable[tuple[StepKind, str, str, str]]:
    """Type, step, content digest and text of what one contract asks for."""
    wanted = judge.contract.semantic.steps
    answer = answer_of(head, standing, judge)
    texts = {turn.span.span_id: turn.text for turn in prefix.turns if turn.text}
    if "answer" in wanted and answer is not None:
        text = texts.get(answer.span_id) or ""
        if text.strip():
            yield "answer", step_of(head, answer), content_of(text, evidence), text
    others: list[tuple[StepKind, str, str]] = []
    if "tool_result" in wanted:
        results = {s.step: s.result for s in evidence if s.tool is not None and s.result}
        others += [
            ("tool_result", call.key, results[call.step])
            for call in prefix.calls
            if call.step in results and judge.judges(call.agent)
        ]
    if "message" in wanted:
        others += [
            ("message", user_step(request), request.text)
            for request in prefix.requests
            if judge.judges(request.agent)
        ]
        others += [
            ("message", turn.span.span_id, turn.text)
            for turn in prefix.turns
            if turn.text
            and judge.judges(turn.place.agent)
            and (answer is None or turn.span.span_id != answer.span_id)
        ]
    for type_, step, text in others[-STEPS_LIMIT:]:
        yield type_, step, digest(text, size=8), text


def user_step(request: Request) -> str:
    """How what the user said is named; the turn that shows it may say something too."""
    return f"user:{request.span_id}"


def read_steps(
    prefix: Prefix, evidence: Sequence[Shown], trajectory: str, parser: str
) -> dict[str, tuple[StepKind, Shown]]:
    """Results, and what the user said, as they stand, by the names that their readings have."""
    keys: dict[int, tuple[StepKind, str]] = {
        call.step: ("tool_result", call.key) for call in prefix.calls
    }
    keys |= {request.step: ("message", user_step(request)) for request in prefix.requests}
    found = {}
    for shown in evidence:
        if shown.step in keys and shown.result:
            kind, step = keys[shown.step]
            name = step_name(trajectory, step, digest(shown.result, size=8), parser)
            found[name] = kind, shown
    return found


def answers(prefix: Prefix, head: Head) -> list[str]:
    """Texts of the answers that are judged as the prefix stands."""
    wanted = {
        a.span_id for a in (head.answer, *(s.answer for s in head.standings)) if a is not None
    }
    return [t.text for t in prefix.turns if t.text and t.span.span_id in wanted]


def content_of(text: str, evidence: Sequence[Shown]) -> str:
    """Digest of an answer and of what it is held against."""
    return digest(text, _encode(evidence), size=8)


def shown_steps(prefix: Prefix, bench: Bench) -> list[Shown]:
    """Everything that a claim may point at, uncut, by step. What the user said, and what the first
    turn's history tells of the time before, counts as well; values of filtered fields do not."""
    fields = frozenset(
        name.lower() for judge in bench.judges for name in judge.contract.filtered_fields
    )
    shown = [
        Shown(-number, result=_without(text, fields))
        for number, text in enumerate(prefix.context.results, start=1)
    ]
    shown += [Shown(request.step, result=request.text) for request in prefix.requests]
    shown += [
        Shown(
            call.step,
            call.tool,
            _without(call.arguments, fields),
            _without(call.result, fields),
            call.error,
        )
        for call in prefix.calls
        if call.evidence and (call.answered or call.error is not None)
    ]
    return sorted(shown, key=lambda one: one.step)


def bounded(evidence: Sequence[Shown]) -> tuple[Shown, ...]:
    """The evidence as a model is shown it: the last results first, until the limit is reached."""
    kept: list[Shown] = []
    left = EVIDENCE_LIMIT
    for one in reversed(evidence):
        arguments = None if one.arguments is None else one.arguments[:ARGUMENTS_LIMIT]
        result = None if one.result is None else one.result[: min(RESULT_LIMIT, left)]
        error = None if one.error is None else one.error[:ARGUMENTS_LIMIT]
        left -= sum(len(text or "") for text in (arguments, result, error)) + 40
        if left < 0 and kept:
            break
        cut = (arguments, result, error) != (one.arguments, one.result, one.error)
        kept.append(Shown(one.step, one.tool, arguments, result, error, cut))
    return tuple(reversed(kept))


def filtered_near(text: str, evidence: Sequence[Shown], bench: Bench) -> bool:
    """Whether a filtered field is named in an answer or in its evidence: no excerpt then."""
    fields = {n.lower() for judge in bench.judges for n in judge.contract.filtered_fields}
    if not fields:
        return False
    texts = [text, *(t for s in evidence for t in (s.arguments, s.result, s.error) if t)]
    return any(field in one.lower() for one in texts for field in fields)


def _without(text: str | None, fields: frozenset[str]) -> str | None:
    """JSON text without the values of filtered fields; other text that names one is withheld."""
    if text is None or not fields or not any(field in text.lower() for field in fields):
        return text
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _FILTERED
    if not isinstance(value, dict | list):
        return _FILTERED
    return msgspec.json.encode(_blanked(value, fields, _DEPTH)).decode()


def _blanked(value: Any, fields: frozenset[str], depth: int) -> Any:
    if not depth:
        return _FILTERED
    if isinstance(value, dict):
        return {
            name: _FILTERED if name.lower() in fields else _blanked(part, fields, depth - 1)
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_blanked(part, fields, depth - 1) for part in value]
    if isinstance(value, str) and any(field in value.lower() for field in fields):
        return _FILTERED
    return value
