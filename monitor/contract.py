"""Contracts: what people expect of agents, as data. Load, validate, bind, digest.

The language is described field by field in docs/contracts.md; the names of the rules are those of
the paper (arXiv:2611.06674), and a golden case uses the same ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from monitor import yaml
from monitor.document import SIZE_LIMIT, load
from monitor.errors import InputError
from monitor.model import Severity, Struct, digest
from monitor.rule import CODES
from monitor.validate import RefusalError, Written, build, did_you_mean, shown

PATH_LIMIT: Final = 1000
"""Longest expected trajectory, in tools."""
LIST_LIMIT: Final = 10_000
GLOB_LIMIT: Final = 256
NAME_LIMIT: Final = 256
RUBRIC_LIMIT: Final = 4_000
CONTRACT_LIMIT: Final = 10_000
"""Most contracts in one policy set."""

Binding = Literal["yes", "no", "undetermined"]
Evidence = Literal["plain", "hash", "off"]


def _name(value: str) -> str:
    if not value.strip():
        raise RefusalError("is blank")
    if len(value) > NAME_LIMIT:
        raise RefusalError(f"{len(value)} characters", f"at most {NAME_LIMIT} characters")
    return value


def _tool(value: str) -> str:
    if "*" in value:
        raise RefusalError(f"{shown(value)} holds a '*'", "exact tool names")
    return _name(value)


def _glob(value: str) -> str:
    if len(value) > GLOB_LIMIT:
        raise RefusalError(f"{len(value)} characters", f"at most {GLOB_LIMIT} characters")
    return _name(value)


def _code(value: str) -> str:
    if value not in CODES:
        hint = did_you_mean(value, list(CODES))
        raise RefusalError(f"unknown code{hint}", ", ".join(CODES))
    return value


Name = Annotated[StrictStr, AfterValidator(_name)]
Tool = Annotated[StrictStr, AfterValidator(_tool)]
Glob = Annotated[StrictStr, AfterValidator(_glob)]
Code = Annotated[StrictStr, AfterValidator(_code)]
Value = StrictStr | StrictBool | StrictInt | StrictFloat | None
Names = Annotated[tuple[Name, ...], Field(max_length=LIST_LIMIT)]
Tools = Annotated[tuple[Tool, ...], Field(max_length=LIST_LIMIT)]


def matches(glob: str, text: str) -> bool:
    """Whether `text` is what `glob` describes; `*` stands for any characters, nothing else is
    special, case counts. Linear: each piece between stars is searched for once, leftmost.
    """
    first, *middle = glob.split("*")
    if not middle:
        return text == glob
    last = middle.pop()
    if len(text) < len(first) + len(last) or not text.startswith(first):
        return False
    position, end = len(first), len(text) - len(last)
    if not text.endswith(last):
        return False
    for piece in middle:
        found = text.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True


class ParameterRule(Written):
    """What the arguments of one tool must, must not and may hold."""

    required: Names = ()
    forbidden: Names = ()
    allowed_values: dict[Name, Annotated[tuple[Value, ...], Field(max_length=LIST_LIMIT)]] = Field(
        default_factory=dict
    )


class Rules(Written):
    """The expectations that a contract and a golden case have in common."""

    allowed_tools: Tools = ()
    """Empty: no restriction."""
    forbidden_tools: Tools = ()
    parameter_rules: dict[Tool, ParameterRule] = Field(default_factory=dict)
    filtered_fields: Names = ()
    expected_trajectory: Annotated[tuple[Tool, ...], Field(max_length=PATH_LIMIT)] = ()
    trajectory_mode: Literal["strict", "relaxed"] = "strict"
    forbidden_intermediates: Tools = ()
    no_repeats: Tools = ()


class Selector(Written):
    """Which trajectories a contract is for. Everything that is given must match."""

    service: Glob | None = None
    agent: Glob | None = None
    attributes: dict[Name, Glob] = Field(default_factory=dict)
    """Globs on resource attributes."""


class Semantic(Written):
    """Whether readings by an LLM are asked for, of which steps, and what they may turn."""

    mode: Literal["off", "advisory", "gate"] = "off"
    """`advisory`: listed as warnings. `gate`: the label stays open until the reading is in."""
    rubric: Annotated[StrictStr, Field(max_length=RUBRIC_LIMIT)] = ""
    """What the model is told beside the standing instructions."""
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    """A claim read with less is never held against the answer, and never passes it either."""
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of trajectories that are read, chosen by a hash of the trajectory id."""
    steps: tuple[Literal["answer", "tool_result", "message"], ...] = ("answer",)

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, data: Any) -> Any:
        """`semantic: off` is short for `semantic: {mode: off}`."""
        return {"mode": data} if isinstance(data, str) else data


class Contract(Rules):
    """A versioned contract."""

    contract: Name
    version: Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)]
    owner: StrictStr | None = None
    rationale: StrictStr | None = None
    applies_to: Selector = Selector()
    grounding: Literal["off", "paper"] = "paper"
    semantic: Semantic = Semantic()
    severity: dict[Code, Severity] = Field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Identifies the content, owner and rationale included: 32 hex digits."""
        return digest(_canonical(self))

    @property
    def key(self) -> tuple[str, int]:
        return self.contract, self.version

    def applies(
        self, service: str | None, attributes: Mapping[str, str], agents: Collection[str]
    ) -> Binding:
        """Whether the contract judges a trajectory of which `agents` were seen so far.

        `undetermined`: it names an agent that may still come.
        """
        to = self.applies_to
        if to.service is not None and (service is None or not matches(to.service, service)):
            return "no"
        for name, glob in to.attributes.items():
            if name not in attributes or not matches(glob, attributes[name]):
                return "no"
        if to.agent is None or any(matches(to.agent, agent) for agent in agents):
            return "yes"
        return "undetermined"


def _canonical(model: BaseModel) -> bytes:
    """JSON in the order of the fields, defaults left out, so that a new field keeps old digests."""
    return msgspec.json.encode(model.model_dump(mode="python", exclude_defaults=True))


def load_contract(path: Path, *, limit: int = SIZE_LIMIT) -> Contract:
    """One contract from one YAML file of at most `limit` bytes. Raises InputError."""
    document = yaml.parse(load(path, limit), str(path), limit=limit)
    if not isinstance(document.value, dict):
        raise document.error((), "holds no contract", "a mapping with contract, version and rules")
    return build(Contract, document.value, document)


def load_contracts(directory: Path, *, limit: int = SIZE_LIMIT) -> tuple[Contract, ...]:
    """Every `*.yaml` and `*.yml` of a directory (not below it), by name and version.

    A directory without contracts is fine. Raises InputError for the first file that is not, and
    for two files with one contract name and version.
    """
    try:
        paths = sorted(
            path
            for path in directory.iterdir()
            if path.suffix in {".yaml", ".yml"} and not path.name.startswith(".")
        )
    except OSError as error:
        raise InputError(
            str(directory), f"cannot be read: {error.strerror}", "a directory of contracts"
        ) from None
    found: dict[tuple[str, int], tuple[Path, Contract]] = {}
    for path in paths:
        contract = load_contract(path, limit=limit)
        other = found.setdefault(contract.key, (path, contract))[0]
        if other != path:
            raise InputError(
                str(path),
                f"contract {shown(contract.contract)} version {contract.version}"
                f" stands in {other} too",
                "one file for a name and version",
            )
    return tuple(found[key][1] for key in sorted(found))


_HOUR: Final = 3_600_000


class Limits(Struct, frozen=True, omit_defaults=False):
    """What a trajectory may grow to. Times are milliseconds of journal time."""

    max_steps: int = 2000
    max_bytes: int = 8 << 20
    max_age: int = 24 * _HOUR
    max_derived: int = 2_000_000
    """Spans that may be derived anew for late arrivals, summed over a trajectory: some twenty
    seconds of work, which spans in reverse order could otherwise turn into hours."""
    state_ttl: int = 48 * _HOUR

    def __post_init__(self) -> None:
        for name in ("max_steps", "max_bytes", "max_age", "max_derived"):
            if getattr(self, name) < 1:
                raise InputError(name, str(getattr(self, name)), "at least 1")
        if self.state_ttl < self.max_age + _HOUR:
            raise InputError(
                "state_ttl",
                f"{self.state_ttl} ms",
                f"at least max_age + 1 h = {self.max_age + _HOUR} ms",
            )


class _Encoded(Struct, frozen=True, omit_defaults=False):
    """A policy set as it is written: version of this format, then its parts."""

    format: int
    contracts: tuple[dict[str, Any], ...]
    limits: Limits
    evidence: Evidence
    event_attributes: tuple[str, ...]


class PolicySet:
    """All contracts and limits by which a deployment judges. The same content, the same digest,
    in whatever order its contracts were found.
    """

    def __init__(
        self,
        contracts: Iterable[Contract] = (),
        limits: Limits | None = None,
        evidence: Evidence = "plain",
        event_attributes: Iterable[str] = (),
    ) -> None:
        self.contracts = tuple(sorted(contracts, key=lambda contract: contract.key))
        self.limits = Limits() if limits is None else limits
        self.evidence: Evidence = evidence
        self.event_attributes = tuple(sorted(set(event_attributes)))
        keys = [contract.key for contract in self.contracts]
        if len(keys) > CONTRACT_LIMIT:
            raise InputError("contracts", str(len(keys)), f"at most {CONTRACT_LIMIT}")
        for one, other in pairwise(keys):
            if one == other:
                raise InputError(
                    f"contract {one[0]}", f"version {one[1]} twice", "one of a name and version"
                )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The set that `encode` wrote. Raises ValueError for anything else."""
        try:
            parts = msgspec.json.decode(data, type=_Encoded)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a policy set: {error}") from None
        if parts.format != 1:
            raise ValueError(f"policy set of format {parts.format}, 1 is known")
        return cls(
            (Contract.model_validate(fields) for fields in parts.contracts),
            parts.limits,
            parts.evidence,
            parts.event_attributes,
        )

    @cached_property
    def _bytes(self) -> bytes:
        return msgspec.json.encode(
            _Encoded(
                1,
                tuple(
                    contract.model_dump(mode="python", exclude_defaults=True)
                    for contract in self.contracts
                ),
                self.limits,
                self.evidence,
                self.event_attributes,
            )
        )

    def encode(self) -> bytes:
        """Canonical bytes."""
        return self._bytes

    @cached_property
    def digest(self) -> str:
        return digest(self._bytes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PolicySet) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        return f"PolicySet({self.digest}, {len(self.contracts)} contracts)"
