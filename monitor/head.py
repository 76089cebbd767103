"""The head: what of a trajectory's RGE state is rewritten for every batch that names it.

It holds the calls that may still change (the *window*), and for the calls before them only the
monitors' states and a few sums. Its size does not grow with the number of steps.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from monitor.bench import Bench
from monitor.calls import LogicalCall
from monitor.model import CloseReason, Finding, Judgement, Unseen
from monitor.model import digest as digest_of
from monitor.places import Position
from monitor.reading import Read, Told

STATE_VERSION: Final = 3
"""Version of the stored form of a trajectory: raised whenever one of its parts is laid out anew.
Stores keep it in their keys, so that a state of another version is not found and is rebuilt."""
NAMES: Final = 32
"""Agents and services remembered of one trajectory."""


class LastAnswer(msgspec.Struct, array_like=True, gc=False):
    """The answer as far as a label depends on it."""

    span_id: str
    shown: bool
    digest: str
    follows: bool
    """No known step comes after it."""
    step: int


class Standing(msgspec.Struct, omit_defaults=True):
    """How a trajectory stands under one contract."""

    bound: bool = False
    policy: Any = None
    trajectory: Any = None
    answer: LastAnswer | None = None
    grounding: Judgement | None = None
    """What grounding says of the answer; None until it is asked and after a span that matters."""
    anonymous: bool = False
    """Some step's agent is not known, and the contract names one."""
    revision: int = 0
    raised: dict[str, Finding] = {}
    """Published, not withdrawn: violation id to finding."""
    open: bool = False
    """The last assessment was of a prefix that was not settled."""
    said: tuple[Any, ...] | None = None
    """What the last label said, to tell whether the next one says something else."""


class Head(msgspec.Struct, omit_defaults=True):
    """What is rewritten for every batch that names the trajectory."""

    trajectory: str
    policy_set: str
    first: int
    """Journal time of the first arrival, milliseconds."""
    last: int = 0
    offset: int = -1
    """Journal offset of the last arrival that is not a close."""
    chain: str = ""
    """Digest over all arrivals that changed something, in order."""
    spans: int = 0
    bytes: int = 0
    derived: int = 0
    """Spans derived anew, summed over all arrivals that were not in order."""
    agentic: bool = False
    closed: CloseReason | None = None
    limit: CloseReason | None = None
    """A limit or an error after which arrivals are counted, not folded."""
    late: bool = False
    lost: int = 0
    history_lost: bool = False
    unknown: int = 0
    conflicts: int = 0
    """Different spans that came under one id."""
    ignored: int = 0

    agent: str | None = None
    service: str | None = None
    attributes: dict[str, str] = {}
    conversation: str | None = None
    turn_conversation: bool = False
    agents: list[str] = []
    services: list[tuple[str | None, dict[str, str]]] = []

    roots: list[str] = []
    missing: int = 0
    gaps: int = 0
    mute: bool = False
    turned: bool = False
    agent_turns: bool = False
    tools_seen: bool = False
    asked: bool = False
    requested: bool = False
    """Some call was requested by a turn."""
    loose: Position | None = None
    """Where the last tool span stands that no id joined to a call: such ones join in their order."""
    calls: int = 0
    steps: int = 0
    tail: Position | None = None
    """Position behind which a step is appended."""
    depth: int | None = None
    answer: LastAnswer | None = None
    window: list[LogicalCall] = []
    unanswered: int = 0
    """Calls before the window of which no result is known,"""
    not_run: int = 0
    """and that no span is known to have run."""
    output_unseen: list[Unseen] = []
    results_unseen: list[Unseen] = []
    arguments_unseen: dict[str, Unseen] = {}
    """Tools that a rule reads and of which a call before the window does not show arguments."""

    print: str | None = None
    """Digest of steps and evidence after `rebuild`; None since a later `extend`."""
    reads: list[Read] = []
    """Answers that were asked to be read when the prefix last settled."""
    steps_asked: list[str] = []
    """Other steps that were, by `step_name`."""
    told: dict[str, Told] = {}
    """Their readings, by the same name."""
    standings: list[Standing] = []
    outsider: Standing | None = None
    """The label without a contract."""

    @property
    def pending_calls(self) -> list[LogicalCall]:
        return [call for call in self.window if not call.answered]

    @property
    def quiescent(self) -> bool:
        """Root and answer seen after all known steps, no result and no parent awaited."""
        return (
            bool(self.roots)
            and not self.missing
            and self.answer is not None
            and self.answer.follows
            and not self.unanswered
            and all(call.answered for call in self.window)
        )

    @property
    def awaited(self) -> list[Read]:
        """Answers whose reading has not come yet."""
        return [] if self.limit is not None else [r for r in self.reads if r.kept is None]

    @property
    def settled(self) -> bool:
        """What judges the whole run may speak."""
        return self.closed is not None or self.quiescent


def new_head(trajectory: str, bench: Bench, time: int) -> Head:
    """A trajectory that begins at this journal time, pinned to the policy set of `bench`."""
    standings = [Standing() for _ in bench.judges]
    return Head(trajectory, bench.policy_set.digest, time, time, standings=standings)


NOT_DERIVED: Final = (
    *("last", "offset", "chain", "bytes", "derived", "closed", "limit", "late", "lost"),
    *("history_lost", "unknown", "conflicts", "ignored", "reads", "steps_asked", "told"),
    "outsider",
)
"""What does not follow from the spans: how they came, what else came, what was published."""
_PUBLISHED: Final = ("revision", "raised", "open", "said")


def carry(head: Head, other: Head) -> None:
    """Gives another state of the same trajectory what its spans do not tell."""
    for name in NOT_DERIVED:
        setattr(other, name, getattr(head, name))
    for one, two in zip(head.standings, other.standings, strict=True):
        for name in _PUBLISHED:
            setattr(two, name, getattr(one, name))


def content_digest(text: str) -> str:
    """By which a reading names the content that it read."""
    return digest_of(text, size=8)


encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode


def revive(head: Head, bench: Bench) -> None:
    """Gives the monitors' states their types again after decoding."""
    for standing, judge in zip(head.standings, bench.judges, strict=True):
        if standing.bound:
            standing.policy = _typed(judge.checks.policy, standing.policy)
            if judge.checks.trajectory is not None:
                standing.trajectory = _typed(judge.checks.trajectory, standing.trajectory)


def _typed(monitor: Any, state: Any) -> Any:
    return msgspec.convert(state, type(monitor.initial()))
