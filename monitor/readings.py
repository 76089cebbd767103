"""Readings into the state: which one counts, and what is kept of it.

The first reading of a step as it stands counts, unless a later attempt follows; none that failed
takes the place of one that did not. A reading of content that is superseded does nothing.
"""

from __future__ import annotations

from monitor import ask, semantic
from monitor.bench import Bench
from monitor.evidence import answer_of
from monitor.facts import FACTS, back, stated
from monitor.head import Head
from monitor.model import Reading
from monitor.prefix import Prefix, derive
from monitor.reading import Read, Shown, Stated, Told, step_name
from monitor.work import Work


def take(work: Work, head: Head, reading: Reading, bench: Bench) -> bool:
    """Takes a reading up; whether a label may say something else now. Raises NeedContent, before
    anything is changed."""
    about = reading.step, reading.parser, reading.content
    read = next((r for r in head.reads if (r.step, r.parser, r.content) == about), None)
    if read is None:
        return _other(work, head, reading, bench)
    kept = read.kept
    if kept is not None and not _counts(reading, kept.attempt, assessed=kept.reason is None):
        return False
    if reading.status != "assessed":
        read.kept = semantic.keep(reading, "", (), hidden=False)
        return True
    prefix = derive(work.spans)
    evidence = ask.shown_steps(prefix, bench)
    text = _found(prefix, head, read, evidence)
    if text is None:  # the prefix has moved on; should it come back, it is asked for again
        read.content = ""
        return False
    hidden = ask.filtered_near(text, evidence, bench)
    others = bool(head.steps_asked)
    read.kept = semantic.keep(reading, text, evidence, hidden=hidden, others=others)
    if others:
        _back(head, prefix, evidence)
    return True


def _other(work: Work, head: Head, reading: Reading, bench: Bench) -> bool:
    """A reading of a step other than the answer: its facts may back claims of the answer."""
    name = step_name(head.trajectory, reading.step, reading.content, reading.parser)
    told = head.told.get(name)
    if name not in head.steps_asked:
        return False
    if told is not None and not _counts(reading, told.attempt, assessed=told.assessed):
        return False
    facts: tuple[Stated, ...] = ()
    prefix = evidence = None
    if reading.status == "assessed" and head.reads:
        prefix = derive(work.spans)
        evidence = ask.shown_steps(prefix, bench)
        steps = ask.read_steps(prefix, evidence, head.trajectory, reading.parser)
        if name in steps:
            left = FACTS - sum(len(t.facts) for key, t in head.told.items() if key != name)
            facts = stated(reading, steps[name][1], ask.answers(prefix, head))[:left]
    head.told[name] = Told(reading.attempt, reading.status == "assessed", facts)
    if prefix is None or evidence is None or facts == (() if told is None else told.facts):
        return False
    return _back(head, prefix, evidence)


def _counts(reading: Reading, attempt: int, *, assessed: bool) -> bool:
    """Whether a reading takes the place of the one that counts now."""
    return reading.attempt > attempt and (reading.status == "assessed" or not assessed)


def _back(head: Head, prefix: Prefix, evidence: list[Shown]) -> bool:
    """Looks claims that are open up in the facts of other steps. Whether that changed anything."""
    changed = False
    for read in head.reads:
        if read.kept is not None:
            steps = ask.read_steps(prefix, evidence, head.trajectory, read.parser)
            sources = (
                (*step, head.told[name].facts) for name, step in steps.items() if name in head.told
            )
            changed = back(read.kept, sources, evidence) or changed
    return changed


def _found(prefix: Prefix, head: Head, read: Read, evidence: list[Shown]) -> str | None:
    """Text of an answer that was asked to be read, if it and its evidence still are what they
    were."""
    for answer in (head.answer, *(standing.answer for standing in head.standings)):
        if answer is not None and ask.step_of(head, answer) == read.step:
            text = answer_of(prefix, answer)
            return text if ask.content_of(text, evidence) == read.content else None
    return None
