from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from monitor.model import Lost, Observed
from streams.dead_letters import DeadLetters, NothingReadableError
from streams.ingest import Ingest
from streams.journal import MAX_RECORD, decode
from streams.topic_log import Raw
from tests.deployment import otlp_trace

P = 4
A, B = "1" * 32, "2" * 32


class Kafka:
    """As `Sender`, and the digest as `PolicySource` gives it."""

    digest = "d" * 32

    def __init__(self):
        self.messages = []

    async def send(self, messages):
        self.messages += messages
        return [0] * len(messages)

    def arrivals(self):
        found = []
        for message in self.messages:
            if message.topic == "journal":
                assert len(message.value) <= MAX_RECORD
                decoded = decode(message.value, message.partition, P)
                assert (decoded.bad, decoded.policy_set) == ((), self.digest)
                found += decoded.arrivals
        return found

    def letters(self):
        return [
            (dict(m.headers)["reason"].split(b":")[0], dict(m.headers)["source"], m.value)
            for m in self.messages
            if m.topic == "dead"
        ]


@pytest.fixture
def kafka():
    return Kafka()


def ingest(kafka, *values, services=(), halt=5, topic=""):
    role = Ingest(
        spans="spans",
        logs="logs",
        journal="journal",
        partitions=P,
        services=services,
        policy=kafka,
        sender=kafka,
        dead_letters=DeadLetters("dead", partitions=P, max_bytes=100_000, halt=halt),
    )
    asyncio.run(role.handle([Raw(3, n, 0, value, topic) for n, value in enumerate(values)]))


def without_id(request: bytes, trace: str) -> bytes:
    return request.replace(bytes.fromhex(trace), b"\0" * 16)


def test_spans_become_arrivals_in_their_order(kafka):
    values = otlp_trace(A, ["search", "get"])
    ingest(kafka, *values)
    spans = [arrival.span for arrival in kafka.arrivals()]
    assert [span.kind for span in spans] == ["tool", "tool", "llm", "agent"]
    assert [span.tool for span in spans[:2]] == ["search", "get"]
    assert kafka.letters() == []


@pytest.mark.parametrize("value", [None, b""])
def test_an_empty_message_is_nothing(kafka, value):
    ingest(kafka, value)
    assert kafka.messages == []


def test_good_bad_good_gives_two_arrivals_and_one_dead_letter(kafka):
    first, second = otlp_trace(A, [])
    ingest(kafka, first, b"junk", second)
    assert len(kafka.arrivals()) == 2
    assert kafka.letters() == [(b"not_otlp", b"spans:3:1:0", b"junk")]


def test_a_span_without_ids_does_not_take_its_neighbours(kafka):
    first, second = otlp_trace(A, [])
    ingest(kafka, first + without_id(second, A))
    assert [type(arrival) for arrival in kafka.arrivals()] == [Observed]
    [(reason, source, _)] = kafka.letters()
    assert (reason, source) == (b"bad_id", b"spans:3:0:1")


def test_a_bad_span_of_a_known_trace_leaves_a_lost_arrival(kafka):
    [good, *_] = otlp_trace(A, ["search"])
    ingest(kafka, good.replace(b"search", b"\xff\xfe\xfd\xfc\xfb\xfa"))
    assert kafka.arrivals() == [Lost(A, "malformed", "spans:3:0:0")]
    assert [reason for reason, _, _ in kafka.letters()] == [b"malformed"]


def test_only_monitored_services_are_kept(kafka):
    ingest(
        kafka,
        *otlp_trace(A, ["x"], service="desk"),
        *otlp_trace(B, ["x"], service="other"),
        services=["desk"],
    )
    assert {arrival.trajectory for arrival in kafka.arrivals()} == {A}


def test_an_all_bad_stream_halts(kafka):
    with pytest.raises(NothingReadableError, match="5 dead letters in a row"):
        ingest(kafka, *[b"junk"] * 5)
    assert kafka.messages == []


def test_one_good_span_breaks_the_row(kafka):
    [good, *_] = otlp_trace(A, ["x"])
    ingest(kafka, *[b"junk"] * 4, good, *[b"junk"] * 4)
    assert len(kafka.letters()) == 8


def test_a_dead_letter_too_large_for_its_topic_is_cut_and_says_so(kafka):
    junk = b"\xff" * 200_000
    ingest(kafka, junk)
    [letter] = kafka.messages
    headers = dict(letter.headers)
    assert len(letter.value) < 100_000
    assert junk.startswith(letter.value)
    assert (headers["size"], headers["truncated"]) == (b"200000", b"true")
    assert len(headers["blake2b"]) == 32


def test_what_a_hostile_reason_may_not_do(kafka):
    letters = DeadLetters("dead", partitions=P, max_bytes=10_000, halt=5)
    message = letters.letter("x\r\n\x1b[2J€" * 1000, "s", b"", None)
    assert all(0x21 <= byte <= 0x7E for _, value in message.headers for byte in value)
    assert sum(len(name) + len(value) for name, value in message.headers) < 10_000


CAPTURES = Path(__file__).parent / "captures"


def test_log_records_become_arrivals_that_name_their_span(kafka):
    folder = CAPTURES / "pydantic-ai-1.0.0-v1-eventlogs" / "ok_parallel"
    logs = [path.read_bytes() for path in sorted(folder.glob("*.logs.pb"))]
    ingest(kafka, *logs, topic="logs")
    told = [arrival.span for arrival in kafka.arrivals()]
    assert [span.kind for span in told] == ["log"] * 3
    assert [span.outputs[0].text for span in told][:2] == [None, None]
    assert told[-1].outputs[0].text.startswith("Ticket TCK-1042 is open.")
    assert len({span.parent for span in told}) == 3


def test_what_is_no_logs_request_is_a_dead_letter(kafka):
    ingest(kafka, b"junk", topic="logs")
    assert kafka.letters() == [(b"not_otlp", b"logs:3:0:0", b"junk")]


def test_other_log_records_are_passed_over(kafka):
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = "gen_ai.choice is mentioned"
    ingest(kafka, request.SerializeToString(), topic="logs")
    assert (list(kafka.arrivals()), list(kafka.letters())) == ([], [])
