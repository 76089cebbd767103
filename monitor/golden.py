"""Golden cases: a recorded trace, the expectations it is judged by, and the decision that is due.

The paper's regression test (arXiv:2611.06674, sections III and IV) on the monitors that judge the
stream. A case is complete by definition: every call ran, every result is evidence, an absent answer
is a blank one.

    from monitor import evaluate, load_cases

    for case in load_cases("tests/golden"):
        outcome = evaluate(case)
        assert outcome.decision == case.expected_decision, outcome.reason
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, PrivateAttr, StrictBool, StrictStr, model_validator

from monitor import jsonfile, yaml
from monitor.contract import Code, Name, Rules
from monitor.corpus import Corpus, flatten
from monitor.document import Document, load, place
from monitor.errors import InputError
from monitor.grounding import GroundingMonitor
from monitor.model import LAYERS, Call, Finding, Layer
from monitor.policy import PolicyMonitor
from monitor.rule import CLEAN
from monitor.trajectory import TrajectoryMonitor, has_rule
from monitor.validate import RefusalError, Written, build, kind_of, shown

SIZE_LIMIT: Final = 8 << 20
"""Bytes of a file of cases unless a caller says otherwise."""
SUFFIXES: Final = (".yaml", ".yml", ".json")

Decision = Literal["PASS", "FAIL"]
Mode = Literal[
    "FINAL_ANSWER_ONLY",
    "ANSWER_GROUNDING_ONLY",
    "JUDGE_ONLY",
    "POLICY_ONLY",
    "TRAJECTORY_ONLY",
    "FULL",
]
MODES: Final[dict[Mode, tuple[Layer, ...]]] = {
    "FINAL_ANSWER_ONLY": (),
    "ANSWER_GROUNDING_ONLY": ("grounding",),
    "JUDGE_ONLY": ("grounding",),
    "POLICY_ONLY": ("policy",),
    "TRAJECTORY_ONLY": ("trajectory",),
    "FULL": LAYERS,
}
"""The paper's configurations: the layers that are active, in their order. FINAL_ANSWER_ONLY asks
for an answer that is not blank; JUDGE_ONLY is the old name of ANSWER_GROUNDING_ONLY."""


class MockCall(Written):
    """A call of the recorded trace."""

    tool: Name
    parameters: dict[str, Any] = Field(default_factory=dict)


class MockTrace(Written):
    """What the agent did. Keys of results are `tool#i`, i the index of the call."""

    tool_calls: tuple[MockCall, ...] = ()
    tool_results: dict[str, Any] = Field(default_factory=dict)
    final_answer: StrictStr | None = None


class GoldenCase(Rules):
    """One test: rules as in a contract, a trace, and what is to come of it."""

    case_id: Name
    domain: StrictStr | None = None
    user_request: StrictStr | None = None
    expected_decision: Decision
    expected_reason: Code | None = None
    """The code that FULL must give, where a case says it."""
    fault_type: StrictStr | None = None
    critical: StrictBool = False
    tricky: StrictBool = False
    """A passing case that is easy to fail by mistake."""
    mock_trace: MockTrace

    _place: str = PrivateAttr("")

    @model_validator(mode="after")
    def _reason_of_a_failure(self) -> Self:
        if self.expected_reason is not None and self.expected_decision == "PASS":
            raise RefusalError("expected_reason stands in a case that is to pass", "none")
        return self

    @property
    def place(self) -> str:
        """`file:line` of the case, empty for one that came from no file."""
        return self._place

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The trace as the monitors see it: every call executed, none failed."""
        return tuple(
            Call(key=f"{call.tool}#{index}", tool=call.tool, arguments=call.parameters, step=index)
            for index, call in enumerate(self.mock_trace.tool_calls)
        )

    @cached_property
    def stray_results(self) -> tuple[str, ...]:
        """Keys of results that name no call. They are evidence all the same."""
        known = {call.key for call in self.calls}
        return tuple(key for key in self.mock_trace.tool_results if key not in known)

    @cached_property
    def ready(self) -> Ready:
        """The rules compiled and the trace at hand, made once."""
        return Ready(
            PolicyMonitor(self),
            GroundingMonitor(self),
            TrajectoryMonitor(self) if has_rule(self) else None,
            self.calls,
            self.mock_trace.tool_results,
            self.mock_trace.final_answer,
        )


class Ready(NamedTuple):
    """What a judgement starts from; without a trajectory rule that layer passes."""

    policy: PolicyMonitor
    grounding: GroundingMonitor
    trajectory: TrajectoryMonitor | None
    calls: tuple[Call, ...]
    results: dict[str, Any]
    answer: str | None


class Outcome(NamedTuple):
    """What a mode says of a case. `reason` is the first finding's code, None for PASS."""

    decision: Decision
    reason: str | None
    findings: tuple[Finding, ...]


_PASS: Final = Outcome("PASS", None, ())


def evaluate(case: GoldenCase, mode: Mode = "FULL", *, all_violations: bool = False) -> Outcome:
    """Judges a case. Layers after the first that fails are left out unless all are asked for."""
    ready = case.ready
    findings: tuple[Finding, ...] = ()
    for judge in _JUDGES[mode]:
        findings += judge(ready)
        if findings and not all_violations:
            break
    return Outcome("FAIL", findings[0].code, findings) if findings else _PASS


def _judge_blank(ready: Ready) -> tuple[Finding, ...]:
    blank = ready.grounding.judge_blank(ready.answer)
    return () if blank is None else (blank,)


def _judge_policy(ready: Ready) -> tuple[Finding, ...]:
    monitor = ready.policy
    state = monitor.initial()
    step = monitor.step
    for call in ready.calls:
        state = step(state, call)
    return monitor.judge(state).now


def _judge_grounding(ready: Ready) -> tuple[Finding, ...]:
    monitor = ready.grounding
    state = monitor.initial()
    step = monitor.step
    for call in ready.calls:
        state = step(state, call)
    corpus = Corpus(flatten(ready.results), budget=None)
    return monitor.judge(state, ready.answer, corpus).later


def _judge_trajectory(ready: Ready) -> tuple[Finding, ...]:
    monitor = ready.trajectory
    if monitor is None:
        return ()
    state = monitor.initial()
    step = monitor.step
    for call in ready.calls:
        state = step(state, call)
    judgement = monitor.judge(state)
    return () if judgement is CLEAN else judgement.now + judgement.later


_LAYERS: Final = {
    "policy": _judge_policy,
    "grounding": _judge_grounding,
    "trajectory": _judge_trajectory,
}
_JUDGES: Final = {
    mode: tuple(_LAYERS[layer] for layer in layers) or (_judge_blank,)
    for mode, layers in MODES.items()
}


def load_cases(
    *paths: str | Path, strict: bool = False, limit: int = SIZE_LIMIT
) -> tuple[GoldenCase, ...]:
    """The cases of files, and of all YAML and JSON files in and below folders, in their order.

    `strict`: a result key that names no call is an error. `limit`: bytes of a file. Raises
    InputError, also for two cases with one id.
    """
    found: dict[str, GoldenCase] = {}
    for file in files_of(*paths):
        for case in _cases_of(file, limit, strict=strict):
            other = found.setdefault(case.case_id, case)
            if other is not case:
                raise InputError(
                    f"{case.place}: case_id",
                    f"{shown(case.case_id)} stands in {other.place} too",
                    "an id of its own for each case",
                )
    return tuple(found.values())


def files_of(*paths: str | Path) -> Iterator[Path]:
    """Files as given; of folders every YAML and JSON file in name order, hidden ones left out."""
    for path in map(Path, paths):
        if not path.is_dir():
            yield path
            continue
        inside = sorted(
            file
            for file in path.rglob("*")
            if file.suffix in SUFFIXES
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
            and file.is_file()
        )
        if not inside:
            raise InputError(str(path), "holds no golden cases", "*.yaml, *.yml or *.json files")
        yield from inside


def _cases_of(path: Path, limit: int, *, strict: bool) -> Iterator[GoldenCase]:
    parse = jsonfile.parse if path.suffix == ".json" else yaml.parse
    document = parse(load(path, limit), str(path), limit=limit)
    if not isinstance(document.value, list):
        raise document.error((), f"is {kind_of(document.value)}", "a list of cases")
    for index, value in enumerate(document.value):
        yield _case(document, index, value, strict=strict)


def _case(document: Document, index: int, value: Any, *, strict: bool) -> GoldenCase:
    case = build(GoldenCase, value, document, (index,))
    case._place = place(document.name, document.line((index,)))  # noqa: SLF001 - its constructor
    if strict and case.stray_results:
        key = case.stray_results[0]
        raise document.error(
            (index, "mock_trace", "tool_results", key),
            f"result {shown(key)} names no call",
            "tool#index-of-the-call",
        )
    return case
