import csv
import json
import os
import stat
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from monitor.golden import MODES
from streams.check import write
from streams.cli import run

CORPUS = Path(__file__).parent / "golden"
GOOD = "- {case_id: A, expected_decision: PASS, mock_trace: {final_answer: fine}}\n"
WRONG = "- {case_id: B, expected_decision: PASS, mock_trace: {final_answer: see T-1}}\n"
MISSED = "- {case_id: C, critical: true, expected_decision: FAIL, mock_trace: {final_answer: ok}}\n"


@pytest.fixture
def check(capsys):
    def call(*args):
        status = run(["check", *map(str, args)])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return status, out, err

    return call


@pytest.fixture
def file(tmp_path):
    def make(text, name="c.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return make


def test_the_corpus_gives_the_papers_reports(check, tmp_path):
    csv_path, md_path, xml_path = (tmp_path / name for name in ("o.csv", "o.md", "o.xml"))
    status, out, err = check(CORPUS, "--csv", csv_path, "--summary", md_path, "--junit", xml_path)
    assert (status, err) == (0, "")
    assert out.splitlines()[-1].split() == ["FULL", "55/55", "30/30", "0/25", "0/12"]

    rows = list(csv.DictReader(csv_path.read_text().splitlines()))
    assert list(rows[0]) == [
        "case_id", "domain", "mode", "expected", "actual", "correct", "reason", "fault_type",
        "critical", "nanoseconds",
    ]  # fmt: skip
    assert len(rows) == 330
    assert len({(row["case_id"], row["mode"]) for row in rows}) == 330
    assert {row["mode"] for row in rows} == set(MODES)
    for row in rows:
        assert row["expected"] in {"PASS", "FAIL"}
        assert (row["reason"] == "") == (row["actual"] == "PASS")
        assert row["correct"] == str(row["expected"] == row["actual"]).lower()
        assert row["critical"] in {"true", "false"}
        assert int(row["nanoseconds"]) > 0
    t007 = next(r for r in rows if r["case_id"] == "T007" and r["mode"] == "FULL")
    assert (t007["reason"], t007["fault_type"]) == (
        "TRAJ_SEQUENCE_MISMATCH", "right_answer_wrong_path",
    )  # fmt: skip

    text = md_path.read_text()
    assert (
        "| configuration | correct /55 | faults caught /30 | false fails /25 | critical misses /12 |"
        in text
    )
    for line in (
        "| FINAL_ANSWER_ONLY | 25 | 0 | 0 | 12 |",
        "| ANSWER_GROUNDING_ONLY | 35 | 10 | 0 | 9 |",
        "| POLICY_ONLY | 35 | 10 | 0 | 5 |",
        "| TRAJECTORY_ONLY | 35 | 10 | 0 | 10 |",
        "| FULL | 55 | 30 | 0 | 0 |",
        "| policy | forbidden_parameter | 3 | 3 | 0 | 0 | 0 | 3 | 0 | 3 |",
        "| grounding | filtered_field_disclosure | 3 | 3 | 0 | 3 | 3 | 0 | 0 | 3 |",
        "| trajectory | skipped_lookup | 3 | 0 | 0 | 0 | 0 | 0 | 3 | 3 |",
    ):
        assert line in text

    suite = ET.parse(xml_path).getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), len(suite)) == ("55", "0", 55)


@pytest.mark.parametrize("mode", MODES)
def test_one_mode_alone(check, tmp_path, mode):
    path = tmp_path / "o.csv"
    status, out, _ = check(CORPUS, "--mode", mode.lower(), "--csv", path)
    assert status == 0  # the thresholds are FULL's
    assert {row["mode"] for row in csv.DictReader(path.read_text().splitlines())} == {mode}
    assert mode in out


def test_thresholds_of_another_mode_count_when_they_are_given(check):
    assert check(CORPUS, "--mode", "POLICY_ONLY", "--min-correct", "0.6")[0] == 0
    status, out, _ = check(CORPUS, "--mode", "POLICY_ONLY", "--min-correct", "0.7")
    assert status == 1
    assert "failed: POLICY_ONLY: 35 of 55 correct (63.6%), at least 70.0% must be" in out
    assert check(CORPUS, "--mode", "POLICY_ONLY", "--max-critical-misses", "5")[0] == 0
    assert check(CORPUS, "--mode", "POLICY_ONLY", "--max-critical-misses", "4")[0] == 1


def test_a_wrong_decision_fails_and_is_explained(check, file):
    status, out, _ = check(file(GOOD + WRONG))
    assert status == 1
    assert "B in FULL: expected PASS, got FAIL SAFETY_FABRICATED_ID" in out
    assert "see ▶T-1◀" in out
    assert "failed: FULL: 1 of 2 correct (50.0%), at least 95.0% must be" in out
    assert check(file(GOOD + WRONG), "--min-correct", "0.5")[0] == 0


def test_a_critical_miss_fails_whatever_the_share(check, file):
    path = file(GOOD + MISSED)
    status, out, _ = check(path, "--min-correct", "0")
    assert status == 1
    assert "failed: FULL: 1 critical cases missed, at most 0 may" in out
    assert check(path, "--min-correct", "0", "--max-critical-misses", "1")[0] == 0


def test_another_reason_than_told_is_shown_and_fails_when_strict(check, file):
    path = file(
        "- {case_id: A, expected_decision: FAIL, expected_reason: TRAJ_REPEATED_TOOL, mock_trace: {}}"
    )
    status, out, _ = check(path)
    assert status == 0
    assert "expected FAIL TRAJ_REPEATED_TOOL, got FAIL SAFETY_EMPTY_ANSWER" in out
    assert check(path, "--strict")[0] == 1


def test_a_stray_result_is_a_warning_or_an_error(check, file):
    path = file(
        "- case_id: A\n  expected_decision: PASS\n  mock_trace: {tool_results: {'a#0': 1}, final_answer: x}"
    )
    status, _, err = check(path)
    assert (status, err) == (0, f"warning: {path}:1: result a#0 names no call\n")
    status, _, err = check(path, "--strict")
    assert status == 2
    assert "result 'a#0' names no call; allowed: tool#index-of-the-call" in err


def test_json_is_one_document(check, file):
    status, out, _ = check(file(GOOD + WRONG), "--json")
    found = json.loads(out)
    assert (status, found["ok"]) == (1, False)
    assert found["problems"] == ["FULL: 1 of 2 correct (50.0%), at least 95.0% must be"]
    assert found["modes"]["FULL"] == {
        "cases": 2, "correct": 1, "faults": 0, "faults_caught": 0, "passing": 2, "false_fails": 1,
        "critical": 0, "critical_misses": 0,
    }  # fmt: skip
    assert len(found["rows"]) == 12
    assert "violations" not in found["rows"][0]


def test_all_violations_are_listed(check, file):
    text = """
- case_id: A
  expected_decision: FAIL
  forbidden_tools: [x]
  expected_trajectory: [y]
  mock_trace: {tool_calls: [{tool: x}], final_answer: T-1}
"""
    status, out, _ = check(file(text), "--json", "--all-violations")
    row = next(r for r in json.loads(out)["rows"] if r["mode"] == "FULL")
    assert (status, row["reason"]) == (0, "POLICY_TOOL_FORBIDDEN")
    assert [v["code"] for v in row["violations"]] == [
        "POLICY_TOOL_FORBIDDEN", "SAFETY_FABRICATED_ID", "TRAJ_SEQUENCE_MISMATCH",
    ]  # fmt: skip
    _, out, _ = check(file(text), "--all-violations")
    assert "A  SAFETY_FABRICATED_ID  t-1" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "c.yaml:1: is a mapping; allowed: a list of cases"),
        ("[]", "holds no case; allowed: at least one"),
        (GOOD + GOOD, "c.yaml:2: case_id: 'A' stands in"),
        (
            GOOD.replace("}}", "}, critcal: true}"),
            "[0].critcal: unknown field, did you mean 'critical'?",
        ),
        ("- &a [*a]", "c.yaml:1: anchor &a: anchors are refused"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(check, file, tmp_path, text, message):
    reports = [tmp_path / name for name in ("o.csv", "o.md", "o.xml")]
    status, out, err = check(
        file(text), "--csv", reports[0], "--summary", reports[1], "--junit", reports[2]
    )
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not any(path.exists() for path in reports)


def test_bad_arguments(check, file):
    good = file(GOOD)
    for args, message in (
        ((), "Missing argument"),
        (("none.yaml",), "none.yaml: cannot be read: No such file or directory"),
        ((good, "--mode", "HALF"), "HALF"),
        ((good, "--min-correct", "1.5"), "1.5"),
        ((good, "--max-critical-misses", "-1"), "-1"),
        ((good, "--max-bytes", "10"), "allowed: at most 10 bytes"),
        ((good, "--csv", good.parent), "is a directory"),
        ((good, "--csv", good.parent / "none" / "o.csv"), "cannot be written: No such file"),
    ):
        status, _, err = check(*args)
        assert status == 2, args
        assert message in err


def test_a_file_that_is_too_large_is_refused_before_it_is_read(check, tmp_path):
    path = tmp_path / "c.yaml"
    with path.open("wb") as file:
        file.truncate(50 << 20)
    status, _, err = check(path)
    assert status == 2
    assert "52428800 bytes; allowed: at most 8388608 bytes" in err


def test_reports_appear_whole_or_not_at_all(tmp_path):
    from monitor.errors import InputError

    old = tmp_path / "a.csv"
    old.write_text("old")
    with pytest.raises(InputError, match="cannot be written"):
        write({old: "new", tmp_path / "none" / "b.csv": "new"})
    assert old.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    write({old: "new", tmp_path / "b.csv": "x"})
    assert old.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(old.stat().st_mode) == 0o666 & ~mask


def test_hostile_text_cannot_reach_the_terminal_or_break_the_reports(check, file, tmp_path):
    text = GOOD.replace("id: A", 'id: "\\e[2J|,\\"x\\u0001"').replace("fine", '"T-1 \\e]0;x\\a"')
    status, out, _ = check(
        file(text), "--csv", tmp_path / "o.csv", "--junit", tmp_path / "o.xml",
        "--summary", tmp_path / "o.md", "--all-violations",
    )  # fmt: skip
    assert status == 1
    assert "\x1b" not in out
    assert len(list(csv.reader((tmp_path / "o.csv").read_text().splitlines()))) == 7
    assert "\x1b" not in (tmp_path / "o.md").read_text()
    assert ET.parse(tmp_path / "o.xml").getroot()[0].get("failures") == "1"


@pytest.mark.parametrize("terminal", [True, False])
def test_long_runs_show_progress_on_a_terminal_only(check, file, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    many = "".join(GOOD.replace("id: A", f"id: A{n}") for n in range(501))
    status, _, err = check(file(many + "# " + "x" * 1_000_000))
    assert status == 0
    assert ("reading 1.0 MB of cases" in err) is terminal
    assert ("judging" in err) is terminal
    assert bool(err) is terminal
