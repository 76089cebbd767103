"""Recorded runs of real agents through gateway, broker, workers and topics, while they stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from monitor.model import Close, Lost
from tests.recordings import (
    as_json,
    merged,
    observed,
    recording,
    single,
    trace_id,
    without_history,
)
from tests.services import broker, redis_url  # noqa: F401
from tests.stream import Stream, started

pytestmark = [pytest.mark.services, pytest.mark.slow]

PYDANTIC = "pydantic-ai-2.68.0"
VARIANTS = [PYDANTIC, "agent-framework-1.23.0-chat", "google-adk-2.13.0-latest-content"]
CONTRACTS = {
    "support": """
contract: support
version: 1
applies_to: {service: "support-*"}
forbidden_tools: [issue_refund]
severity: {POLICY_TOOL_FORBIDDEN: critical}
parameter_rules:
  get_ticket: {required: [ticket_id]}
  get_item: {required: [sku]}
""",
    "path": """
contract: path
version: 2
applies_to: {service: "path-*"}
allowed_tools: [get_ticket, get_item, get_order]
expected_trajectory: [get_ticket, get_item, get_order]
trajectory_mode: relaxed
""",
    "refunds": """
contract: refunds
version: 1
applies_to: {service: "refunds-*"}
grounding: "off"
allowed_tools: [get_ticket, issue_refund]
""",
}


@pytest.fixture(scope="module")
def stream(broker, redis_url, tmp_path_factory) -> Iterator[Stream]:  # noqa: F811
    with started(broker, redis_url, tmp_path_factory.mktemp("stream"), CONTRACTS) as stream:
        yield stream


def run(
    variant: str, scenario: str, service: str | None = None
) -> tuple[str, list[ExportTraceServiceRequest]]:
    """A recorded run and the trajectory that it is about to be."""
    requests = recording(variant, scenario, service)
    return observed(requests[0])[0].trajectory, requests


def ungrounded(stream: Stream, trajectory: str) -> list[str]:
    """Every grounding violation that was ever published, withdrawn or not."""
    return [v.code for v in stream.violations(trajectory) if v.layer == "grounding"]


def test_a_forbidden_tool_is_told_while_the_run_goes_on(stream):
    runs = dict(run(variant, "bad_forbidden") for variant in VARIANTS)
    begun = [request for requests in runs.values() for request in requests[:-1]]
    ends = [requests[-1] for requests in runs.values()]
    assert all(any(span.parent is None for span in observed(end)) for end in ends)
    assert not any(span.parent is None for span in observed(*begun))
    stream.send(*begun)
    stream.wait(lambda: all(map(stream.violations, runs)), "violations before the run roots")
    raised = {}
    for trajectory in runs:
        [found] = stream.violations(trajectory)
        assert (found.code, found.state) == ("POLICY_TOOL_FORBIDDEN", "raised")
        assert (found.tool, found.severity) == ("issue_refund", "critical")
        assert (found.contract.name, found.contract.version) == ("support", 1)
        assert {label.phase for label in stream.labels(trajectory)} <= {"provisional"}
        raised[trajectory] = found
    stream.send(*ends)
    for final in stream.judged(*runs):
        assert (final.verdict, final.closed) == ("violated", "root_settled")
        assert (final.agent, final.service) == ("support_desk", "support-desk")
        assert final.violations[0] == "POLICY_TOOL_FORBIDDEN"
        told = stream.violations(final.trajectory_id)
        first = raised[final.trajectory_id]
        assert [v.state for v in told if v.id == first.id] == ["raised"]


def test_a_good_run_ends_trusted(stream):
    runs = dict(run(variant, "ok_parallel") for variant in VARIANTS)
    stream.send(*(request for requests in runs.values() for request in requests[:-1]))
    stream.send(*(requests[-1] for requests in runs.values()))
    for final in stream.judged(*runs):
        assert (final.verdict, final.phase, final.closed) == ("trusted", "final", "root_settled")
        assert (final.coverage.state, final.pending) == ("complete", ())
        assert dict(final.layers) == {"policy": "pass", "grounding": "pass", "trajectory": "pass"}
        assert (final.steps, final.contract.name) == (5, "support")
        assert stream.violations(final.trajectory_id) == []
        revisions = [label.revision for label in stream.labels(final.trajectory_id)]
        assert revisions == list(range(1, final.revision + 1))


def test_the_service_selects_the_contract(stream):
    expected = {
        "support-eu": ("support", "violated", ["POLICY_TOOL_FORBIDDEN"]),
        "refunds-eu": ("refunds", "trusted", []),
        "path-eu": ("path", "violated", ["POLICY_TOOL_NOT_ALLOWED"]),
        "elsewhere": (None, "unassessed", []),
    }
    runs = [run(PYDANTIC, "bad_forbidden", service) for service in expected]
    stream.send(*(request for _, requests in runs for request in requests))
    finals = stream.judged(*(trajectory for trajectory, _ in runs))
    for final, (service, (contract, verdict, codes)) in zip(finals, expected.items(), strict=True):
        assert (final.service, final.verdict) == (service, verdict)
        labels = stream.labels(final.trajectory_id)
        assert {label.contract and label.contract.name for label in labels} == {contract}
        told = stream.violations(final.trajectory_id)
        assert [v.code for v in told if v.layer == "policy"] == codes
    assert finals[-1].coverage.reasons == ("no_contract",)


LATE = {
    "tools after answer and root": lambda span: span.kind == "tool",
    "tools after the answer, root last": lambda span: (span.parent is None, span.kind == "tool"),
}


@pytest.mark.parametrize("quoted", [True, False], ids=["quoted later", "shown by the tool alone"])
@pytest.mark.parametrize("order", LATE)
def test_a_tool_span_after_the_answer_is_no_invention(stream, order, quoted):
    runs = dict(run(variant, "ok_parallel", "path-late") for variant in VARIANTS)
    message = []
    for requests in runs.values():
        if not quoted:
            for request in requests:
                without_history(request)
        parts = sorted(single(requests), key=lambda one: LATE[order](observed(one)[0]))
        kinds = [observed(one)[0].kind for one in parts]
        assert kinds.index("tool") > max(n for n, kind in enumerate(kinds) if kind == "llm")
        message += parts
    stream.send(*message)
    for final in stream.judged(*runs):
        assert (final.verdict, final.closed) == ("trusted", "root_settled")
        assert final.steps == (5 if quoted else 4)  # without a history nobody tells the request
        assert final.coverage.reasons == ()
        assert stream.violations(final.trajectory_id) == []


def test_a_tool_span_after_the_close_is_no_invention_either(stream):
    runs = {t: single(r) for t, r in (run(v, "ok_parallel", "path-late") for v in VARIANTS)}
    parts = [one for requests in runs.values() for one in requests]
    late = [one for one in parts if observed(one)[0].tool == "get_item"]
    assert len(late) == len(runs)
    stream.send(*(one for one in parts if one not in late))
    before = {final.trajectory_id: final for final in stream.judged(*runs)}
    for final in before.values():
        assert final.verdict == "unassessed"
    stream.send(*late)
    for final in stream.judged(*runs, verdict="trusted"):
        assert final.coverage.reasons == ("late",)
        assert final.revision > before[final.trajectory_id].revision
        assert ungrounded(stream, final.trajectory_id) == []


def test_a_run_below_a_remote_request_is_closed_by_its_root(stream):
    trajectory, requests = run(PYDANTIC, "ok_parallel")
    served, caller = os.urandom(8), os.urandom(8)
    root = requests[-1].resource_spans[0].scope_spans[0].spans[-1]
    assert root.parent_span_id == b""
    root.parent_span_id, root.flags = served, 0x100
    server = ExportTraceServiceRequest()
    group = server.resource_spans.add(resource=requests[0].resource_spans[0].resource)
    group.scope_spans.add().spans.add(
        trace_id=root.trace_id,
        span_id=served,
        parent_span_id=caller,
        flags=0x300,
        name="POST /chat",
        kind=Span.SPAN_KIND_SERVER,
        start_time_unix_nano=root.start_time_unix_nano - 1_000_000,
        end_time_unix_nano=root.end_time_unix_nano + 1_000_000,
    )
    stream.send(*requests)
    stream.fence(trajectory)
    assert {label.phase for label in stream.labels(trajectory)} == {"provisional"}
    stream.send(server)
    [final] = stream.judged(trajectory)
    assert (final.verdict, final.closed) == ("trusted", "root_settled")
    assert (final.coverage.state, final.steps) == ("complete", 5)
    assert stream.violations(trajectory) == []


def test_a_trace_without_an_agent_emits_nothing(stream):
    trajectory = trace_id()
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    group.resource.attributes.add(key="service.name").value.string_value = "support-web"
    spans = group.scope_spans.add().spans
    for number in range(1, 4):
        spans.add(
            trace_id=bytes.fromhex(trajectory),
            span_id=number.to_bytes(8, "big"),
            parent_span_id=b"" if number == 1 else (number - 1).to_bytes(8, "big"),
            name="GET /tickets",
            kind=Span.SPAN_KIND_SERVER,
            start_time_unix_nano=number,
            end_time_unix_nano=10 - number,
        )
    stream.send(request)
    stream.wait(lambda: any(isinstance(a, Close) for a in stream.arrivals(trajectory)), "its close")
    stream.fence(trajectory)
    assert stream.records(trajectory) == []


def test_every_encoding_is_judged_alike(stream):
    expected: set[tuple] = set()
    runs = {}
    for media in ("application/x-protobuf", "application/json"):
        for zipped in (False, True):
            trajectory, requests = run(PYDANTIC, "bad_invented", "path-encoded")
            request = merged(requests)
            body = as_json(request) if media.endswith("json") else request.SerializeToString()
            stream.post(body, media, zipped=zipped)
            runs[trajectory] = (media, zipped)
    for final in stream.judged(*runs):
        told = stream.violations(final.trajectory_id)
        assert (final.verdict, final.closed) == ("violated", "root_settled")
        assert {"SAFETY_FABRICATED_QUANTITY", "TRAJ_MISSING_REQUIRED_TOOL"} <= {
            violation.code for violation in told
        }
        found = tuple((v.code, v.step, v.span_id, v.message, str(v.evidence)) for v in told)
        expected.add((final.steps, final.violations, final.agent, final.coverage.reasons, found))
    assert len(runs) == 4
    assert len(expected) == 1


def test_one_bad_span_takes_none_of_its_message_with_it(stream):
    runs = [run(variant, "ok_parallel", "path-mixed") for variant in VARIANTS]
    each = [single(requests) for _, requests in runs]
    mixed = merged(one for parts in zip_longest(*each) for one in parts if one is not None)
    hit = runs[1][0]
    bad = Span(trace_id=bytes.fromhex(hit), span_id=b"four", name="half a span")
    mixed.resource_spans[5].scope_spans[0].spans.append(bad)
    stream.post(mixed.SerializeToString())
    for final in stream.judged(*(trajectory for trajectory, _ in runs)):
        assert final.steps == 5
        if final.trajectory_id == hit:
            assert (final.verdict, final.coverage.reasons) == ("unassessed", ("lost_arrival",))
            assert set(final.layers.values()) == {"unassessed"}
        else:
            assert (final.verdict, final.coverage.state) == ("trusted", "complete")
    [lost] = [a for a in stream.arrivals(hit) if isinstance(a, Lost)]

    def letters():
        return [letter for letter in stream.letters if letter.value == bad.SerializeToString()]

    stream.wait(letters, "the dead letter")
    [letter] = letters()
    headers = {name: value.decode() for name, value in letter.headers}
    assert headers["reason"].startswith("bad_id:")
    assert headers["trajectory"] == hit
    assert headers["source"] == lost.source
    assert lost.source.startswith(f"{stream.plan.spans.name}:")
