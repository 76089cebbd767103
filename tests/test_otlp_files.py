from __future__ import annotations

import json
import os

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streams.errors import UserError
from streams.otlp_files import gaps, read_files

SECOND = 10**9


def traces(*ends: int, agent: bool = True) -> bytes:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for end in ends:
        span = spans.add(trace_id=b"\x01" * 16, end_time_unix_nano=end)
        if agent:
            span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    return request.SerializeToString()


def logs(time: int) -> bytes:
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(observed_time_unix_nano=time)
    return request.SerializeToString()


def as_json(end: object) -> bytes:
    span = {"traceId": "AB", "endTimeUnixNano": end, "attributes": [{"key": "gen_ai.x"}, 3]}
    return json.dumps({"resourceSpans": [3, {"scopeSpans": [{"spans": [span]}]}]}).encode()


def test_folders_are_read_in_name_order_and_names_tell_the_signal(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b/01.traces.pb", "b/00.logs.pb", "a.json", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    found = read_files([tmp_path, tmp_path / "a.json"])
    assert [(f.path.name, f.signal, f.media) for f in found] == [
        ("a.json", "traces", "application/json"),
        ("00.logs.pb", "logs", "application/x-protobuf"),
        ("01.traces.pb", "traces", "application/x-protobuf"),
        ("a.json", "traces", "application/json"),
    ]


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("missing.pb", None, "No such file"),
        ("x.txt", b"", "allowed: .pb, .json, a folder"),
        ("empty", "folder", "no .pb or .json file"),
        ("x.pb", b"hello", "not an OTLP traces request"),
        ("x.logs.pb", b"hello", "not an OTLP logs request"),
        ("x.json", b"{", "not an OTLP traces request"),
        ("x.json", b"[]", "no resourceSpans"),
        ("x.logs.json", b'{"resourceLogs": 1}', "no resourceLogs"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line_with_its_path(tmp_path, name, body, problem):
    path = tmp_path / name
    if body == "folder":
        path.mkdir()
    elif body is not None:
        path.write_bytes(body)
    with pytest.raises(UserError) as caught:
        [file.parsed() for file in read_files([path])]
    (line,) = caught.value.lines
    assert line.startswith(str(path))
    assert problem in line
    assert "\n" not in line


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("streams.otlp_files.MAX_FILE", 10)
    path = tmp_path / "x.pb"
    path.write_bytes(b"x" * 11)
    with pytest.raises(UserError, match="11 bytes; allowed: up to 10"):
        read_files([path])


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"a\.json: is no file"):
        read_files([tmp_path / "a.json"])


@pytest.mark.parametrize("name", ["lost.pb", "lost.json"])
def test_a_folder_with_something_that_cannot_be_read_is_not_read_without_it(tmp_path, name):
    (tmp_path / "a.pb").write_bytes(b"")
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=name):
        read_files([tmp_path])
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: is no file"):
        read_files([tmp_path])


def test_gaps_are_those_of_the_recording_but_not_longer_than_asked(tmp_path):
    bodies = {
        "0.traces.pb": traces(SECOND),
        "1.traces.pb": traces(SECOND, 3 * SECOND),
        "2.logs.pb": logs(2 * SECOND),
        "3.json": as_json(str(int(3.5 * SECOND))),
        "4.json": as_json("soon"),
        "5.traces.pb": traces(60 * SECOND),
        "6.traces.pb": traces(),
    }
    for name, body in bodies.items():
        (tmp_path / name).write_bytes(body)
    waits = [wait for wait, _ in gaps(read_files([tmp_path]), longest=5)]
    assert waits == [0, 2, 0, 0.5, 0, 5, 0]


def test_trajectories_are_the_traces_of_agents(tmp_path):
    bodies = {
        "0.pb": traces(1),
        "1.json": as_json(1),
        "2.pb": traces(1, agent=False),
        "3.logs.pb": logs(1),
    }
    for name, body in bodies.items():
        (tmp_path / name).write_bytes(body)
    assert [f.trajectories() for f in read_files([tmp_path])] == [{"01" * 16}, {"ab"}, set(), set()]
