"""The types that every room speaks in.

Data flows one way: bytes -> spans -> arrivals -> prefix -> RGE state -> label -> events.
Everything here is a plain value: `msgspec` structs, because they are encoded and decoded for
every arrival (journal, state) and cost a fifth of a validated model there. What people write
(contracts, settings) and what other programs depend on (events) is validated elsewhere.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

FOLD_VERSION: Final = 3
"""Version of the judgement. Raised when the same arrivals would give other events."""

SpanKind = Literal["agent", "llm", "tool", "other", "log"]
"""`log`: no span, but messages that log records tell of the span that is its parent."""
Layer = Literal["policy", "grounding", "trajectory", "semantic"]
LayerState = Literal["pass", "fail", "open", "unassessed", "off"]
Verdict = Literal["violated", "unassessed", "open", "trusted"]
Phase = Literal["provisional", "final"]
Severity = Literal["info", "warning", "error", "critical"]
CloseReason = Literal[
    "root_settled", "idle", "step_limit", "byte_limit", "age_limit", "fold_error", "end_of_input"
]
Part = Literal["arguments", "result", "output", "input"]
Unseen = Literal["content_hidden", "content_truncated", "attributes_dropped"]
StepType = Literal["user_request", "tool_call", "answer"]
Execution = Literal["executed", "unknown", "requested"]

LAYERS: Final[tuple[Layer, ...]] = ("policy", "grounding", "trajectory")
"""The deterministic layers, in the order of the paper; `semantic` stands beside them."""


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A value: compared by content, never changed, leaves of no reference cycle."""


# -- spans ---------------------------------------------------------------------------------


class RequestedCall(Struct, frozen=True):
    """A tool call as a model asked for it. `arguments` is JSON text, None when not shown."""

    tool: str
    call_id: str | None = None
    arguments: str | None = None


class ReturnedResult(Struct, frozen=True):
    """A tool result as a later message quotes it. `result` is JSON or plain text."""

    call_id: str | None = None
    tool: str | None = None
    result: str | None = None
    failed: bool = False


THOUGHT: Final = "thought"
"""Role of what a model said that neither answers nor asks for a tool, such as code to be run."""


class Message(Struct, frozen=True):
    """One message of a model's input or output. `text` joins its text parts, None without any."""

    role: str
    text: str | None = None
    calls: tuple[RequestedCall, ...] = ()
    results: tuple[ReturnedResult, ...] = ()


class Omitted(Struct, frozen=True):
    """What ingest left out of an LLM span's input: `count` messages after the `at`-th kept one."""

    at: int
    count: int
    digest: str


class Span(Struct, frozen=True):
    """An observed span: an OpenTelemetry span normalised from whatever dialect it was written in.

    Times are Unix nanoseconds of the emitter's clock. `unseen` says, for each part of the content
    that a reader would expect and cannot have, why; a truncated part keeps what was left of it.
    `remote` is bit 0x200 of the OTLP flags: the parent is known to be in another process.
    """

    trajectory: str
    span_id: str
    kind: SpanKind
    name: str = ""
    parent: str | None = None
    remote: bool = False
    start: int = 0
    end: int = 0
    agent: str | None = None
    """Name of the agent whose span this is (kind agent), or that the span names as its own."""
    service: str | None = None
    conversation_id: str | None = None
    attributes: dict[str, str] = {}
    """Resource attributes that contracts may select on and events may carry."""
    error: str | None = None
    """Text of a failure; None for success. An empty text is a failure without a message."""
    tool: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    result: str | None = None
    inputs: tuple[Message, ...] = ()
    omitted: Omitted | None = None
    outputs: tuple[Message, ...] = ()
    unseen: dict[Part, Unseen] = {}
    response: str | None = None
    """Of an LLM span: the id that the model's provider gave its response."""
    writer: str | None = None
    """The instrumentation that wrote the span, as its scope is named; told beside `response`."""


def digest(*parts: bytes | str, size: int = 16) -> str:
    """Hex of a keyless BLAKE2b over length-delimited parts: no two part lists collide by joining."""
    data = [p.encode("utf-8", "surrogatepass") if isinstance(p, str) else p for p in parts]
    framed = b"".join([len(d).to_bytes(8, "big") + d for d in data])
    return blake2b(framed, digest_size=size).hexdigest()


# -- arrivals ------------------------------------------------------------------------------


class Observed(Struct, frozen=True, tag_field="kind", tag="span"):
    """A span arrived."""

    span: Span

    @property
    def trajectory(self) -> str:
        return self.span.trajectory


class Account(Struct, frozen=True):
    """How a reading came about. Tokens and cost are this reading's share of a batch."""

    model: str
    """As the server names it in its answer."""
    prompt: str
    """Digest of the instructions, rubric and schema;"""
    rubric: str
    """of the rubric alone."""
    decoding: dict[str, Any] = {}
    raw: str = ""
    """What the model wrote of this step, cut at 16 000 characters."""
    detail: str = ""
    batch: int = 0
    """Steps that were asked for in the same call; 0 for one from the cache."""
    input_tokens: float = 0
    output_tokens: float = 0
    latency: float = 0
    """Seconds of the call."""
    cost: float | None = None
    """US dollars; None without a price for the model."""


class Reading(Struct, frozen=True, tag_field="kind", tag="reading"):
    """What an LLM extracted from a step. The judgement of it belongs to the semantic layer."""

    trajectory: str
    id: str
    step: str
    """Key of the step that was read: a logical call's key, or `answer`."""
    content: str
    """Digest of the content that was read; a reading of superseded content does nothing."""
    status: Literal["assessed", "unassessed"] = "assessed"
    reason: str | None = None
    """Why it is unassessed."""
    claims: tuple[dict[str, Any], ...] = ()
    """Of an answer; shaped as `monitor.reading.Claim`."""
    parser: str = ""
    """Digest of how the step was read; see `monitor.reading.parser_digest`."""
    attempt: int = 1
    version: int = 1
    entities: tuple[dict[str, Any], ...] = ()
    facts: tuple[dict[str, Any], ...] = ()
    cut: tuple[str, ...] = ()
    """What the model was shown only the beginning of: `text`, `evidence`."""
    account: Account | None = None
    """None when no model was asked."""


class Close(Struct, frozen=True, tag_field="kind", tag="close"):
    """Time passed. Ignored when a later journal item of the trajectory precedes it.

    `after` is the journal offset of the last arrival that its writer had folded.
    """

    trajectory: str
    reason: CloseReason
    after: int


HISTORY_LOST: Final = "history_lost"


class Lost(Struct, frozen=True, tag_field="kind", tag="lost"):
    """Something of this trajectory is gone: an arrival that could not be read, whose bytes lie in
    the dead letters, or with reason `HISTORY_LOST` what the journal no longer holds."""

    trajectory: str
    reason: str
    source: str
    """Topic, partition, offset and place in the message, joined by colons."""


class Pin(Struct, frozen=True, tag_field="kind", tag="pin"):
    """Fixes a trajectory that has none yet to a policy set."""

    trajectory: str
    policy_set: str


class Unknown(Struct, frozen=True, tag_field="kind", tag="unknown"):
    """An arrival of a kind that this version does not know: the label becomes partial."""

    trajectory: str
    name: str


Arrival = Observed | Reading | Close | Lost | Pin | Unknown


class Record(Struct, frozen=True):
    """Consecutive journal items of one partition, written together.

    `timestamp` is the journal's time in milliseconds; `policy_set` the digest that ingest stamped.
    """

    offset: int
    timestamp: int
    policy_set: str
    arrivals: tuple[Arrival, ...] = ()


# -- steps ---------------------------------------------------------------------------------


class UnseenValue:
    """The arguments of a call that nobody showed. One instance: `UNSEEN`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSEEN"


UNSEEN: Final = UnseenValue()


class Call(msgspec.Struct, gc=False):
    """A logical tool call as the monitors see it: one call, however many spans reported it.

    `arguments` is the parsed JSON value, `UNSEEN` when no layer of the call shows it whole.
    `execution`: `executed` its span (or the delegated agent's) was seen; `unknown` only a result in
    later history tells of it; `requested` nothing tells that it ran.
    """

    key: str
    tool: str
    arguments: Any = UNSEEN
    execution: Execution = "executed"
    failed: bool = False
    step: int = 0
    call_id: str | None = None
    span_id: str | None = None
    agent: str | None = None


class Step(Struct, frozen=True):
    """What the agent did, for people: one entry of a trajectory's prefix."""

    type: StepType
    tool: str | None = None
    call_id: str | None = None
    arguments: Any = None
    result: Any = None
    error: str | None = None
    requested_only: bool = False
    agent: str | None = None
    span_id: str | None = None
    text: str | None = None
    run: str | None = None
    """Span id of the run root, in a trajectory of several runs."""


# -- judgement -----------------------------------------------------------------------------


class Finding(Struct, frozen=True):
    """What a check says about a call or an answer.

    `subject` names what the finding is about, so that the same fault keeps one identity over
    revisions: the logical call's key and the parameter, the claim's text, or the rule's tool.
    """

    layer: Layer
    code: str
    subject: str
    message: str
    severity: Severity = "error"
    step: int | None = None
    call: str | None = None
    call_id: str | None = None
    span_id: str | None = None
    tool: str | None = None
    evidence: str | None = None


class Coverage(msgspec.Struct, frozen=True, gc=False):
    """Whether all was there to judge by, and why not. `late` alone leaves it complete."""

    state: Literal["complete", "partial"]
    reasons: tuple[str, ...]


FIRM: Final = frozenset(
    {
        "POLICY_TOOL_NOT_ALLOWED",
        "POLICY_TOOL_FORBIDDEN",
        "POLICY_PARAM_MISSING",
        "POLICY_PARAM_FORBIDDEN",
        "POLICY_PARAM_VALUE_INVALID",
        "SAFETY_EMPTY_ANSWER",
        "SAFETY_FILTERED_FIELD_LEAKED",
        "TRAJ_FORBIDDEN_INTERMEDIATE",
        "TRAJ_REPEATED_TOOL",
    }
)
"""Codes that missing data cannot refute: raised and kept in an unassessed layer too."""


class Judgement(Struct, frozen=True):
    """What one layer says about a prefix, apart from when it may be published.

    `now` holds whatever follows. `later` would hold if the run ended here. `undecided` lists codes
    whose answer depends on calls of unknown execution. `blind` lists calls (keys) that a rule
    names and whose arguments nobody showed.
    """

    now: tuple[Finding, ...] = ()
    later: tuple[Finding, ...] = ()
    undecided: tuple[str, ...] = ()
    blind: tuple[str, ...] = ()
