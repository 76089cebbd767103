import msgspec
import pytest

from monitor.contract import Rules
from monitor.model import UNSEEN, Call
from monitor.policy import PolicyMonitor, PolicyState, string_form
from monitor.rule import LISTED

RULES = {
    "allowed_tools": ["get", "find", "wipe"],
    "forbidden_tools": ["wipe"],
    "parameter_rules": {
        "get": {
            "required": ["id"],
            "forbidden": ["cost"],
            "allowed_values": {"lang": ["en", "de"]},
        },
        "typed": {"allowed_values": {"v": [True, 10, 48.0, None, "x"]}},
    },
}


def judge(*calls, rules=RULES, severities=None):
    monitor = PolicyMonitor(Rules.model_validate(rules), severities)
    state = monitor.initial()
    for call in calls:
        state = monitor.step(state, call)
    return monitor.judge(state)


def codes(*calls, **more):
    return [finding.code.removeprefix("POLICY_") for finding in judge(*calls, **more).now]


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("get", {"id": "1"}, []),
        ("find", {}, []),
        ("find", None, []),
        ("other", {}, ["TOOL_NOT_ALLOWED"]),
        ("Get", {"id": 1}, ["TOOL_NOT_ALLOWED"]),
        ("wipe", {}, ["TOOL_FORBIDDEN"]),
        ("get", {}, ["PARAM_MISSING"]),
        ("get", None, ["PARAM_MISSING"]),
        ("get", "", ["PARAM_MISSING"]),
        ("get", {"id": None}, ["PARAM_MISSING"]),
        ("get", {"id": " \t"}, ["PARAM_MISSING"]),
        ("get", {"id": "\u2003\u00a0"}, ["PARAM_MISSING"]),
        ("get", {"id": "\u200b"}, []),  # a zero-width space is no white space to Unicode
        ("get", {"id": 0}, []),
        ("get", {"id": False}, []),
        ("get", {"id": []}, []),
        ("get", {"id": 1, "cost": None}, ["PARAM_FORBIDDEN"]),
        ("get", {"id": 1, "cost": False}, ["PARAM_FORBIDDEN"]),
        ("get", {"id": 1, "lang": "fr"}, ["PARAM_VALUE_INVALID"]),
        ("get", {"id": 1, "lang": "EN"}, ["PARAM_VALUE_INVALID"]),
        ("get", {"id": 1, "lang": None}, []),
        ("get", {"id": 1, "lang": ""}, ["PARAM_VALUE_INVALID"]),
        (
            "get",
            {"cost": 1, "lang": 1},
            ["PARAM_MISSING", "PARAM_FORBIDDEN", "PARAM_VALUE_INVALID"],
        ),
    ],
)
def test_checks(tool, arguments, expected):
    assert codes(Call("k", tool, arguments)) == expected


@pytest.mark.parametrize(
    ("value", "valid"),
    [
        (True, True),
        ("true", True),
        ("True", False),
        (False, False),
        (10, True),
        ("10", True),
        (10.0, False),
        (48.0, True),
        ("48.0", True),
        (48, False),
        ("null", True),
        ("x", True),
        (["x"], False),
        ({"x": 1}, False),
    ],
)
def test_values_compare_as_json_writes_them(value, valid):
    rules = {"parameter_rules": RULES["parameter_rules"]}
    found = codes(Call("k", "typed", {"v": value}), rules=rules)
    assert found == ([] if valid else ["PARAM_VALUE_INVALID"])


def test_a_value_nested_beyond_reason_is_invalid_and_never_written_out():
    value = []
    for _ in range(100_000):
        value = [value]
    assert string_form(value) is None
    rules = {"parameter_rules": RULES["parameter_rules"]}
    [finding] = judge(Call("k", "typed", {"v": value}), rules=rules).now
    assert finding.code == "POLICY_PARAM_VALUE_INVALID"


def test_findings_come_by_call_then_check_with_subjects_that_last():
    found = judge(
        Call("c1", "get", {"cost": 1}, step=1, call_id="1", span_id="s"),
        Call("c2", "other", {}, step=2),
        severities={"POLICY_TOOL_NOT_ALLOWED": "critical"},
    ).now
    assert [(f.subject, f.code, f.severity, f.step) for f in found] == [
        ("c1:id", "POLICY_PARAM_MISSING", "error", 1),
        ("c1:cost", "POLICY_PARAM_FORBIDDEN", "error", 1),
        ("c2", "POLICY_TOOL_NOT_ALLOWED", "critical", 2),
    ]
    assert (found[0].call, found[0].call_id, found[0].span_id, found[0].tool) == (
        "c1", "1", "s", "get",
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [UNSEEN, [1], "text", 3, True])
def test_arguments_that_show_no_parameters_blind_the_rule(arguments):
    judgement = judge(Call("k", "get", arguments))
    assert (judgement.now, judgement.blind) == ((), ("k",))
    assert judge(Call("k", "find", arguments)).blind == ()  # no rule needs them


def test_a_requested_call_is_judged_like_an_executed_one():
    for execution in ("requested", "unknown", "executed"):
        assert codes(Call("k", "wipe", {}, execution=execution)) == ["TOOL_FORBIDDEN"]


def test_the_invalid_value_is_evidence_unless_it_may_be_a_filtered_one():
    call = Call("k", "get", {"id": 1, "lang": "x" * 5000})
    [finding] = judge(call).now
    assert finding.evidence == "x" * 198 + "…"
    assert "x" * 10 not in finding.message
    [finding] = judge(call, rules=RULES | {"filtered_fields": ["pin"]}).now
    assert finding.evidence is None


def test_a_clean_call_leaves_the_very_state_and_states_survive_storage():
    monitor = PolicyMonitor(Rules.model_validate(RULES))
    state = monitor.initial()
    assert monitor.step(state, Call("k", "find", {})) is state
    state = monitor.step(monitor.step(state, Call("k", "get", UNSEEN)), Call("l", "no"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=PolicyState) == state


def test_what_is_listed_is_bounded_but_no_code_is_ever_crowded_out():
    rules = {"forbidden_tools": ["wipe"], "parameter_rules": {"get": {"required": ["id"]}}}
    calls = [Call(f"k{n}", "get", {}) for n in range(1000)]
    found = judge(*calls, Call("z", "wipe", {}), *calls, rules=rules).now
    assert len(found) == LISTED + 1
    assert found[-1].code == "POLICY_TOOL_FORBIDDEN"
    assert [f.subject for f in found[:2]] == ["k0:id", "k1:id"]
