from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.contract import Rules
from monitor.model import Call
from monitor.trajectory import TrajectoryMonitor, TrajectoryState, has_rule
from tests import oracle


def judge(rules, *calls):
    monitor = TrajectoryMonitor(Rules.model_validate(rules))
    state = monitor.initial()
    for index, call in enumerate(calls):
        made = Call(f"k{index}", call, step=index) if isinstance(call, str) else call
        state = monitor.step(state, made)
    return monitor.judge(state)


def codes(rules, *calls):
    judgement = judge(rules, *calls)
    return [f.code.removeprefix("TRAJ_") for f in (*judgement.now, *judgement.later)]


RELAXED = {"expected_trajectory": ["a", "b", "a"], "trajectory_mode": "relaxed"}
STRICT = {"expected_trajectory": ["a", "b"]}


@pytest.mark.parametrize(
    ("rules", "calls", "expected"),
    [
        ({}, "ab", []),
        ({"forbidden_intermediates": ["x"]}, "ab", []),
        ({"forbidden_intermediates": ["x"]}, "axx", ["FORBIDDEN_INTERMEDIATE"]),
        ({"forbidden_intermediates": ["x", "y"]}, "yx", ["FORBIDDEN_INTERMEDIATE"] * 2),
        ({"no_repeats": ["a"]}, "ab", []),
        ({"no_repeats": ["a"]}, "abaa", ["REPEATED_TOOL"]),
        ({"no_repeats": ["b"]}, "aa", []),
        (STRICT, "ab", []),
        (STRICT, "", ["SEQUENCE_MISMATCH"]),
        (STRICT, "a", ["SEQUENCE_MISMATCH"]),
        (STRICT, "ba", ["SEQUENCE_MISMATCH"]),
        (STRICT, "abb", ["SEQUENCE_MISMATCH"]),
        (RELAXED, "aba", []),
        (RELAXED, "axbxxa", []),
        (RELAXED, "ab", ["MISSING_REQUIRED_TOOL"]),
        (RELAXED, "", ["MISSING_REQUIRED_TOOL"]),
        (
            STRICT | {"forbidden_intermediates": ["x"], "no_repeats": ["a"]},
            "axa",
            ["FORBIDDEN_INTERMEDIATE", "REPEATED_TOOL", "SEQUENCE_MISMATCH"],
        ),
    ],
)
def test_checks(rules, calls, expected):
    assert codes(rules, *calls) == expected


def test_a_rule_is_there_when_one_of_three_is():
    assert not has_rule(Rules(trajectory_mode="relaxed"))
    for name in ("expected_trajectory", "forbidden_intermediates", "no_repeats"):
        assert has_rule(Rules.model_validate({name: ["a"]}))


def test_requested_calls_are_not_on_the_path():
    assert codes(
        STRICT | {"forbidden_intermediates": ["x"]},
        "a",
        Call("k", "x", execution="requested"),
        "b",
    ) == []  # fmt: skip


def test_a_forbidden_intermediate_points_at_its_first_call_at_once():
    judgement = judge(
        {"forbidden_intermediates": ["x"]},
        Call("k1", "x", execution="unknown"),
        Call("k2", "x", step=7, call_id="2", span_id="s2"),
        "x",
    )
    [finding] = judgement.now
    assert (finding.subject, finding.step, finding.call, finding.call_id, finding.span_id) == (
        "x", 7, "k2", "2", "s2",
    )  # fmt: skip
    assert judgement.undecided == ()


@pytest.mark.parametrize(
    ("ids", "now"),
    [(("1", "2"), True), (("1", None), False), ((None, None), False), (("1", None, "2"), True)],
)
def test_repeats_are_certain_once_two_call_ids_differ(ids, now):
    calls = [Call(f"k{i}", "a", call_id=call_id, step=i) for i, call_id in enumerate(ids)]
    judgement = judge({"no_repeats": ["a"]}, *calls)
    assert bool(judgement.now) is now
    assert bool(judgement.later) is not now
    [finding] = (*judgement.now, *judgement.later)
    assert (finding.subject, finding.step) == ("a", 1)


@pytest.mark.parametrize(("calls", "subject"), [("", "a"), ("a", "b"), ("axb", "a#2"), ("bb", "a")])
def test_the_first_missing_tool_is_named(calls, subject):
    [finding] = judge(RELAXED, *calls).later
    assert finding.subject == subject


@pytest.mark.parametrize(
    ("calls", "message", "evidence"),
    [
        ("a", "step 2: expected b, observed the path to end",
         "expected a > b; observed a"),
        ("ac", "step 2: expected b, observed c", "expected a > b; observed a > c"),
        ("abc", "step 3: observed c, expected the path to end",
         "expected a > b; observed a > b > c"),
        ("", "step 1: expected a, observed the path to end", "expected a > b; observed nothing"),
        ("x" * 12, "step 1: expected a, observed x",
         "expected a > b; observed " + " > ".join("x" * 8) + " > …"),
    ],
)  # fmt: skip
def test_a_mismatch_shows_both_paths_from_the_first_difference(calls, message, evidence):
    [finding] = judge(STRICT, *calls).later
    assert (finding.message, finding.evidence) == (message, evidence)


def test_long_paths_are_shown_around_the_difference_only():
    rules = {"expected_trajectory": ["a"] * 1000}
    [finding] = judge(rules, *["a"] * 500, "b", *["a"] * 499).later
    assert finding.message == "step 501: expected a, observed b"
    assert finding.evidence.startswith("expected … > a > a > a")
    assert len(finding.evidence) <= 200


tools = st.sampled_from("ab")
runs = st.lists(st.tuples(tools, st.sampled_from(["executed", "unknown", "requested"])), max_size=7)


@settings(max_examples=600, deadline=None)
@given(
    runs,
    st.fixed_dictionaries(
        {},
        optional={
            "expected_trajectory": st.lists(tools, max_size=4),
            "trajectory_mode": st.sampled_from(["strict", "relaxed"]),
            "forbidden_intermediates": st.lists(tools, max_size=1),
            "no_repeats": st.lists(tools, max_size=2),
        },
    ),
)
def test_unknown_calls_decide_nothing_that_depends_on_them(run, rules):
    """Every way to choose among the unknown calls, by the plain algorithm, one check at a time."""
    monitor = TrajectoryMonitor(Rules.model_validate(rules))
    state = monitor.initial()
    for index, (tool, execution) in enumerate(run):
        state = monitor.step(state, Call(f"k{index}", tool, execution=execution))
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=TrajectoryState) == state
    judgement = monitor.judge(state)
    found = {finding.code for finding in (*judgement.now, *judgement.later)}

    seen = {}
    options = {"executed": (True,), "unknown": (True, False), "requested": (False,)}
    for choice in product(*(options[execution] for _, execution in run)):
        calls = [{"tool": tool} for (tool, _), taken in zip(run, choice, strict=True) if taken]
        trace = {"tool_calls": calls}
        sequence = {k: rules[k] for k in ("expected_trajectory", "trajectory_mode") if k in rules}
        for part in (
            {"forbidden_intermediates": rules.get("forbidden_intermediates")},
            {"no_repeats": rules.get("no_repeats")},
            sequence,
        ):
            code = oracle.trajectory(part | {"mock_trace": trace})
            for name in CODES[next(iter(part)) if part else "expected_trajectory"]:
                seen.setdefault(name, set()).add(code == name)
    assert found == {code for code, answers in seen.items() if answers == {True}}
    assert set(judgement.undecided) == {c for c, answers in seen.items() if len(answers) == 2}


CODES = {
    "forbidden_intermediates": ["TRAJ_FORBIDDEN_INTERMEDIATE"],
    "no_repeats": ["TRAJ_REPEATED_TOOL"],
    "expected_trajectory": ["TRAJ_MISSING_REQUIRED_TOOL", "TRAJ_SEQUENCE_MISMATCH"],
    "trajectory_mode": [],
}


def test_the_state_stays_small_however_long_the_run():
    rules = {
        "expected_trajectory": ["a", "b"],
        "no_repeats": ["a"],
        "forbidden_intermediates": ["b"],
    }
    monitor = TrajectoryMonitor(Rules.model_validate(rules))
    state = monitor.initial()
    sizes = []
    for index in range(1000):
        execution = "unknown" if index % 3 == 0 else "executed"
        state = monitor.step(state, Call(f"{index:04}", "ab"[index % 2], execution=execution))
        sizes.append(len(msgspec.msgpack.encode(state)))
    assert max(sizes) < 250
