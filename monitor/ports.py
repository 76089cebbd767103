"""The seams to the world: what the engine needs from whoever runs it.

Implementations: `monitor.memory` (in memory, with a fuse), `streams.store` (Redis),
`streams.evaluate` (Kafka). An implementation raises whatever its medium raises; the engine lets
it through, because a failing port is waited for, never judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

from monitor.model import Struct

if TYPE_CHECKING:
    from monitor.contract import PolicySet
    from monitor.label import Event
    from monitor.reading import ParseRequest

SaveOutcome = Literal["written", "newer", "older"]
"""`written`; `newer`: another owner is ahead; `older`: the store has lost writes (or is empty)."""


class Watermark(Struct, frozen=True, array_like=True, omit_defaults=False):
    """The last journal record folded into the stored state, and how much of it.

    `epoch` counts the logs that the partition has had, `index` the arrivals of record `offset`
    that are folded (a record is cut when its save would grow too large); `timestamp` is the
    record's time in milliseconds, by which a re-created log is told from the old one.
    """

    epoch: int
    offset: int
    index: int
    timestamp: int


class Wanted(Struct, frozen=True):
    """What a batch needs of one trajectory: its head always, and these index fields; with
    `content` all spans and all index fields."""

    fields: tuple[str, ...] = ()
    content: bool = False


class Loaded(Struct, frozen=True):
    """Stored state of one trajectory; `head` is None for one that is not known.

    `content` is None when it was not asked for, or when it was asked for together with others' and
    the answer would have become too large: asked for alone it is given.
    """

    head: bytes | None = None
    fields: Mapping[str, bytes] = {}
    content: Mapping[str, bytes] | None = None


class Saving(Struct, frozen=True):
    """What a batch changes of one trajectory. `head` None removes the trajectory altogether;
    `fresh` removes what was stored of it before the rest is written (it began anew).

    `fields` and `content` add or replace entries by name. `due` is the journal time in
    milliseconds at which a close falls due, None when nothing is awaited.
    """

    head: bytes | None
    fields: Mapping[str, bytes] = {}
    content: Mapping[str, bytes] = {}
    due: int | None = None
    fresh: bool = False


class StoreCorrupt(Exception):  # noqa: N818 - an outcome, named like the engine's
    """A stored value is not what its key says; the text names the value and what is wrong. The
    partition's state is given up: whoever runs the engine takes the partition over anew, and folds
    its journal again.
    """


class Store(Protocol):
    """State of the trajectories of one partition and the watermark, saved atomically together."""

    async def load(
        self, partition: int, wanted: Mapping[str, Wanted]
    ) -> tuple[Watermark | None, dict[str, Loaded]]:
        """The partition's watermark and the state of the wanted trajectories, in one round trip."""

    async def save(
        self,
        partition: int,
        expected: Watermark | None,
        watermark: Watermark,
        changes: Mapping[str, Saving],
    ) -> SaveOutcome:
        """Writes all or, unless the stored watermark equals `expected`, nothing."""

    async def due(self, partition: int, now: int, limit: int) -> Sequence[str]:
        """Up to `limit` trajectories whose close is due at `now` (milliseconds), earliest first."""

    async def give_up(self, partition: int, why: str) -> NoReturn:
        """Removes the partition's state, its watermark first: something of it cannot be read. Raises
        StoreCorrupt, which says so."""


class Publisher(Protocol):
    """Where events go, and requests for what is to be read by an LLM, which come only when a
    contract asks for them. In one call, so that whoever waits for an event waits for one answer.
    """

    async def publish(self, events: Sequence[Event], requests: Sequence[ParseRequest]) -> None:
        """Returns when all are durable; order within a trajectory is kept. The same event or
        request may come again, with the same id."""


class PolicySets(Protocol):
    """Policy sets by digest. Waits for one that is not known yet."""

    async def get(self, digest: str) -> PolicySet: ...
