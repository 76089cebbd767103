"""The answer, grounded in what the calls of a trajectory returned."""

from __future__ import annotations

import msgspec

from monitor.bench import Bench
from monitor.corpus import Corpus, flatten_json_text
from monitor.head import Head, LastAnswer
from monitor.model import Judgement, digest
from monitor.prefix import Prefix
from monitor.window import as_call


def ground(head: Head, prefix: Prefix, bench: Bench) -> None:
    """Grounds the answer in what the calls returned, for every contract that asks for it."""
    corpus: Corpus | None = None
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        grounding = judge.checks.grounding
        if not standing.bound or grounding is None:
            continue
        answer = standing.answer if judge.one_agent else head.answer
        if answer is None or not answer.shown or not answer.follows:
            standing.grounding = Judgement()
            continue
        corpus = corpus or evidence(prefix, head)
        state = grounding.initial()
        for call in prefix.calls:
            if judge.judges(call.agent):
                seen = as_call(call, head, frozenset())
                if not call.executed and seen.execution == "executed":
                    seen.execution = "unknown"  # a quoted result does not tell a failure
                state = grounding.step(state, seen)
        found = grounding.judge(state, answer_of(prefix, answer), corpus)
        standing.grounding = _placed(found, answer)


def answer_of(prefix: Prefix, answer: LastAnswer) -> str:
    """The text of an answer."""
    return next(t.text or "" for t in prefix.turns if t.span.span_id == answer.span_id)


def _placed(found: Judgement, answer: LastAnswer) -> Judgement:
    """Findings of the answer, with the step and the span where it stands."""
    return msgspec.structs.replace(
        found,
        later=tuple(
            msgspec.structs.replace(f, step=answer.step, span_id=answer.span_id)
            for f in found.later
        ),
    )


def evidence(prefix: Prefix, head: Head) -> Corpus:
    """What the tools returned, failures included, keyed by `tool#i`, i the index in A."""
    corpus = Corpus()
    executed = 0
    for call in prefix.calls:
        ran = call.executed or (call.returned and not head.tools_seen)
        key = f"{call.tool}#{executed}" if ran else call.tool
        executed += ran
        if not call.evidence:
            continue
        if call.result is not None:
            corpus.add(key, flatten_json_text(call.result))
        if call.error:
            corpus.add(key, call.error)
    for text in prefix.context.results:
        corpus.add("context", flatten_json_text(text))
    return corpus


def fingerprint(prefix: Prefix) -> str:
    """Digest of steps and evidence: what a late span must change to be told."""
    return digest(
        msgspec.msgpack.encode(
            [
                [
                    (c.key, c.tool, c.arguments, c.executed, c.returned, c.result, c.error)
                    for c in prefix.calls
                    if c.evidence or c.executed
                ],
                [(answer.span_id, answer.text) for answer in prefix.answers],
                [request.text for request in prefix.requests],
                prefix.context.results,
            ]
        )
    )
