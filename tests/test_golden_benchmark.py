import json

import pytest

from tests.benchmarks import golden


def test_the_harness_keeps_every_observation_and_its_circumstances(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden.shutil, "which", lambda _: None)
    monkeypatch.setattr(
        golden.sys, "argv",
        ["golden", "--out", str(tmp_path), "--processes", "2", "--warm-up", "1", "--passes", "3"],
    )  # fmt: skip
    golden.main()  # exits by the ratio, which three passes say nothing about
    out = capsys.readouterr().out
    for number in range(2):
        raw = json.loads((tmp_path / f"python-{number}.json").read_text())
        assert raw["seed"] == 20260101 + number
        assert {"python", "platform", "cpu", "cpus", "load"} <= set(raw["environment"])
        for contender in ("monitors", "plain"):
            for configuration in golden.CONFIGURATIONS:
                assert len(raw["times"][contender][configuration]) == 3 * 55
    text = (tmp_path / "table-5.md").read_text()
    assert text in out
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows == ["configuration", "final", "grounding", "policy", "trajectory", "full"]


@pytest.mark.skipif(golden.shutil.which("javac") is None, reason="no JDK")
def test_the_java_transcription_decides_alike(tmp_path):
    times = golden._java(golden.shutil.which("javac"), 1, 1, 2, tmp_path, 0)
    assert {name: len(ns) for name, ns in times.items()} == dict.fromkeys(
        golden.CONFIGURATIONS, 110
    )
