"""Exported trajectories: lines of `agenttrust inspect --json`, judged by other contracts.

An export tells less than spans do: numbers are no longer as the tool wrote them, and of resource
attributes only those that its labels carry are left. What it says of coverage is believed: a
trajectory that was partly seen is never trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from monitor.checks import compile_contract
from monitor.contract import Binding, Contract, matches
from monitor.corpus import Corpus, flatten
from monitor.document import load, place
from monitor.errors import InputError, plain
from monitor.model import FIRM, UNSEEN, Call, Execution, Finding, Step, Struct, Verdict

SIZE_LIMIT: Final = 64 << 20
"""Bytes of a file of trajectories unless a caller says otherwise."""

_NO_GAP: Final = frozenset({"no_contract", "agent_unknown", "late"})
"""Coverage reasons that are about contracts or time, not about what was seen."""
_TURNS: Final = frozenset({"error", "critical"})
"""Severities that make a verdict `violated`."""


class _Coverage(Struct, frozen=True):
    reasons: tuple[str, ...] = ()


class _Label(Struct, frozen=True):
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    coverage: _Coverage = _Coverage()


class Exported(Struct, frozen=True):
    """A trajectory as it was exported; fields that judging does not need are left out."""

    trajectory_id: str
    steps: tuple[Step, ...]
    agent: str | None = None
    service: str | None = None
    user_request: str | None = None
    final_answer: str | None = None
    labels: tuple[_Label, ...] = ()

    @property
    def agents(self) -> set[str]:
        return {name for name in (self.agent, *(s.agent for s in self.steps)) if name is not None}

    @property
    def gaps(self) -> tuple[str, ...]:
        """Why not everything of it was seen."""
        reasons = (reason for label in self.labels for reason in label.coverage.reasons)
        return tuple(dict.fromkeys(reason for reason in reasons if reason not in _NO_GAP))


class Judged(NamedTuple):
    """What a contract says of an exported trajectory."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    reasons: tuple[str, ...]
    """Why it is unassessed."""
    observed: tuple[str, ...]
    """The executed tools that were judged."""
    answer: str | None


_decode: Final = msgspec.json.Decoder(Exported)


def load_exported(path: Path, *, limit: int = SIZE_LIMIT) -> Iterator[tuple[int, Exported]]:
    """Line number and trajectory of each line of a file. Raises InputError."""
    for number, line in enumerate(load(path, limit).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, _decode.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = f"is no exported trajectory: {plain(error)}"
            raise InputError(place(str(path), number), problem) from None


def binding(contract: Contract, trajectory: Exported) -> Binding:
    """Whether the contract is for this trajectory."""
    attributes = trajectory.labels[0].attributes if trajectory.labels else {}
    return contract.applies(trajectory.service, attributes, trajectory.agents)


def judge(contract: Contract, trajectory: Exported) -> Judged:
    """Runs the steps through the contract's monitors, all at once."""
    checks = compile_contract(contract)
    ours = [step for step in trajectory.steps if _judged_by(contract, step)]
    calls = [_call(index, step) for index, step in enumerate(ours) if step.type == "tool_call"]
    executed = [call for call in calls if call.execution == "executed"]
    answer = _answer(contract, trajectory, ours)

    policy = checks.policy.initial()
    for call in calls:
        policy = checks.policy.step(policy, call)
    judgements = [checks.policy.judge(policy)]
    reasons = list(trajectory.gaps)
    if judgements[0].blind:
        reasons.append("content_hidden")
    gaps = bool(trajectory.gaps)
    if checks.grounding is not None:
        if any(s.type == "tool_call" and s.result is s.error is None for s in trajectory.steps):
            reasons.append("missing_result")
        state = checks.grounding.initial()
        for call in calls:
            state = checks.grounding.step(state, call)
        if answer is None:
            reasons.append("no_answer_seen")
        else:
            corpus = _corpus(trajectory)
            found = checks.grounding.judge(state, answer, corpus)
            firm = tuple(f for f in found.later if f.code in FIRM)
            unsure = "missing_result" in reasons
            judgements.append(structs.replace(found, later=firm) if unsure else found)
    if checks.trajectory is not None:
        path = checks.trajectory.initial()
        for call in calls:
            path = checks.trajectory.step(path, call)
        judgements.append(checks.trajectory.judge(path))
    if any(judgement.undecided for judgement in judgements):
        reasons.append("missing_span")
    findings = tuple(
        finding
        for judgement in judgements
        for finding in (*judgement.now, *judgement.later)
        if not gaps or finding.code in FIRM
    )
    verdict: Verdict = "trusted"
    if any(finding.severity in _TURNS for finding in findings):
        verdict = "violated"
    elif reasons:
        verdict = "unassessed"
    return Judged(
        verdict,
        findings,
        tuple(dict.fromkeys(reasons)),
        tuple(call.tool for call in executed),
        answer,
    )


def _judged_by(contract: Contract, step: Step) -> bool:
    """A contract that names an agent judges that agent's steps alone."""
    agent = contract.applies_to.agent
    return agent is None or (step.agent is not None and matches(agent, step.agent))


def _call(index: int, step: Step) -> Call:
    execution: Execution = "executed"
    if step.requested_only:
        told = step.result is not None or step.error is not None
        execution = "unknown" if told else "requested"
    return Call(
        key=step.call_id or f"#{index}",
        tool=step.tool or "",
        arguments=UNSEEN if step.arguments is None else step.arguments,
        execution=execution,
        failed=step.error is not None,
        step=index,
        call_id=step.call_id,
        span_id=step.span_id,
        agent=step.agent,
    )


def _answer(contract: Contract, trajectory: Exported, ours: list[Step]) -> str | None:
    if contract.applies_to.agent is None:
        return trajectory.final_answer
    return next((s.text for s in reversed(ours) if s.type == "answer" and s.text is not None), None)


def _corpus(trajectory: Exported) -> Corpus:
    """What every tool of the run returned, whoever called it; an error's text is evidence too."""
    corpus = Corpus()
    number = 0
    for step in trajectory.steps:
        if step.type != "tool_call":
            continue
        for content in (step.result, step.error):
            if content is not None:
                corpus.add(f"{step.tool}#{number}", _flat(content))
        number += not step.requested_only
    return corpus


def _flat(content: Any) -> str:
    return content if isinstance(content, str) else flatten(content)
