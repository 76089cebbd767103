"""Trajectory: the path of executed calls (paper, section III, Algorithm 3), one call at a time.

A call of unknown execution is judged with and without: where the two ways differ nothing is found
and the code is `undecided`. The sequences of tools are never kept: of the observed path the state
holds how far it equals the expected one and a few tools after that.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from monitor.contract import Rules
from monitor.model import Call, Finding, Judgement, Severity, Struct
from monitor.rule import CLEAN, excerpt

TAIL: Final = 8
"""Tools of the observed path that are kept from the first difference on."""


class Seen(Struct, frozen=True, array_like=True):
    """Where the first executed call of a forbidden tool, or the second of a no-repeat tool, was."""

    step: int
    call: str
    call_id: str | None = None
    span_id: str | None = None


class Forbidden(Struct, frozen=True, array_like=True):
    """A forbidden intermediate that was called; `first` is None while no call surely ran."""

    tool: str
    first: Seen | None = None


class Repeats(Struct, frozen=True, array_like=True):
    """Calls of a no-repeat tool. Counts stop at 2, where nothing changes any more."""

    tool: str
    executed: int = 0
    unknown: int = 0
    call_id: str | None = None
    """Id of the first executed call that has one."""
    distinct: bool = False
    """Two executed calls have different ids: they are two calls, whatever else arrives."""
    second: Seen | None = None


class TrajectoryState(Struct, frozen=True, array_like=True):
    """Progress on the expected sequence E and the forbidden and repeated tools.

    Strict: `executed` counts executed calls, of which the first `same` equal E; `tail` are the next ones.
    `at` are the positions of E that some choice among the unknown calls reaches (None
    before the first unknown call: then the position is `same`), `astray` that some choice left E.
    Relaxed: `low` and `high` tools of E are matched without and with the unknown calls.
    """

    executed: int = 0
    same: int = 0
    tail: tuple[str, ...] = ()
    at: tuple[int, ...] | None = None
    astray: bool = False
    low: int = 0
    high: int = 0
    forbidden: tuple[Forbidden, ...] = ()
    repeats: tuple[Repeats, ...] = ()


class TrajectoryMonitor:
    """A contract's trajectory rule as a monitor."""

    def __init__(self, rules: Rules, severities: dict[str, Severity] | None = None) -> None:
        self._expected = rules.expected_trajectory
        self._strict = rules.trajectory_mode == "strict"
        self._forbidden = frozenset(rules.forbidden_intermediates)
        self._no_repeats = frozenset(rules.no_repeats)
        self._severities = severities or {}

    def initial(self) -> TrajectoryState:
        return _INITIAL

    def step(self, state: TrajectoryState, call: Call) -> TrajectoryState:
        execution = call.execution
        if execution == "requested":
            return state
        executed = execution == "executed"
        tool = call.tool
        forbidden, repeats = state.forbidden, state.repeats
        if tool in self._forbidden:
            forbidden = _note_forbidden(forbidden, call, executed=executed)
        if tool in self._no_repeats:
            repeats = _note_repeat(repeats, call, executed=executed)
        if not self._expected:
            pass
        elif self._strict:
            return self._follow(state, tool, executed, forbidden, repeats)
        else:
            expected = self._expected
            low, high = state.low, state.high
            if high < len(expected) and expected[high] == tool:
                high += 1
            if executed and low < len(expected) and expected[low] == tool:
                low += 1
            if high != state.high or low != state.low:
                high = max(high, low)
                return TrajectoryState(0, 0, (), None, False, low, high, forbidden, repeats)
        if forbidden is state.forbidden and repeats is state.repeats:
            return state
        return structs.replace(state, forbidden=forbidden, repeats=repeats)

    def _follow(
        self,
        state: TrajectoryState,
        tool: str,
        executed: bool,
        forbidden: tuple[Forbidden, ...],
        repeats: tuple[Repeats, ...],
    ) -> TrajectoryState:
        """A step of the strict mode."""
        expected = self._expected
        same, tail, at, astray = state.same, state.tail, state.at, state.astray
        if at is not None or not executed:
            before = self._positions(state)
            moved = {
                position + 1
                for position in before
                if position < len(expected) and expected[position] == tool
            }
            astray = astray or len(moved) < len(before)
            at = tuple(sorted(moved if executed else moved.union(before)))
        if executed:
            if not tail and same < len(expected) and expected[same] == tool:
                same += 1
            elif len(tail) < TAIL:
                tail = (*tail, tool)
        return TrajectoryState(
            state.executed + executed, same, tail, at, astray, 0, 0, forbidden, repeats
        )

    def judge(self, state: TrajectoryState) -> Judgement:
        if not state.forbidden and not state.repeats:  # most trajectories: nothing to tell
            end = len(self._expected)
            if not end or not self._strict:
                if state.low == end:
                    return CLEAN
            elif state.same == end and not state.tail and state.at is None:
                return CLEAN
        now: list[Finding] = []
        later: list[Finding] = []
        undecided: list[str] = []
        if state.forbidden:
            now.extend(
                self._finding(
                    "FORBIDDEN_INTERMEDIATE",
                    entry.tool,
                    f"{entry.tool}: the tool must not be on the path",
                    entry.first,
                    entry.tool,
                )
                for entry in state.forbidden
                if entry.first is not None
            )
            if not now:
                undecided.append("TRAJ_FORBIDDEN_INTERMEDIATE")
        if state.repeats:
            repeated = False
            possible = False
            for count in state.repeats:
                if count.executed >= 2:
                    repeated = True
                    (now if count.distinct else later).append(
                        self._finding(
                            "REPEATED_TOOL",
                            count.tool,
                            f"{count.tool}: the tool must be called once at most",
                            count.second,
                            count.tool,
                        )
                    )
                elif count.executed + count.unknown >= 2:
                    possible = True
            if possible and not repeated:
                undecided.append("TRAJ_REPEATED_TOOL")
        if self._expected:
            self._judge_sequence(state, later, undecided)
        return Judgement(tuple(now), tuple(later), tuple(undecided))

    def _positions(self, state: TrajectoryState) -> tuple[int, ...]:
        """Positions of E that the calls seen so far may have reached."""
        if state.at is not None:
            return state.at
        return () if state.tail else (state.same,)

    def _judge_sequence(
        self, state: TrajectoryState, later: list[Finding], undecided: list[str]
    ) -> None:
        expected = self._expected
        end = len(expected)
        if self._strict:
            positions = self._positions(state)
            if end not in positions:
                later.append(
                    self._finding(
                        "SEQUENCE_MISMATCH",
                        "expected_trajectory",
                        _difference(expected, state),
                        evidence=excerpt(_paths(expected, state)),
                    )
                )
            elif state.astray or len(positions) > 1:
                undecided.append("TRAJ_SEQUENCE_MISMATCH")
        elif state.high < end:
            tool = expected[state.high]
            nth = expected[: state.high + 1].count(tool)
            later.append(
                self._finding(
                    "MISSING_REQUIRED_TOOL",
                    tool if nth == 1 else f"{tool}#{nth}",
                    f"{tool}: step {state.high + 1} of {end} of the expected path did not follow",
                    tool=tool,
                )
            )
        elif state.low < end:
            undecided.append("TRAJ_MISSING_REQUIRED_TOOL")

    def _finding(
        self,
        check: str,
        subject: str,
        message: str,
        seen: Seen | None = None,
        tool: str | None = None,
        evidence: str | None = None,
    ) -> Finding:
        code = f"TRAJ_{check}"
        return Finding(
            layer="trajectory",
            code=code,
            subject=subject,
            message=message,
            severity=self._severities.get(code, "error"),
            step=None if seen is None else seen.step,
            call=None if seen is None else seen.call,
            call_id=None if seen is None else seen.call_id,
            span_id=None if seen is None else seen.span_id,
            tool=tool,
            evidence=evidence,
        )


_INITIAL: Final = TrajectoryState()


def has_rule(rules: Rules) -> bool:
    """Whether there is a trajectory rule at all; without one the layer passes."""
    return bool(rules.expected_trajectory or rules.forbidden_intermediates or rules.no_repeats)


def _seen(call: Call) -> Seen:
    return Seen(call.step, call.key, call.call_id, call.span_id)


def _note_forbidden(
    noted: tuple[Forbidden, ...], call: Call, *, executed: bool
) -> tuple[Forbidden, ...]:
    for index, entry in enumerate(noted):
        if entry.tool == call.tool:
            if entry.first is not None or not executed:
                return noted
            return (*noted[:index], Forbidden(call.tool, _seen(call)), *noted[index + 1 :])
    return (*noted, Forbidden(call.tool, _seen(call) if executed else None))


def _note_repeat(noted: tuple[Repeats, ...], call: Call, *, executed: bool) -> tuple[Repeats, ...]:
    index = next((i for i, entry in enumerate(noted) if entry.tool == call.tool), len(noted))
    old = noted[index] if index < len(noted) else Repeats(call.tool)
    if executed:
        new = Repeats(
            call.tool,
            min(old.executed + 1, 2),
            old.unknown,
            call.call_id if old.call_id is None else old.call_id,
            old.distinct
            or (
                old.call_id is not None and call.call_id is not None and call.call_id != old.call_id
            ),
            _seen(call) if old.executed == 1 else old.second,
        )
    else:
        new = Repeats(
            call.tool,
            old.executed,
            min(old.unknown + 1, 2),
            old.call_id,
            old.distinct,
            old.second,
        )
    return (*noted[:index], new, *noted[index + 1 :])


def _difference(expected: tuple[str, ...], state: TrajectoryState) -> str:
    """The first difference of the two paths, in words."""
    number = state.same + 1
    if state.tail and state.same < len(expected):
        return f"step {number}: expected {expected[state.same]}, observed {state.tail[0]}"
    if state.tail:
        return f"step {number}: observed {state.tail[0]}, expected the path to end"
    return f"step {number}: expected {expected[state.same]}, observed the path to end"


def _paths(expected: tuple[str, ...], state: TrajectoryState) -> str:
    """`expected a > b; observed a > c`, both from just before the first difference on."""
    start = max(0, state.same - 2)
    lead = "… > " if start else ""
    wanted = expected[start : state.same + TAIL]
    wanted_more = " > …" if state.same + TAIL < len(expected) else ""
    observed = (*expected[start : state.same], *state.tail)
    observed_more = " > …" if state.executed > state.same + len(state.tail) else ""
    return (
        f"expected {lead}{' > '.join(wanted) or 'nothing'}{wanted_more};"
        f" observed {lead}{' > '.join(observed) or 'nothing'}{observed_more}"
    )
