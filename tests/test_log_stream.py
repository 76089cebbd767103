"""Messages in log records, through broker, workers and state store: two topics, one label."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from monitor.label import Label
from streams.events import read
from tests.deployment import Deployment, settings
from tests.services import broker, redis_url, wait_for  # noqa: F401

pytestmark = [pytest.mark.services, pytest.mark.slow]

RUN = Path(__file__).parent / "captures" / "pydantic-ai-1.0.0-v1-eventlogs" / "ok_parallel"
CONTRACT = "contract: desk\nversion: 1\nallowed_tools: [get_ticket, get_item, get_order]\n"


@pytest.mark.timeout(240)
def test_a_run_whose_messages_are_log_records_is_judged(broker, redis_url, tmp_path):  # noqa: F811
    contracts = tmp_path / "contracts"
    contracts.mkdir()
    (contracts / "desk.yaml").write_text(CONTRACT)
    made = Deployment(settings(broker, redis_url, "logs0", contracts=contracts), tmp_path)
    made.create()

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
            for path in sorted(RUN.glob("*.pb")):
                topic = made.plan.logs if ".logs." in path.name else made.plan.spans
                await producer.send_and_wait(topic.name, path.read_bytes())

    def final() -> list[Label]:
        found = [read(r.headers, r.value).body for r in made.read(made.plan.labels.name)]
        return [label for label in found if label.phase == "final"]

    with made.worker("ingest,evaluate") as worker:
        asyncio.run(send())
        wait_for(final, "a final label", 120)
        assert worker.stop() == 0
    label = final()[-1]
    assert (label.verdict, label.coverage.state, label.violations) == ("trusted", "complete", ())
    assert label.layers == {"policy": "pass", "grounding": "pass", "trajectory": "pass"}
    assert made.read(made.plan.dead_letters.name) == []
