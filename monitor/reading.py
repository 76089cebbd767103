"""What an LLM is asked to extract from a step, and what it may answer: the typed reading.

The model extracts claims and points at evidence. It is never asked for a verdict: `monitor.resolve`
looks at what it points at, and decides. A reading is written once, into the journal, and is from
then on a fact like a span (`monitor.model.Reading`).

The answer's JSON Schema is derived from the models below and is part of docs/semantic.md.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from monitor.model import Struct, digest

READING_VERSION: Final = 1
"""Version of the shape of a reading and of what the model is told. Raised with either; it is part
of the parser digest, so that steps are read again."""

TEXT_LIMIT: Final = 8_000
"""Characters of a text that a model is shown."""
RESULT_LIMIT: Final = 4_000
"""Characters of one result."""
EVIDENCE_LIMIT: Final = 24_000
"""Characters of all results together: the last ones are kept whole before earlier ones are."""
ARGUMENTS_LIMIT: Final = 1_000
CLAIMS_LIMIT: Final = 64
"""Claims of one answer; one that makes more is not read whole, and so is not assessed."""
WORDS_LIMIT: Final = 1_000

StepKind = Literal["answer", "tool_result", "message"]
STEP_KINDS: Final[tuple[StepKind, ...]] = ("answer", "tool_result", "message")
Kind = Literal[
    "identifier", "quantity", "date", "quotation", "status", "action", "absence", "other"
]
Reason = Literal["timeout", "invalid", "budget", "breaker", "refused", "truncated"]
"""Why a step was not read. `refused`: the server or the model declined, whatever its words."""

Words = Annotated[str, Field(max_length=WORDS_LIMIT)]


class Extracted(BaseModel):
    """Base of what a model answers: nothing but what was asked for, and all of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Pointer(Extracted):
    """Where the evidence of a claim stands."""

    step: int
    path: Words


class Claim(Extracted):
    """One atomic thing that an answer says."""

    kind: Kind
    subject: Words
    value: Words
    words: Words
    evidence: Pointer | None
    confidence: Annotated[float, Field(ge=0, le=1)]


class Entity(Extracted):
    """Something that a text speaks of."""

    name: Words
    type: Words


class Fact(Extracted):
    """What a text says of an entity, and where (JSON path, `$` for plain text)."""

    subject: Words
    value: Words
    path: Words


class AnswerItem(Extracted):
    """The reading of one answer within a batch."""

    id: Words
    claims: Annotated[tuple[Claim, ...], Field(max_length=CLAIMS_LIMIT)]


class TextItem(Extracted):
    """The reading of one tool result or message within a batch."""

    id: Words
    entities: Annotated[tuple[Entity, ...], Field(max_length=CLAIMS_LIMIT)]
    facts: Annotated[tuple[Fact, ...], Field(max_length=CLAIMS_LIMIT)]


def item_model(type_: StepKind) -> type[AnswerItem | TextItem]:
    return AnswerItem if type_ == "answer" else TextItem


@lru_cache
def batch_schema(type_: StepKind) -> dict[str, Any]:
    """JSON Schema of `{"items": [...]}`, in the subset that servers constrain decoding by: every
    property required, no other one, no bounds (those are checked on the answer)."""
    schema = item_model(type_).model_json_schema()
    shared = {name: _strict(part) for name, part in schema.pop("$defs", {}).items()}
    return {
        "type": "object",
        "properties": {"items": {"type": "array", "items": _strict(schema)}},
        "required": ["items"],
        "additionalProperties": False,
        "$defs": shared,
    }


_BOUNDS: Final = ("title", "description", "maxLength", "maxItems", "minimum", "maximum")


def _strict(part: Any) -> Any:
    if isinstance(part, list):
        return [_strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    names = part.get("properties", {})
    kept = {k: v for k, v in part.items() if k not in _BOUNDS and k != "properties"}
    kept = {key: _strict(value) for key, value in kept.items()}
    if names:
        kept["properties"] = {name: _strict(value) for name, value in names.items()}
    return kept


# -- requests --------------------------------------------------------------------------------


class Shown(Struct, frozen=True):
    """A step of the prefix that a claim may point at. Texts are as recorded; a request holds
    them cut to the limits above, with `cut` set."""

    step: int
    tool: str | None = None
    """None: what the user said, or a result from before the trajectory (a negative step)."""
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    cut: bool = False


class ParseRequest(Struct, frozen=True):
    """Asks for a step to be read. Carries all that the role `parse` needs: it keeps no state."""

    trajectory: str
    step: str
    """`answer`; `answer:<span>` of an agent that a contract names; the key of a call; the span of
    a message, `user:<span>` of one that the user wrote."""
    type: StepKind
    content: str
    """Digest of what is to be read: the text, and for an answer its evidence."""
    parser: str
    text: str
    evidence: tuple[Shown, ...] = ()
    rubric: str = ""
    attempt: int = 1
    service: str | None = None
    cut: tuple[str, ...] = ()
    """What is not whole: `text`, `evidence`."""
    asked: int = 0
    """Journal time in milliseconds."""

    @property
    def id(self) -> str:
        return reading_id(self.trajectory, self.step, self.content, self.parser, self.attempt)

    @property
    def name(self) -> str:
        """Of a step other than the answer."""
        return step_name(self.trajectory, self.step, self.content, self.parser)


def reading_id(trajectory: str, step: str, content: str, parser: str, attempt: int) -> str:
    """Identity of a reading: a request that is repeated asks for the same one."""
    return digest(trajectory, step, content, parser, str(attempt))


def step_name(trajectory: str, step: str, content: str, parser: str) -> str:
    """Names a step other than the answer, as it stands and is read, whatever the attempt."""
    return reading_id(trajectory, step, content, parser, 1)[:16]


@lru_cache
def parser_digest(rubric: str) -> str:
    """Names how a step is read. Contracts with the same rubric share requests and readings."""
    return digest(str(READING_VERSION), rubric, size=8)


# -- what the state keeps of a reading -------------------------------------------------------

Decided = Literal["unsupported", "mismatch", "unchecked", "undecided"]
"""`unsupported` points at nothing that is there; `mismatch` points at something that says
otherwise; `unchecked` points at something that code cannot compare with the claim's words;
`undecided` points at nothing, and not all evidence was shown."""


class Outcome(msgspec.Struct, array_like=True, gc=False):
    """A claim that is not supported, as the state keeps it."""

    decided: Decided
    kind: Kind
    words: str
    confidence: float
    message: str
    subject: str = ""
    value: str = ""
    """Subject and value of a claim that facts may yet back; empty for all others."""
    backed: tuple[StepKind, ...] = ()
    """Kinds of steps of which a fact says it (`monitor.facts`)."""


class Stated(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A fact of a tool result or of what the user said, as the state keeps it: it stands there."""

    subject: str
    value: str
    path: str


class Told(msgspec.Struct, array_like=True, gc=False):
    """The reading that counts of a step other than the answer."""

    attempt: int
    assessed: bool
    facts: tuple[Stated, ...] = ()


class Kept(msgspec.Struct, array_like=True, gc=False):
    """What a label needs of a reading. `reason` says why it is unassessed, None for assessed."""

    id: str
    attempt: int
    reason: str | None = None
    claims: int = 0
    outcomes: tuple[Outcome, ...] = ()
    shown: bool = True
    """Excerpts of it may be shown: no filtered field is near."""


class Read(msgspec.Struct, array_like=True, gc=False):
    """An answer that was asked to be read, and its reading once it is there."""

    step: str
    parser: str
    content: str
    asked: int
    kept: Kept | None = None


_FORBIDDEN: Final = re.compile(r"[^a-z_]")


def reason_text(reason: str | None) -> str:
    """A reason as coverage tells it; readings are written by any version of the role."""
    return _FORBIDDEN.sub("", (reason or "invalid").lower())[:32] or "invalid"
