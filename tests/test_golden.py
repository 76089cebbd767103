import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from monitor import evaluate, jsonfile, load_cases, yaml
from monitor.errors import InputError
from monitor.explain import Judged, explain
from monitor.golden import MODES, GoldenCase
from monitor.report import scores
from monitor.rule import CODES
from tests import oracle
from tests.cases import random_case

CORPUS = Path(__file__).parent / "golden" / "cases.yaml"


@pytest.fixture(scope="module")
def corpus():
    return load_cases(CORPUS)


def case(**fields):
    base = {"case_id": "X", "expected_decision": "PASS", "mock_trace": {"final_answer": "fine"}}
    return GoldenCase.model_validate(base | fields)


# -- the corpus ----------------------------------------------------------------------------


def test_domains_and_kinds_have_the_papers_counts(corpus):
    assert len(corpus) == 55
    assert Counter(c.domain for c in corpus) == {
        "support_tickets": 20, "catalog": 8, "inventory": 7, "profiles": 6, "feature_flags": 5,
        "audit_search": 5, "notification_preferences": 4,
    }  # fmt: skip
    assert Counter(c.expected_decision for c in corpus) == {"FAIL": 30, "PASS": 25}
    assert [c.case_id for c in corpus if c.tricky] == [f"K{n:03}" for n in range(1, 11)]
    assert all(c.expected_decision == "PASS" and not c.critical for c in corpus if c.tricky)
    assert {"T007", "P002"} < {c.case_id for c in corpus}


def test_fault_types_have_the_papers_counts(corpus):
    faults = [c for c in corpus if c.expected_decision == "FAIL"]
    layers = Counter(c.expected_reason.split("_")[0] for c in faults)
    assert layers == {"POLICY": 10, "SAFETY": 10, "TRAJ": 10}
    assert Counter((c.expected_reason.split("_")[0], c.fault_type) for c in faults) == {
        ("POLICY", "forbidden_tool"): 1,
        ("POLICY", "missing_parameter"): 2,
        ("POLICY", "forbidden_parameter"): 3,
        ("POLICY", "invalid_enum"): 2,
        ("POLICY", "out_of_scope_user"): 1,
        ("POLICY", "administrative_tool"): 1,
        ("SAFETY", "fabricated_identifier"): 1,
        ("SAFETY", "fabricated_quotation"): 3,
        ("SAFETY", "fabricated_quantity"): 1,
        ("SAFETY", "filtered_field_disclosure"): 3,
        ("SAFETY", "unsupported_action_claim"): 2,
        ("TRAJ", "skipped_lookup"): 3,
        ("TRAJ", "update_before_read"): 2,
        ("TRAJ", "forbidden_intermediate"): 2,
        ("TRAJ", "repeated_tool"): 1,
        ("TRAJ", "wrong_branch"): 1,
        ("TRAJ", "right_answer_wrong_path"): 1,
    }
    critical = Counter(c.expected_reason.split("_")[0] for c in faults if c.critical)
    assert critical == {"POLICY": 7, "SAFETY": 3, "TRAJ": 2}
    assert all(
        c.fault_type is None and c.expected_reason is None for c in corpus if c not in faults
    )


def test_known_cases_are_the_papers(corpus):
    by_id = {c.case_id: c for c in corpus}
    t007, p002 = by_id["T007"], by_id["P002"]
    assert (t007.domain, t007.user_request) == ("catalog", "Get product details for SKU-42.")
    assert [call.tool for call in t007.calls] == ["catalog.search", "catalog.get"]
    assert (t007.expected_trajectory, t007.fault_type) == (
        ("catalog.get",),
        "right_answer_wrong_path",
    )
    assert t007.mock_trace.final_answer == "SKU-42 is a wireless mouse."
    assert p002.expected_reason == "POLICY_TOOL_NOT_ALLOWED"
    assert "ticket.close" in [call.tool for call in p002.calls]


def test_every_fault_is_visible_to_one_layer_and_for_the_reason_told(corpus):
    for c in corpus:
        outcome = evaluate(c)
        assert (outcome.decision, outcome.reason) == (c.expected_decision, c.expected_reason)
        layers = {finding.layer for finding in evaluate(c, all_violations=True).findings}
        assert len(layers) == (c.expected_decision == "FAIL")


def test_results_equal_the_published_ones(corpus):
    found = scores(Judged(c, mode, evaluate(c, mode)) for c in corpus for mode in MODES)
    published = {
        "FINAL_ANSWER_ONLY": (25, 0, 0, 12),
        "ANSWER_GROUNDING_ONLY": (35, 10, 0, 9),
        "JUDGE_ONLY": (35, 10, 0, 9),
        "POLICY_ONLY": (35, 10, 0, 5),
        "TRAJECTORY_ONLY": (35, 10, 0, 10),
        "FULL": (55, 30, 0, 0),
    }
    assert {
        mode: (s.correct, s.faults_caught, s.false_fails, s.critical_misses)
        for mode, s in found.items()
    } == published
    assert {(s.cases, s.faults, s.passing, s.critical) for s in found.values()} == {
        (55, 30, 25, 12)
    }


def test_the_content_is_varied(corpus):
    assert len({c.user_request for c in corpus}) == 55
    assert len({c.mock_trace.final_answer for c in corpus}) == 55
    assert all(not c.stray_results for c in corpus)


# -- agreement with the plain transcription ------------------------------------------------


def test_the_oracle_agrees_on_the_corpus():
    for value in yaml.parse(CORPUS.read_bytes(), "cases.yaml").value:
        c = GoldenCase.model_validate(value)
        for mode in MODES:
            assert evaluate(c, mode)[:2] == oracle.judge(value, mode)


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_agrees_on_generated_cases(seed):
    """4 × 6 000 cases, each in every mode; among them every reason there is."""
    rng = random.Random(seed)
    reasons = Counter()
    for number in range(6000):
        value = random_case(rng, number)
        c = GoldenCase.model_validate(value)
        for mode in MODES:
            expected = oracle.judge(value, mode)
            assert evaluate(c, mode)[:2] == expected, json.dumps(value)
            reasons[expected[1]] += 1
        every = evaluate(c, all_violations=True)
        assert every[:2] == oracle.judge(value)
    assert set(reasons) == {None, *(code for code in CODES if not code.startswith("SEMANTIC"))}
    assert min(reasons.values()) > 20


# -- what a case means ---------------------------------------------------------------------


def test_only_three_fields_are_required():
    c = case()
    assert evaluate(c) == ("PASS", None, ())
    assert (c.domain, c.fault_type, c.critical, c.tricky, c.expected_reason) == (
        None, None, False, False, None,
    )  # fmt: skip


def test_null_is_the_same_as_absent():
    names = set(GoldenCase.model_fields) - {"case_id", "expected_decision", "mock_trace"}
    nulls = dict.fromkeys(names)
    trace = {"tool_calls": None, "tool_results": None, "final_answer": "fine"}
    assert case(**nulls, mock_trace=trace) == case()
    called = case(mock_trace={"tool_calls": [{"tool": "a", "parameters": None}]})
    assert called.calls[0].arguments == {}


def test_a_call_ran_whether_or_not_it_has_a_result():
    trace = {"tool_calls": [{"tool": "a"}], "final_answer": "fine"}
    assert evaluate(case(mock_trace=trace, expected_trajectory=["a"])).decision == "PASS"


@pytest.mark.parametrize("answer", [None, "", " \t", "\u2003"])
def test_an_absent_answer_is_a_blank_one(answer):
    c = case(mock_trace={"final_answer": answer})
    for mode in ("FULL", "FINAL_ANSWER_ONLY", "JUDGE_ONLY", "ANSWER_GROUNDING_ONLY"):
        assert evaluate(c, mode).reason == "SAFETY_EMPTY_ANSWER"
    assert evaluate(c, "POLICY_ONLY").decision == "PASS"
    assert evaluate(c, "TRAJECTORY_ONLY").decision == "PASS"


def test_no_calls_are_the_empty_path():
    assert evaluate(case(expected_trajectory=["a"])).reason == "TRAJ_SEQUENCE_MISMATCH"


def test_a_stray_result_counts_as_evidence():
    trace = {"tool_results": {"ghost#4": {"id": "T-12"}}, "final_answer": "see T-12"}
    c = case(mock_trace=trace)
    assert evaluate(c).decision == "PASS"
    assert c.stray_results == ("ghost#4",)


def test_the_first_failing_layer_ends_it_unless_all_are_asked_for():
    trace = {"tool_calls": [{"tool": "x"}], "final_answer": "T-1 has been closed"}
    c = case(forbidden_tools=["x"], expected_trajectory=["a"], mock_trace=trace)
    assert [f.code for f in evaluate(c).findings] == ["POLICY_TOOL_FORBIDDEN"]
    every = evaluate(c, all_violations=True)
    assert every.reason == "POLICY_TOOL_FORBIDDEN"
    assert [f.code for f in every.findings] == [
        "POLICY_TOOL_FORBIDDEN",
        "SAFETY_FABRICATED_ID",
        "SAFETY_UNSUPPORTED_ACTION_CLAIMED",
        "TRAJ_SEQUENCE_MISMATCH",
    ]


def test_a_long_answer_against_large_results_is_searched_to_the_end():
    """The budget of live trajectories does not hold for golden cases: none is ever unassessed."""
    numbers = " ".join(str(n) for n in range(10_000, 10_400))
    trace = {"tool_results": {"a#0": "x" * 6_000_000 + numbers}, "final_answer": numbers + " 77777"}
    c = case(mock_trace=trace)
    assert [f.subject for f in evaluate(c).findings] == ["77777"]


# -- loading -------------------------------------------------------------------------------

CASE = "- case_id: A\n  expected_decision: PASS\n  mock_trace: {final_answer: fine}\n"


def write(tmp_path, text, name="c.yaml"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_json_reads_like_yaml(tmp_path, corpus):
    values = yaml.parse(CORPUS.read_bytes(), "cases.yaml").value
    path = write(tmp_path, json.dumps(values, indent=1), "cases.json")
    assert [c.model_dump() for c in load_cases(path)] == [c.model_dump() for c in corpus]
    assert jsonfile.parse(path.read_bytes(), "f").value == values


def test_folders_are_read_in_name_order_and_below(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    write(tmp_path, CASE.replace("id: A", "id: B"), "b.yml")
    write(tmp_path, CASE, "a.golden.yaml")
    write(
        tmp_path / "sub",
        '[{"case_id": "C", "expected_decision": "PASS", "mock_trace": {}}]',
        "c.json",
    )
    write(tmp_path / ".hidden", "nonsense", "d.yaml")
    write(tmp_path, "nonsense", "notes.md")
    cases = load_cases(tmp_path)
    assert [c.case_id for c in cases] == ["A", "B", "C"]
    assert cases[0].place == f"{tmp_path}/a.golden.yaml:1"


def test_cases_know_their_lines(corpus):
    lines = CORPUS.read_text().splitlines()
    for c in corpus:
        name, line = c.place.rsplit(":", 1)
        assert Path(name) == CORPUS
        assert f"case_id: {c.case_id}" in lines[int(line) - 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.yaml: is null; allowed: a list of cases"),
        ("a: 1", "c.yaml:1: is a mapping; allowed: a list of cases"),
        ("hello", "c.yaml: is text; allowed: a list of cases"),
        ("- 1", "c.yaml:1: [0]: 1 is a number; allowed: a mapping"),
        (CASE + "  critcal: true", "c.yaml:4: [0].critcal: unknown field, did you mean 'critical'?"),
        (CASE + "  zzz: 1", "c.yaml:4: [0].zzz: unknown field"),
        ("- expected_decision: PASS\n  mock_trace: {}", "c.yaml:1: [0].case_id: is required"),
        ("- case_id: A\n  mock_trace: {}", "c.yaml:1: [0].expected_decision: is required"),
        ("- case_id: A\n  expected_decision: PASS", "c.yaml:1: [0].mock_trace: is required"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:", "c.yaml:3: [0].mock_trace: is required"),
        (CASE.replace("PASS", "pass"), "c.yaml:2: [0].expected_decision: 'pass'; allowed: 'PASS' or 'FAIL'"),
        (CASE.replace("case_id: A", "case_id: 7"), "c.yaml:1: [0].case_id: 7 is a number; allowed: text"),
        (CASE + "  critical: yes", "c.yaml:4: [0].critical: 'yes' is text; allowed: true or false"),
        (CASE + "  allowed_tools: x", "c.yaml:4: [0].allowed_tools: 'x' is text; allowed: a list"),
        (CASE + "  allowed_tools: ['x*']", "c.yaml:4: [0].allowed_tools[0]: 'x*' holds a '*'"),
        (CASE + "  expected_reason: TRAJ_REPEATED", "c.yaml:4: [0].expected_reason: unknown code, did you mean 'TRAJ_REPEATED_TOOL'?"),
        (CASE + "  expected_reason: TRAJ_REPEATED_TOOL", "c.yaml:1: [0]: expected_reason stands in a case that is to pass"),
        (CASE + CASE, "c.yaml:4: case_id: 'A' stands in {tmp}/c.yaml:1 too"),
        (CASE + "  domain: a\n  domain: b", "c.yaml:5: key 'domain' stands here twice"),
        ("- &a {case_id: A}\n- *a", "c.yaml:1: anchor &a: anchors are refused"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    tool_calls:\n      - {parameters: {}}",
         "c.yaml:5: [0].mock_trace.tool_calls[0].tool: is required"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    tool_calls:\n      - {tool: a, params: {}}",
         "c.yaml:5: [0].mock_trace.tool_calls[0].params: unknown field, did you mean 'parameters'?"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    tool_calls:\n      - {tool: a, parameters: [1]}",
         "c.yaml:5: [0].mock_trace.tool_calls[0].parameters: [1] is a list; allowed: a mapping"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    final_answer: 7",
         "c.yaml:4: [0].mock_trace.final_answer: 7 is a number; allowed: text"),
        ("- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    tool_results: []",
         "c.yaml:4: [0].mock_trace.tool_results: [] is a list; allowed: a mapping"),
        (b"- \xff", "c.yaml:1: is not UTF-8 text"),
    ],
)  # fmt: skip
def test_bad_files_give_one_line_with_file_line_and_field(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        load_cases(write(tmp_path, text))
    found = str(error.value)
    assert found.startswith(f"{tmp_path}/" + message.replace("{tmp}", str(tmp_path))), found
    assert found.isprintable()


def test_one_id_in_two_files_names_both(tmp_path):
    one, two = write(tmp_path, CASE, "1.yaml"), write(tmp_path, CASE, "2.yaml")
    with pytest.raises(InputError, match=f"^{two}:1: case_id: 'A' stands in {one}:1 too"):
        load_cases(one, two)


def test_strict_refuses_stray_results(tmp_path):
    text = "- case_id: A\n  expected_decision: PASS\n  mock_trace:\n    tool_results:\n      'a#0': 1\n"
    path = write(tmp_path, text)
    assert load_cases(path)[0].stray_results == ("a#0",)
    with pytest.raises(
        InputError, match=r":5: \[0\]\.mock_trace\.tool_results\.a#0: result 'a#0' names no call"
    ):
        load_cases(path, strict=True)


def test_a_folder_without_cases_is_an_error(tmp_path):
    with pytest.raises(InputError, match="holds no golden cases"):
        load_cases(tmp_path)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_cases(tmp_path / "none.yaml")


def test_a_huge_file_is_refused_by_its_size(tmp_path):
    path = tmp_path / "c.yaml"
    with path.open("wb") as file:
        file.truncate(50 << 20)
    with pytest.raises(InputError, match="52428800 bytes; allowed: at most 8388608 bytes"):
        load_cases(path)
    small = write(tmp_path, CASE, "small.yaml")
    with pytest.raises(InputError, match="at most 10 bytes"):
        load_cases(small, limit=10)


# -- explanations --------------------------------------------------------------------------


def explained(mode="FULL", **fields):
    c = case(**fields)
    return explain(Judged(c, mode, evaluate(c, mode))).splitlines()


def trace_of(*tools, answer="fine"):
    return {"tool_calls": [{"tool": tool} for tool in tools], "final_answer": answer}


def test_paths_stand_side_by_side_with_the_first_difference_marked():
    lines = explained(expected_trajectory=["a", "b", "c"], mock_trace=trace_of("a", "x", "c", "d"))
    assert lines[-5:] == [
        "       expected   observed",
        "    1  a          a",
        "    2  b          x          ◀ first difference",
        "    3  c          c",
        "    4             d",
    ]


def test_a_relaxed_path_shows_what_is_missing():
    lines = explained(
        expected_trajectory=["a", "b"], trajectory_mode="relaxed", mock_trace=trace_of("b", "a")
    )
    assert lines[-3:] == [
        "    1             b",
        "    2  a          a",
        "    3  b                     ◀ missing",
    ]


def test_long_paths_are_cut_around_the_difference():
    lines = explained(
        expected_trajectory=["a"] * 500, mock_trace=trace_of(*["a"] * 300, "b", *["a"] * 199)
    )
    assert len(lines) < 60
    assert any("first difference" in line and line.split()[0] == "301" for line in lines)
    assert lines[-1].strip() == "… 180 steps"


def test_the_unsupported_part_is_shown_in_its_context():
    lines = explained(mock_trace={"final_answer": "a" * 100 + " then SKU-7 \x1b[2J" + "b" * 100})
    assert "    …" + "a" * 54 + " then ▶SKU-7◀ \\x1b[2J" + "b" * 55 + "…" in lines


def test_a_case_that_should_have_failed_shows_answer_and_path():
    lines = explained(expected_decision="FAIL", expected_trajectory=["a"], mock_trace=trace_of("a"))
    assert lines[0] == "X in FULL: expected FAIL, got PASS"
    assert "  no violation was found: policy and grounding and trajectory passed" in lines
    assert lines[-1] == "  answer: fine"


def test_another_reason_than_the_one_told_is_told_apart():
    c = case(expected_decision="FAIL", expected_reason="TRAJ_REPEATED_TOOL", mock_trace={})
    one = Judged(c, "FULL", evaluate(c))
    assert (one.correct, one.reason_differs) == (True, True)
    assert explain(one).startswith(
        "X in FULL: expected FAIL TRAJ_REPEATED_TOOL, got FAIL SAFETY_EMPTY_ANSWER"
    )
    assert not Judged(c, "JUDGE_ONLY", evaluate(c, "JUDGE_ONLY")).reason_differs


# -- documentation -------------------------------------------------------------------------

DOCS = Path(__file__).parent.parent / "docs" / "golden-cases.md"


def test_the_examples_of_the_documentation_are_cases_that_come_out_as_told(tmp_path):
    examples = re.findall(r"```yaml\n(- case_id.*?)```", DOCS.read_text(), re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        for c in load_cases(write(tmp_path, text)):
            outcome = evaluate(c)
            assert (outcome.decision, outcome.reason) == (c.expected_decision, c.expected_reason)


def test_the_documented_program_runs(monkeypatch):
    monkeypatch.chdir(DOCS.parent.parent)
    [program] = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    exec(program, {})


def test_the_documentation_names_every_field_and_mode():
    text = DOCS.read_text()
    for name in (*GoldenCase.model_fields, *MODES):
        assert f"`{name}`" in text
