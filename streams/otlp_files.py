"""OTLP export requests in files: `.pb` (protobuf) and `.json`, alone or in folders.

A file with `.logs.` in its name holds logs, any other traces. Folders are read in name order,
which is the order in which recorded requests arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from streams.errors import UserError

MAX_FILE: Final = 256 * 1024**2
LONGEST_GAP: Final = 3.0
"""Seconds; people who watch a recording do not wait longer."""
PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class OtlpFile:
    """One export request as it was recorded."""

    path: Path
    signal: Literal["traces", "logs"]
    media: str
    body: bytes

    def parsed(self) -> Any:
        """The request as a protobuf message, or as a dictionary. Raises UserError."""
        try:
            if self.media == JSON:
                document = orjson.loads(self.body)
                key = "resourceSpans" if self.signal == "traces" else "resourceLogs"
                if not isinstance(document, dict) or not isinstance(document.get(key, []), list):
                    raise UserError(f"{self.path}: not an OTLP {self.signal} request (no {key})")
                return document
            kind = (
                ExportTraceServiceRequest if self.signal == "traces" else ExportLogsServiceRequest
            )
            return kind.FromString(self.body)
        except (DecodeError, orjson.JSONDecodeError) as error:
            why = " ".join(str(error).split())
            raise UserError(f"{self.path}: not an OTLP {self.signal} request: {why}") from None

    def newest(self) -> int | None:
        """Latest end of its spans, or time of its records, in Unix nanoseconds."""
        times = [time for _, time, _ in _entries(self.parsed())]
        return max(times, default=0) or None

    def trajectories(self) -> set[str]:
        """Trace ids of the spans that an agent's instrumentation wrote."""
        if self.signal == "logs":
            return set()
        return {
            trace
            for trace, _, keys in _entries(self.parsed())
            if any(key.startswith("gen_ai.") for key in keys)
        }


def read_files(paths: Iterable[Path]) -> list[OtlpFile]:
    """The files, and those in the folders, in order. Raises UserError for what cannot be read."""
    return [_read(path) for given in paths for path in _expand(given)]


def _expand(path: Path) -> Iterator[Path]:
    if path.is_dir():
        # What is no file, such as a link that leads nowhere, is refused when it is read: not left out.
        found = sorted(
            p for p in path.rglob("*") if p.suffix in {".pb", ".json"} and not p.is_dir()
        )
        if not found:
            raise UserError(f"{path}: no .pb or .json file in this folder")
        yield from found
    else:
        yield path


def _read(path: Path) -> OtlpFile:
    media = {".pb": PROTOBUF, ".json": JSON}.get(path.suffix)
    if media is None:
        raise UserError(f"{path}: cannot tell the format; allowed: .pb, .json, a folder")
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: is no file")  # a pipe would be waited for without end
        if (size := path.stat().st_size) > MAX_FILE:
            raise UserError(f"{path}: {size} bytes; allowed: up to {MAX_FILE}")
        body = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    return OtlpFile(path, "logs" if ".logs." in path.name else "traces", media, body)


def _entries(request: Any) -> Iterator[tuple[str, int, list[str]]]:
    """Trace id, time and attribute names of every span or record."""
    if isinstance(request, dict):
        yield from _json_entries(request)
    elif isinstance(request, ExportTraceServiceRequest):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    keys = [a.key for a in span.attributes]
                    yield span.trace_id.hex(), span.end_time_unix_nano, keys
    else:
        for logs in request.resource_logs:
            for records in logs.scope_logs:
                for record in records.log_records:
                    time = record.time_unix_nano or record.observed_time_unix_nano
                    yield record.trace_id.hex(), time, [a.key for a in record.attributes]


def _json_entries(request: dict[str, Any]) -> Iterator[tuple[str, int, list[str]]]:
    """As `_entries`; whatever is misshapen is passed over."""
    for resource in _dicts(request.get("resourceSpans", request.get("resourceLogs"))):
        for scope in _dicts(resource.get("scopeSpans", resource.get("scopeLogs"))):
            for entry in _dicts(scope.get("spans", scope.get("logRecords"))):
                digits = str(entry.get("endTimeUnixNano", entry.get("timeUnixNano")))[:20]
                time = int(digits) if digits.isascii() and digits.isdigit() else 0
                keys = [str(a.get("key")) for a in _dicts(entry.get("attributes"))]
                yield str(entry.get("traceId", "")).lower(), time, keys


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def gaps(
    files: Iterable[OtlpFile], longest: float = LONGEST_GAP
) -> Iterator[tuple[float, OtlpFile]]:
    """Each file with the seconds to wait before it, as they passed when it was recorded.

    A request left the agent when its last span had ended. No wait is longer than `longest`.
    """
    previous: int | None = None
    for file in files:
        now = file.newest()
        wait = 0.0
        if now is not None:
            if previous is not None:
                wait = min(max(now - previous, 0) / 1e9, longest)
            previous = max(now, previous or 0)
        yield wait, file
