import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.checks import compile_contract
from monitor.contract import (
    Contract,
    Limits,
    PolicySet,
    load_contract,
    load_contracts,
    matches,
)
from monitor.errors import InputError
from monitor.rule import CODES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "contracts.md"


def load(tmp_path, text, name="c.yaml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_contract(path)


def contract(**fields):
    return Contract.model_validate({"contract": "c", "version": 1} | fields)


def test_the_shipped_contracts_load():
    found = load_contracts(ROOT / "deploy" / "contracts")
    assert [(c.contract, c.version) for c in found] == [
        ("guard-rail", 1),
        ("refunds", 1),
        ("support-desk", 3),
    ]
    assert all(c.owner and c.rationale for c in found)
    guard_rail = compile_contract(found[0])
    assert (guard_rail.grounding, guard_rail.trajectory) == (None, None)
    assert None not in compile_contract(found[2])


def test_every_example_of_the_documentation_loads(tmp_path):
    examples = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    whole = [text for text in examples if text.startswith("contract:")]
    assert len(whole) >= 5
    for text in whole:
        load(tmp_path, text)
    fragments = [text for text in examples if not text.startswith("contract:")]
    for text in fragments:
        load(tmp_path, "contract: c\nversion: 1\n" + text)


def test_the_documentation_names_every_field_and_every_code():
    text = DOCS.read_text()
    for field in Contract.model_fields:
        assert f"`{field}`" in text
    for code in CODES:
        assert code in text


def test_defaults():
    c = contract()
    assert (c.allowed_tools, c.forbidden_tools, c.parameter_rules, c.severity) == ((), (), {}, {})
    assert (c.grounding, c.trajectory_mode, c.owner) == ("paper", "strict", None)
    assert contract(allowed_tools=None, owner=None, applies_to=None) == c


def test_yaml_reads_words_as_words(tmp_path):
    c = load_contract(Path(__file__).parent / "contracts" / "no-schema-surprises.yaml")
    assert (c.contract, c.owner, c.rationale) == ("no", "2024-05-01", "12:30:45")
    assert c.allowed_tools == ("yes", "on", "off")
    assert c.parameter_rules["yes"].allowed_values["n"] == (
        10, 8, 31, 1000.0, 0.5, "1_000", "10", True, None, "no",
    )  # fmt: skip
    assert load(tmp_path, "contract: c\nversion: 1\ngrounding: off").grounding == "off"


HEAD = "contract: c\nversion: 1\n"


@pytest.mark.parametrize("mode", ["off", "advisory", "gate"])
def test_a_mode_alone_is_short_for_the_mapping(tmp_path, mode):
    short = load(tmp_path, HEAD + f"semantic: {mode}")
    assert short.semantic.mode == mode
    assert short.digest == load(tmp_path, HEAD + f"semantic: {{mode: {mode}}}").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: holds no contract; allowed: a mapping with contract, version and rules"),
        ("- a", "c.yaml:1: holds no contract"),
        ("hello", "c.yaml: holds no contract"),
        ("version: 1", "c.yaml:1: contract: is required"),
        ("contract: c", "c.yaml:1: version: is required"),
        (HEAD + "allowed_tolls: [a]", "c.yaml:3: allowed_tolls: unknown field, did you mean 'allowed_tools'?"),
        (HEAD + "zzz: 1", "c.yaml:3: zzz: unknown field"),
        (HEAD + "parameter_rules:\n  a:\n    requird: [x]",
         "c.yaml:5: parameter_rules.a.requird: unknown field, did you mean 'required'?"),
        (HEAD + "applies_to:\n  servce: x", "c.yaml:4: applies_to.servce: unknown field, did you mean 'service'?"),
        ("contract: c\nversion: '1'", "c.yaml:2: version: '1' is text; allowed: a whole number"),
        ("contract: c\nversion: 1.0", "c.yaml:2: version: 1.0 is a number; allowed: a whole number"),
        ("contract: c\nversion: true", "c.yaml:2: version: true is a boolean; allowed: a whole number"),
        ("contract: c\nversion: 0", "c.yaml:2: version: 0: input should be greater than or equal to 1"),
        ("contract: 7\nversion: 1", "c.yaml:1: contract: 7 is a number; allowed: text"),
        ("contract: ' '\nversion: 1", "c.yaml:1: contract: is blank"),
        (HEAD + "allowed_tools: a", "c.yaml:3: allowed_tools: 'a' is text; allowed: a list"),
        (HEAD + "allowed_tools: {a: 1}", 'c.yaml:3: allowed_tools: {"a":1} is a mapping; allowed: a list'),
        (HEAD + "allowed_tools:\n - a\n - 7", "c.yaml:5: allowed_tools[1]: 7 is a number; allowed: text"),
        (HEAD + "allowed_tools: [a, 'b*']", "c.yaml:3: allowed_tools[1]: 'b*' holds a '*'; allowed: exact tool names"),
        (HEAD + "no_repeats: ['']", "c.yaml:3: no_repeats[0]: is blank"),
        (HEAD + "filtered_fields: ['']", "c.yaml:3: filtered_fields[0]: is blank"),
        (HEAD + "parameter_rules:\n  a*: {}", "c.yaml:4: parameter_rules.a*: 'a*' holds a '*'"),
        (HEAD + "parameter_rules: [a]", 'c.yaml:3: parameter_rules: ["a"] is a list; allowed: a mapping'),
        (HEAD + "parameter_rules:\n  a: x", "c.yaml:4: parameter_rules.a: 'x' is text; allowed: a mapping"),
        (HEAD + "parameter_rules: {a: {allowed_values: {x: [[1]]}}}",
         "c.yaml:3: parameter_rules.a.allowed_values.x[0]: [1] is a list"),
        (HEAD + "parameter_rules: {a: {allowed_values: {x: en}}}",
         "c.yaml:3: parameter_rules.a.allowed_values.x: 'en' is text; allowed: a list"),
        (HEAD + "trajectory_mode: relax", "c.yaml:3: trajectory_mode: 'relax', did you mean 'relaxed'?; allowed: 'strict' or 'relaxed'"),
        (HEAD + "grounding: semantic", "c.yaml:3: grounding: 'semantic'; allowed: 'off' or 'paper'"),
        (HEAD + "semantic: of", "c.yaml:3: semantic: 'of', did you mean 'off'?; allowed: 'off', 'advisory' or 'gate'"),
        (HEAD + "semantic: 3", "c.yaml:3: semantic: 3 is a number; allowed: a mapping"),
        (HEAD + "grounding: false", "c.yaml:3: grounding: false; allowed: 'off' or 'paper'"),
        (HEAD + "severity:\n  POLICY_TOOL_FORBIDEN: error",
         "c.yaml:4: severity.POLICY_TOOL_FORBIDEN: unknown code, did you mean 'POLICY_TOOL_FORBIDDEN'?"),
        (HEAD + "severity: {TRAJ_REPEATED_TOOL: fatal}",
         "c.yaml:3: severity.TRAJ_REPEATED_TOOL: 'fatal'; allowed: 'info', 'warning', 'error' or 'critical'"),
        (HEAD + "expected_trajectory: [" + "a," * 1001 + "]", "c.yaml:3: expected_trajectory: "),
        (HEAD + "applies_to: {service: " + "a" * 400 + "}", "c.yaml:3: applies_to.service: 400 characters; allowed: at most 256 characters"),
        (HEAD + "applies_to: {service: 1}", "c.yaml:3: applies_to.service: 1 is a number; allowed: text"),
        (HEAD + "version: 2", "c.yaml:3: key 'version' stands here twice"),
        (HEAD + "owner: &o [x]\nrationale: *o", "c.yaml:3: anchor &o: anchors are refused"),
        (b"contract: \xff", "c.yaml:1: is not UTF-8 text"),
    ],
)  # fmt: skip
def test_bad_contracts_give_one_line_with_file_line_and_field(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        load(tmp_path, text)
    found = str(error.value)
    assert found.startswith(f"{tmp_path}/{message}"), found
    assert found.isprintable()


def test_several_errors_are_counted_and_the_first_is_named(tmp_path):
    with pytest.raises(InputError, match=r"c.yaml:3: owner: 1 is a number \(and 1 more\)"):
        load(tmp_path, HEAD + "owner: 1\nrationale: 2")


def test_a_large_file_is_refused_by_size(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(HEAD + "rationale: " + "x" * (2 << 20))
    with pytest.raises(
        InputError, match=f"^{path}: 2097186 bytes; allowed: at most 1048576 bytes$"
    ):
        load_contracts(tmp_path)
    assert load_contracts(tmp_path, limit=4 << 20)[0].contract == "c"


def test_a_directory_is_read_in_order_of_name_and_version(tmp_path):
    for file, name, version in (("1.yml", "b", 1), ("2.yaml", "a", 10), ("3.yaml", "a", 9)):
        (tmp_path / file).write_text(f"contract: {name}\nversion: {version}")
    (tmp_path / ".hidden.yaml").write_text("nonsense")
    (tmp_path / "notes.txt").write_text("nonsense")
    (tmp_path / "below").mkdir()
    assert [c.key for c in load_contracts(tmp_path)] == [("a", 9), ("a", 10), ("b", 1)]


def test_no_contract_at_all_is_fine(tmp_path):
    assert load_contracts(tmp_path) == ()


def test_a_directory_that_is_none_is_named(tmp_path):
    with pytest.raises(InputError, match="none: cannot be read: No such file"):
        load_contracts(tmp_path / "none")


def test_two_contracts_with_one_name_and_version_name_both_files(tmp_path):
    for file in ("one.yaml", "two.yaml"):
        (tmp_path / file).write_text(HEAD)
    with pytest.raises(InputError) as error:
        load_contracts(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/two.yaml: contract 'c' version 1 stands in {tmp_path}/one.yaml too;"
        " allowed: one file for a name and version"
    )


# -- binding -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("glob", "text", "expected"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("a", "ab", False),
        ("*", "", True),
        ("*", "anything", True),
        ("support-*", "support-", True),
        ("support-*", "xsupport-1", False),
        ("*-eu", "shop-eu", True),
        ("a*b*c", "aXbYc", True),
        ("a*b*c", "acb", False),
        ("a*a", "a", False),
        ("a**a", "aa", True),
        ("*b*", "abc", True),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("a?", "ab", False),
    ],
)
def test_globs(glob, text, expected):
    assert matches(glob, text) is expected


@given(st.text(st.sampled_from("ab*"), max_size=8), st.text(st.sampled_from("ab"), max_size=10))
def test_globs_match_like_the_regular_expression(glob, text):
    pattern = ".*".join(re.escape(piece) for piece in glob.split("*"))
    assert matches(glob, text) is (re.fullmatch(pattern, text) is not None)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, "yes"),
        ({"service": "shop-*"}, "yes"),
        ({"service": "other"}, "no"),
        ({"attributes": {"env": "prod"}}, "yes"),
        ({"attributes": {"env": "dev"}}, "no"),
        ({"attributes": {"tenant": "*"}}, "no"),
        ({"agent": "Refund*"}, "yes"),
        ({"agent": "Other"}, "undetermined"),
        ({"agent": "Other", "service": "other"}, "no"),
    ],
)
def test_a_contract_applies(selector, expected):
    c = contract(applies_to=selector)
    assert c.applies("shop-eu", {"env": "prod"}, ("Triage", "Refunds")) == expected


def test_an_unknown_service_matches_no_selector():
    assert contract(applies_to={"service": "*"}).applies(None, {}, ()) == "no"
    assert contract().applies(None, {}, ()) == "yes"
    assert contract(applies_to={"agent": "*"}).applies(None, {}, ()) == "undetermined"


# -- digests and policy sets ---------------------------------------------------------------

RICH = {
    "owner": "o",
    "applies_to": {"agent": "a*", "attributes": {"env": "p*"}},
    "parameter_rules": {
        "t": {"required": ["b", "a"], "allowed_values": {"z": [1, True], "a": [None]}}
    },
    "severity": {"POLICY_TOOL_FORBIDDEN": "critical"},
    "expected_trajectory": ["t", "t"],
}


def test_a_digest_identifies_content():
    one = contract(**RICH)
    assert one.digest == contract(**dict(reversed(RICH.items()))).digest
    assert contract(allowed_tools=[]).digest == contract().digest  # a default says nothing
    others = [contract(), contract(version=2), contract(**RICH | {"owner": "p"}),
              contract(**RICH | {"expected_trajectory": ["t"]})]  # fmt: skip
    assert len({c.digest for c in [one, *others]}) == 5
    assert contract(parameter_rules={"t": {"allowed_values": {"a": [1]}}}).digest != (
        contract(parameter_rules={"t": {"allowed_values": {"a": ["1"]}}}).digest
    )


def test_a_policy_set_survives_its_bytes_and_ignores_the_order_of_files():
    contracts = [contract(**RICH), contract(version=2), contract(contract="b")]
    one = PolicySet(contracts, Limits(max_steps=7), "hash", ("tenant", "env"))
    same = PolicySet(reversed(contracts), Limits(max_steps=7), "hash", ("env", "tenant", "env"))
    assert (one, one.digest, one.encode()) == (same, same.digest, same.encode())
    decoded = PolicySet.decode(one.encode())
    assert (decoded, decoded.digest) == (one, one.digest)
    assert decoded.contracts == one.contracts
    assert [c.digest for c in decoded.contracts] == [c.digest for c in one.contracts]
    assert (decoded.limits.max_steps, decoded.evidence) == (7, "hash")
    assert list(decoded.contracts[1].parameter_rules["t"].allowed_values) == ["z", "a"]
    for other in (PolicySet(), PolicySet(contracts), PolicySet(contracts, Limits(max_steps=7))):
        assert other.digest != one.digest


def test_digests_do_not_depend_on_the_process():
    code = "from monitor.contract import *; print(PolicySet(load_contracts(Path('deploy/contracts'))).digest)"
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={"PYTHONHASHSEED": seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert runs == {PolicySet(load_contracts(ROOT / "deploy" / "contracts")).digest + "\n"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", PolicySet().encode()[:-1]])
def test_bytes_that_are_no_policy_set_are_refused(data):
    with pytest.raises(ValueError):
        PolicySet.decode(data)


def test_a_newer_format_is_refused():
    newer = PolicySet().encode().replace(b'"format":1', b'"format":2')
    with pytest.raises(ValueError, match="format 2"):
        PolicySet.decode(newer)


def test_one_name_and_version_twice_is_no_policy_set():
    with pytest.raises(InputError, match="contract c: version 1 twice"):
        PolicySet([contract(), contract(owner="x")])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_steps": 0}, "max_steps: 0; allowed: at least 1"),
        ({"max_bytes": -1}, "max_bytes: -1; allowed: at least 1"),
        ({"max_age": 0}, "max_age: 0; allowed: at least 1"),
        ({"state_ttl": 86_400_000}, "allowed: at least max_age . 1 h = 90000000 ms"),
    ],
)
def test_limits_are_checked(fields, message):
    with pytest.raises(InputError, match=message):
        Limits(**fields)
    assert Limits(state_ttl=90_000_000).max_age == 86_400_000
