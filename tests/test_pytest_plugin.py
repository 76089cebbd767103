import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

# Loaded before pytester remembers the modules: it forgets those that a run within this process
# imports, and a second copy of PyYAML would not know the events of its own C parser.
import monitor.golden_items
import monitor.pytest_plugin
import streams.pytest_plugin
import streams.trace_items

__all__ = ["monitor", "streams"]

pytest_plugins = ["pytester"]

CAPTURES = Path(__file__).parent / "captures"
CORPUS = Path(__file__).parent / "golden" / "cases.yaml"

CASES = """
- case_id: GOOD
  critical: true
  expected_decision: PASS
  mock_trace: {final_answer: fine}
- case_id: PATH
  expected_decision: PASS
  expected_trajectory: [a, b]
  mock_trace: {tool_calls: [{tool: a}, {tool: c}], final_answer: fine}
- case_id: ANSWER
  expected_decision: PASS
  mock_trace: {final_answer: The part is SKU-7.}
"""
PLUGINS = (
    "-p", "monitor.pytest_plugin", "-p", "streams.pytest_plugin", "-p", "no:cacheprovider",
    "-W", "default", "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


@pytest.fixture
def run(pytester, monkeypatch):
    """pytest in an empty folder, with our plugins and no other, installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *args: pytester.runpytest_inprocess(*PLUGINS, *args)


def write(pytester, **files):
    for name, text in files.items():
        path = pytester.path / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_cases_are_tests_and_failures_explain_themselves(pytester, run):
    write(pytester, desk_golden_yaml=CASES)
    result = run("-v")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines_random(["desk.golden.yaml::GOOD PASSED*"])
    text = result.stdout.str()
    assert "PATH in FULL: expected PASS, got FAIL TRAJ_SEQUENCE_MISMATCH" in text
    assert "    1  a          a\n    2  b          c          ◀ first difference" in text
    assert "The part is ▶SKU-7◀." in text
    assert "golden_items.py" not in text  # no traceback


def test_other_files_are_left_alone(pytester, run):
    write(pytester, notes_yaml="a: 1", other__golden_yaml="a: 1")
    assert run().ret == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize("setting", ["cases", "cases/a.yaml"])
def test_configured_paths_are_collected(pytester, run, setting):
    write(pytester, cases__a_yaml=CASES, elsewhere__b_yaml=CASES)
    pytester.makeini(f"[pytest]\ntestpaths = tests\ngolden_paths = {setting}")
    pytester.mkdir("tests")
    run().assert_outcomes(passed=1, failed=2)
    run("cases").assert_outcomes(passed=1, failed=2)
    assert run("elsewhere").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_case_runs_once_where_paths_overlap(pytester, run):
    write(pytester, tests__a_golden_yaml=CASES)
    pytester.makeini("[pytest]\ntestpaths = tests\ngolden_paths = tests tests/a.golden.yaml")
    run().assert_outcomes(passed=1, failed=2)


def test_modes_make_a_test_each(pytester, run):
    write(pytester, a_golden_json=json.dumps([
        {"case_id": "A", "expected_decision": "FAIL", "mock_trace": {"final_answer": "T-1"}}
    ]))  # fmt: skip
    run("--golden-mode", "all").assert_outcomes(passed=3, failed=3)
    result = run("--golden-mode", "judge_only", "--golden-mode", "POLICY_ONLY", "-v")
    result.stdout.fnmatch_lines(["*A?JUDGE_ONLY? PASSED*", "*A?POLICY_ONLY? FAILED*"])
    pytester.makeini("[pytest]\ngolden_modes = FULL JUDGE_ONLY")
    run().assert_outcomes(passed=2)


def test_an_unknown_mode_is_told(pytester, run):
    write(pytester, a_golden_yaml=CASES)
    result = run("--golden-mode", "HALF")
    assert "golden mode: HALF; allowed: FINAL_ANSWER_ONLY" in result.stdout.str()


def test_bad_files_are_told_in_one_line(pytester, run):
    write(pytester, a_golden_yaml="- {case_id: A, expected: PASS}", b_golden_yaml=CASES)
    result = run()
    result.assert_outcomes(errors=1)
    text = result.stdout.str()
    assert "a.golden.yaml:1: [0].expected: unknown field" in text
    assert "Traceback" not in text


def test_stray_results_warn_or_fail(pytester, run):
    write(
        pytester,
        a_golden_yaml="- {case_id: A, expected_decision: PASS, mock_trace: {tool_results: {'a#0': 1}, final_answer: x}}",
    )
    run().assert_outcomes(passed=1, warnings=1)
    pytester.makeini("[pytest]\ngolden_strict = true")
    run().assert_outcomes(errors=1)


def test_a_size_limit(pytester, run):
    write(pytester, a_golden_yaml=CASES)
    pytester.makeini("[pytest]\ngolden_max_bytes = 10")
    assert "allowed: at most 10 bytes" in run().stdout.str()
    pytester.makeini("[pytest]\ngolden_max_bytes = ten")
    assert "golden_max_bytes: ten; allowed: a number of bytes" in run().stdout.str()


def test_critical_cases_can_be_selected(pytester, run):
    write(pytester, a_golden_yaml=CASES)
    run("-m", "critical", "--strict-markers").assert_outcomes(passed=1, deselected=2)


def test_junit_is_pytests_own(pytester, run):
    write(pytester, a_golden_yaml=CASES)
    run("--junitxml=o.xml")
    suite = ET.parse(pytester.path / "o.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    assert "▶SKU-7◀" in suite.find(".//testcase[@name='ANSWER']/failure").text


def test_the_corpus_passes(pytester, run):
    shutil.copy(CORPUS, pytester.path / "cases.golden.yaml")
    run().assert_outcomes(passed=55)


# -- captured traces -----------------------------------------------------------------------

DESK = """
contract: desk
version: 1
applies_to: {service: support-desk}
grounding: off
forbidden_tools: [issue_refund]
"""
ORDER = """
contract: order
version: 2
applies_to: {service: support-desk}
grounding: off
expected_trajectory: [get_ticket, get_order]
"""


@pytest.fixture
def captures(pytester):
    write(pytester, contracts__desk_yaml=DESK)
    for name in ("ok_parallel", "bad_forbidden"):
        shutil.copytree(CAPTURES / "pydantic-ai-2.68.0" / name, pytester.path / "traces" / name)
    return pytester.path / "traces"


def test_captured_traces_are_judged_by_contracts(captures, run):
    result = run("traces", "--golden-contracts", "contracts", "-v")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["traces/bad_forbidden/00.traces.pb::*?desk 1? FAILED*"])
    text = result.stdout.str()
    assert "is violated" in text
    assert "POLICY_TOOL_FORBIDDEN (error): issue_refund: the tool is forbidden" in text
    assert "Traceback" not in text


def test_without_contracts_traces_are_no_tests(captures, run):
    assert run("traces").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_each_contract_that_applies_is_a_test_and_paths_are_shown(pytester, captures, run):
    write(pytester, contracts__order_yaml=ORDER)
    result = run("traces/bad_forbidden", "--golden-contracts", "contracts")
    result.assert_outcomes(failed=2)
    assert "2  get_order    issue_refund   ◀ first difference" in result.stdout.str()


def test_a_trace_that_no_contract_is_for_is_skipped(pytester, captures, run):
    write(pytester, contracts__desk_yaml=DESK.replace("support-desk", "elsewhere"))
    run("traces", "--golden-contracts", "contracts").assert_outcomes(skipped=2)


def test_what_was_partly_seen_does_not_pass(pytester, run):
    write(pytester, contracts__desk_yaml=DESK.replace("off", "paper"))
    shutil.copytree(CAPTURES / "pydantic-ai-2.68.0" / "no_content", pytester.path / "traces")
    result = run("traces", "--golden-contracts", "contracts")
    result.assert_outcomes(failed=1)
    assert "is unassessed (content_hidden" in result.stdout.str()


def test_exports_are_judged_like_their_traces(pytester, captures, run, capsys):
    from streams.cli import run as command

    write(pytester, contracts__order_yaml=ORDER)
    capsys.readouterr()
    assert command(["inspect", str(captures), "--json"]) == 0
    (pytester.path / "all.jsonl").write_text(capsys.readouterr().out)
    exported = run("all.jsonl", "--golden-contracts", "contracts", "-v")
    direct = run("traces", "--golden-contracts", "contracts", "-v")

    def outcomes(result):
        return sorted(re.findall(r"::(\w+\[\w+ \d+\]) (PASSED|FAILED)", result.stdout.str()))

    assert outcomes(exported) == outcomes(direct) != []
    exported.assert_outcomes(passed=1, failed=3)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"trajectory_id": 1}', "a.jsonl:1: is no exported trajectory: "),
        ("a.jsonl", '{"trajectory_id": "x", "steps": []}\nnonsense', "a.jsonl:2: is no exported"),
        ("a.pb", "nonsense", "a.pb: not an OTLP traces request"),
    ],
)
def test_bad_traces_are_told_in_one_line(pytester, run, name, text, message):
    write(pytester, contracts__desk_yaml=DESK)
    (pytester.path / name).write_text(text)
    result = run(name, "--golden-contracts", "contracts")
    assert message in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_bad_contracts_are_told_at_start(pytester, run):
    write(pytester, contracts__desk_yaml=DESK + "forbiden: x")
    assert (
        "desk.yaml:7: forbiden: unknown field"
        in run("--golden-contracts", "contracts").stderr.str()
    )
    pytester.mkdir("empty")
    assert "empty: holds no contract" in run("--golden-contracts", "empty").stderr.str()
    assert "none: cannot be read" in run("--golden-contracts", "none").stderr.str()
