"""Workers come, go, fall behind and are frozen; single trajectories are far too large."""

from __future__ import annotations

import time

import pytest

from tests.chaos.fleet import Load, World, load, run, trace_id
from tests.deployment import otlp_trace

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def world(kafka, redis_server_url, tmp_path):
    with World(kafka.bootstrap, redis_server_url, tmp_path) as world:
        yield world


def test_a_frozen_worker_that_wakes_after_its_session_harms_nobody(world):
    world.fleet()
    zombie, other = world.of("evaluate")
    with world.sending(load(400), seconds=20):
        world.under_way()
        zombie.freeze()
        everything = list(range(world.settings.partitions))
        world.wait(lambda: other.partitions == everything, "the other worker to have everything")
        world.under_way()
        zombie.thaw()
    world.settle()
    world.check()
    assert world.metric("agenttrust_rebalances_total") > 2


def test_partitions_move_from_one_worker_to_three_and_back_under_load(
    kafka, redis_server_url, tmp_path
):
    # Faust gives nobody more than a worker's share, rounded up: of 4, three workers get 2, 2 and 0.
    with World(kafka.bootstrap, redis_server_url, tmp_path, partitions=6) as world:
        world.fleet(ingest=1, evaluate=1)
        with world.sending(load(300), seconds=10):
            world.under_way()
            more = [world.add("evaluate"), world.add("evaluate")]
            world.wait(lambda: all(w.partitions for w in world.of("evaluate")), "three to share")
        with world.sending(load(200), seconds=8):
            world.under_way()
            assert [world.stop(worker) for worker in more] == [0, 0]
        world.settle()
        world.check()
        assert world.metric("agenttrust_rebalances_total") >= 3
        assert world.metric(r"agenttrust_takeovers_total\{.*") > world.settings.partitions


def test_a_lagging_worker_closes_nothing_that_is_still_alive(kafka, redis_server_url, tmp_path):
    """Runs look complete, their closes fall due, and a late span already waits in the journal."""
    with World(kafka.bootstrap, redis_server_url, tmp_path, session_timeout="40s") as world:
        world.fleet(ingest=1, evaluate=1)
        [evaluate] = world.of("evaluate")
        runs = [run(n + 1, 3) for n in range(4)]
        late = [one.spans.pop(1) for one in runs]  # a tool call that nobody refers to yet
        world.send(Load(runs, [span for one in runs for span in one.spans]))
        world.wait(lambda: len(world.labels()) == len(runs), "every run to have a label")
        evaluate.freeze()
        before = len(world.deployment.journal())
        time.sleep(2.5)  # closes fall due after 1
        world.send(Load([], late))
        world.wait(lambda: len(world.deployment.journal()) > before, "the late spans")
        evaluate.thaw()
        world.settle()
        world.check()
        labels = world.labels()
        assert {label.steps for label in labels.values()} == {5}  # asked, three calls, answered
        assert not [one for one in labels.values() if "late" in one.coverage.reasons]
        assert world.metric(r'agenttrust_closes_written_total\{reason="root_settled"\}') >= 4


def test_a_hot_trajectory_is_judged_and_so_are_the_others(world):
    world.fleet(ingest=1, evaluate=2)
    hot = run(1, 800, trace_id(0))
    calls, late, end = _chunks(hot.spans)
    world.send(Load([hot], [calls]))
    extended = "agenttrust_spans_extended_total"
    world.wait(lambda: world.metric(extended) >= 399, "calls in order to extend the prefix")
    world.send(Load([], [end]))
    world.wait(lambda: "root" not in world.labels()[hot.trace].pending, "its root to be known")
    derived = "agenttrust_prefixes_derived_total"
    before = world.metric(derived)
    world.send(Load([], [late]))
    world.send(load(100))
    world.settle()
    world.wait(lambda: world.metric(derived) >= before + 400, "calls that come late to derive it")
    world.check()
    assert world.labels()[hot.trace].steps == 802


def test_a_trace_of_100_000_spans_is_limited_and_the_others_are_judged(world):
    world.fleet(ingest=1, evaluate=1)
    [evaluate] = world.of("evaluate")
    trace = trace_id(0)
    world.send(load(20))
    world.settle()
    before = world.gauge("process_resident_memory_bytes")
    spans = otlp_trace(trace, ["ticket.search"] * 100_000)
    world.deployment.send(_chunks(spans, 2_100))
    world.send(load(40))
    world.settle()
    world.wait(lambda: world.labels()[trace].phase == "final", "the giant to be closed")
    label = world.labels()[trace]
    assert (label.verdict, label.closed) == ("unassessed", "step_limit")
    assert "step_limit" in label.coverage.reasons
    world.check()
    assert world.metric("agenttrust_spans_ignored_total") > 90_000
    assert world.gauge("process_resident_memory_bytes") < before + 150 * 1024**2
    assert evaluate.exits == []


def _chunks(spans: list[bytes], size: int = 400) -> list[bytes]:
    return [b"".join(spans[n : n + size]) for n in range(0, len(spans), size)]
