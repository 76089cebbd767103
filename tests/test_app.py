"""How a worker is set up: what it holds at once, and what it says of its own end."""

from __future__ import annotations

import pytest

from monitor.engine import Fenced, StoreBehind
from streams.app import TAKE, _halt, build, take
from streams.dead_letters import NothingReadableError
from streams.metrics import COUNTS
from streams.settings import Settings
from streams.store import StoreCorrupt, StoreUnsafe
from streams.watchdog import StalledError

MB = 1024**2


@pytest.mark.parametrize(
    ("in_flight", "largest", "records"),
    [(64 * MB, MB, TAKE), (64 * MB, 256 * 1024, TAKE), (64 * MB, 4 * MB, 4), (4 * MB, 64 * MB, 1)],
)
def test_what_a_worker_holds_at_once_is_bounded_in_bytes(tmp_path, in_flight, largest, records):
    settings = Settings(in_flight=in_flight)
    assert take(settings, "ingest", largest) == records
    conf = build(settings, "ingest", str(tmp_path), largest).conf
    held = (2 * records + conf.stream_buffer_maxsize) * largest
    assert held <= max(in_flight, 4 * largest)  # one message of any size must go through
    assert conf.broker_max_poll_records <= 2 * records
    assert conf.consumer_max_fetch_size <= largest


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (StalledError(), "stalled"),
        (NothingReadableError("x"), "dead_letters"),
        (StoreBehind(), "store"),
        (StoreCorrupt(), "store"),
        (StoreUnsafe("x"), "store"),
        (Fenced(), "fenced"),
        (ValueError(), "error"),
    ],
)
def test_why_a_worker_ends_is_a_word_of_the_metric(error, reason):
    assert _halt(error) == reason
    assert reason in COUNTS["halts"].labels["reason"]
