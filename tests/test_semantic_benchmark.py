"""The quality benchmark of readings, on a file of its own, with a reader that needs no model."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import corrupted, semantic

_MORE = {"shop": "The parcel leaves our warehouse by lorry every evening.",
         "bank": "Interest is paid at the end of every calendar year."}  # fmt: skip


def run(number: int, domain: str) -> dict[str, Any]:
    said = {"shop": f"Order A-{number} is on its way to you and will arrive within two days.",
            "bank": f"Account B-{number} was opened by your father a very long time ago."}  # fmt: skip
    return {
        "user_request": "q", "domain": domain, "final_answer": "",
        "steps": [
            {"type": "user", "text": f"What about number {number}?"},
            {"type": "tool_call", "tool": "find", "call_id": "c", "arguments": {"n": number}},
            {"type": "tool_result", "tool": "find", "call_id": "c", "error": number % 5 == 0,
             "result": json.dumps({"id": f"{'A' if domain == 'shop' else 'B'}-{number}"})},
            {"type": "assistant", "text": f"{said[domain]}\n{_MORE[domain]}"},
        ],
    }  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "runs.jsonl.gz"
    runs = [run(n, ("shop", "bank")[n % 2]) for n in range(10, 40)]
    runs.append({**run(1, "shop"), "steps": [{"type": "assistant", "text": "Hello."}]})
    found.write_bytes(gzip.compress("\n".join(map(json.dumps, runs)).encode()))
    return found


def test_each_run_gives_an_answer_as_recorded_and_a_corrupted_one(path: Path) -> None:
    cases = corrupted.cases(path, 12, seed=1)
    assert cases == corrupted.cases(path, 12, seed=1) != corrupted.cases(path, 12, seed=2)
    assert len(cases) == 24
    assert {case["kind"] for case in cases} == {"as recorded", *corrupted.KINDS}
    for right, wrong in zip(cases[::2], cases[1::2], strict=True):
        assert (right["supported"], wrong["supported"]) == (True, False)
        shown = json.dumps(right["steps"])
        if wrong["kind"] == "item":
            (item,) = set(re.findall(r"\b[AB]-\d+", wrong["answer"]))
            assert item not in shown
        elif wrong["kind"] == "action":
            assert any(wrong["answer"].endswith(said) for _, said in corrupted.ACTIONS)
        else:
            assert wrong["answer"].startswith(right["answer"])
    assert len(corrupted.cases(path, 1000, seed=1)) == 2 * 30  # one run has no result


def test_it_tells_precision_and_recall_beside_the_deterministic_layer(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "sys.argv", ["semantic", "--search", "--traces", str(path.parent), "--limit", "6"]
    )
    semantic.main()
    told = capsys.readouterr().out
    assert "== runs.jsonl.gz, 12 answers, read by search" in told
    assert "semantic against" in told
    assert "deterministic against 12 human labels" in told
    flagged = dict(re.findall(r"^  (\w[\w ]*?) +semantic (\S+) of", told, re.MULTILINE))
    assert flagged["item"] == flagged["action"] == "1.00"
