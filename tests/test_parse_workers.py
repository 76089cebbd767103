"""All three roles as processes, with an LLM server that answers, dies and returns."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections import Counter, defaultdict
from typing import Any

import pytest

from monitor.label import Label
from monitor.model import Reading
from streams import cli
from streams.events import read
from tests.answered import answered
from tests.deployment import Deployment, settings
from tests.llm_server import Asked, ServerThread, data, read_well
from tests.services import broker, redis_url, wait_for  # noqa: F401

pytestmark = pytest.mark.services
NUMBERS = itertools.count()

CONTRACT = """
contract: desk
version: 1
grounding: "off"
semantic: {mode: gate, steps: [STEPS]}
"""


def runs(count: int, start: int = 0) -> list[bytes]:
    """Runs with answers of their own, each claiming an order that no result holds."""
    return [
        value
        for number in range(start, start + count)
        for value in answered(f"Order {number:06d} is here")
    ]


def made(broker: str, redis_url: str, tmp_path: Any, url: str, **more: Any) -> Deployment:  # noqa: F811
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    steps = more.pop("steps", "answer")
    (contracts / "desk.yaml").write_text(CONTRACT.replace("STEPS", steps))
    given = {
        "contracts": contracts, "llm_url": url, "llm_model": "m", "llm_deadline": "5s",
        "llm_batch_age": "200ms", "reading_deadline": "20s", **more,
    }  # fmt: skip
    deployment = Deployment(settings(broker, redis_url, f"parse{next(NUMBERS)}", **given), tmp_path)
    deployment.create()
    return deployment


def labels(deployment: Deployment) -> dict[str, Label]:
    """The last label of each trajectory."""
    last: dict[str, Label] = {}
    for record in deployment.read(deployment.plan.labels.name):
        body = read(record.headers, record.value).body
        assert isinstance(body, Label)
        last[body.trajectory_id] = body
    return last


def readings(deployment: Deployment) -> dict[str, list[Reading]]:
    found = defaultdict(list)
    for _, decoded in deployment.journal():
        for arrival in decoded.arrivals:
            if isinstance(arrival, Reading):
                found[arrival.trajectory].append(arrival)
    return found


def steps_read(deployment: Deployment) -> set[str]:
    """Kinds of steps of which there is a reading for every trajectory."""
    found = [{r.step.partition(":")[0] for r in all_} for all_ in readings(deployment).values()]
    return set.intersection(*found) if found else set()


def final(deployment: Deployment, count: int) -> bool:
    found = labels(deployment)
    return len(found) == count and all(label.phase == "final" for label in found.values())


def run(deployment: Deployment, monkeypatch: Any, *args: str) -> int:
    for name, value in deployment.environment().items():
        if name.startswith("AGENTTRUST_"):
            monkeypatch.setenv(name, value)
    return cli.run(list(args))


def test_answers_are_read_and_labels_revised(broker, redis_url, tmp_path, monkeypatch, capsys):  # noqa: F811
    with ServerThread() as llm:
        steps = "answer, tool_result, message"
        deployment = made(broker, redis_url, tmp_path, llm.url, steps=steps)
        with (
            deployment.worker("ingest"),
            deployment.worker("evaluate"),
            deployment.worker("parse"),
        ):
            deployment.send(runs(20))
            wait_for(lambda: final(deployment, 20), "every label is final", 60)
            found = labels(deployment)
            assert {label.layers["semantic"] for label in found.values()} == {"fail"}
            assert {label.verdict for label in found.values()} == {"violated"}
            wait_for(lambda: len(steps_read(deployment)) == 3, "readings of all kinds", 30)

            name = next(iter(found))
            asked = {r.step: r.id for r in readings(deployment)[name]}
            before = len(llm.server.asked)
            assert run(deployment, monkeypatch, "reparse", name) == 0
            told = capsys.readouterr().out
            assert "answer answer attempt 2, tool_result call-1 attempt 2, message user:" in told
            wait_for(
                lambda: {r.step for r in readings(deployment)[name] if r.attempt == 2} == set(asked),
                "the second readings", 30,
            )  # fmt: skip
            assert len(llm.server.asked) == before + 2  # the answer; result and message
            assert run(deployment, monkeypatch, "reparse", "--only", "answer", name) == 0
            assert "answer attempt 3\n" in capsys.readouterr().out
            assert run(deployment, monkeypatch, "reparse", "f" * 32) == 2
            assert "nothing is known" in capsys.readouterr().out

        assert run(deployment, monkeypatch, "judge", "report", "--json") == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["trajectories"], report["labels"]) == (20, 20)
        assert report["readings"] >= 20 * 3 + 3
        assert report["models"] == {"scripted-1.2": report["readings"]}
    # The server is gone: what it said is in the journal.
    assert run(deployment, monkeypatch, "replay", "--verify") == 0


def test_a_server_that_dies_and_workers_that_are_killed_lose_no_answer(broker, redis_url, tmp_path):  # noqa: F811
    async def slow(asked: Asked) -> Any:
        await asyncio.sleep(0.4)  # so that calls are under way when something is killed
        return read_well(asked)

    with ServerThread(slow) as llm:
        deployment = made(
            broker, redis_url, tmp_path, llm.url, llm_deadline="3s", reading_deadline="15s"
        )

        def under_way() -> bool:
            return llm.server.active > 0

        with deployment.worker("ingest"):
            with deployment.worker("evaluate", "evaluate-1"), deployment.worker("parse", "parse-1"):
                deployment.send(runs(10))
                wait_for(under_way, "a call", 60)
            # Both are killed, with a call under way.
            with deployment.worker("evaluate", "evaluate-2"):
                with deployment.worker("parse", "parse-2"):
                    deployment.send(runs(10, 10))
                    wait_for(under_way, "a call of the next worker", 60)
                    llm.die()
                    deployment.send(runs(10, 20))
                with deployment.worker("parse", "parse-3"):
                    llm.come_back()
                    wait_for(lambda: final(deployment, 30), "every label is final", 90)
        found = labels(deployment)
        states = Counter(label.layers["semantic"] for label in found.values())
        assert set(states) <= {"fail", "unassessed"}
        assert states["fail"] > 0
        for label in found.values():
            if label.layers["semantic"] == "unassessed":
                assert any(reason.startswith("reading_") for reason in label.coverage.reasons)
        written = readings(deployment)
        assert set(written) == set(found)
        for all_ in written.values():
            assert all(one.status == "assessed" or one.reason for one in all_)
        # What was asked more than once was asked by another worker, or once more after a bad answer.
        asked = Counter(name for call in llm.server.asked for name in data(call))
        extra = asked.total() - len(asked)
        assert max(asked.values()) <= 3
        assert extra <= 20  # the answers of the two workers that were killed
        sys.stdout.write(f"{dict(states)}; {len(asked)} answers asked for, {extra} of them again\n")


def test_without_a_parse_worker_no_label_stays_open(broker, redis_url, tmp_path):  # noqa: F811
    def never(_: Asked) -> list[dict[str, Any]]:
        raise AssertionError("nobody asks")

    with ServerThread(never) as llm:
        deployment = made(broker, redis_url, tmp_path, llm.url, reading_deadline="2s")
        with deployment.worker("ingest"), deployment.worker("evaluate"):
            deployment.send(runs(3))
            wait_for(lambda: final(deployment, 3), "every label is final", 60)
        assert {label.coverage.reasons for label in labels(deployment).values()} == {
            ("reading_timeout",)
        }
        assert llm.server.asked == []


def test_the_role_says_what_it_needs(broker, redis_url, tmp_path, monkeypatch, capsys):  # noqa: F811
    deployment = Deployment(settings(broker, redis_url, f"parse{next(NUMBERS)}"), tmp_path)
    deployment.create()
    assert run(deployment, monkeypatch, "worker", "--roles", "parse") == 2
    assert "AGENTTRUST_LLM_URL and AGENTTRUST_LLM_MODEL" in capsys.readouterr().err
    monkeypatch.setenv("AGENTTRUST_LLM_DOLLARS_PER_DAY", "1")
    monkeypatch.setenv("AGENTTRUST_LLM_MODEL", "unheard-of")
    assert run(deployment, monkeypatch, "worker", "--roles", "parse") == 2
    assert "the price of 'unheard-of' is not known" in capsys.readouterr().err
