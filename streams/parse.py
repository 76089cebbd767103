"""Parse: parse requests -> LLM, in batches -> readings -> journal. Keeps no state of its own.

A take of the topic is cut into calls (`streams.batches`), and all calls run side by side under one
deadline, so a take ends in time whatever the server does.

Every request ends as a reading in the journal, and only then is it acknowledged; a crash in between
asks again, mostly from the cache, under the same reading id. What is no valid answer is an
`unassessed` reading with its reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from monitor.model import Account, Reading, digest
from monitor.prompt import prompt_digest
from monitor.reading import (
    READING_VERSION,
    AnswerItem,
    ParseRequest,
    Reason,
    item_model,
)
from streams import metrics
from streams.batches import Batches, Item
from streams.dead_letters import DeadLetters
from streams.events import Message
from streams.journal import Packer
from streams.llm import Llm
from streams.metrics import READINGS
from streams.requests import BadRequestError, decode
from streams.spending import Budget, Taken
from streams.topic_log import Raw

log = logging.getLogger(__name__)

TAKE: Final = 256
"""Requests of a take at most."""

_TELL_EVERY: Final = 1.0
"""Seconds between two looks at what was counted."""


class Cache(Protocol):
    """Readings by what was read and how."""

    async def get(self, keys: Sequence[str]) -> list[bytes | None]: ...

    async def put(self, entries: dict[str, bytes]) -> None: ...


class Writer(Protocol):
    async def send(self, messages: Sequence[Message]) -> list[int]: ...


class Sets(Protocol):
    async def latest(self) -> str: ...


class Cached(msgspec.Struct, frozen=True):
    """A valid answer, as the cache keeps it."""

    item: dict[str, Any]
    account: Account


class Limits(msgspec.Struct, frozen=True):
    """How calls are cut. `expired` is the age in seconds after which nobody waits any more."""

    items: int = 16
    tokens: int = 24_000
    expired: float = 300.0


class Parse:
    """Handles takes of parse requests. `clock` gives Unix seconds, `monotonic` the LLM's clock."""

    def __init__(
        self,
        *,
        topic: str,
        journal: str,
        partitions: int,
        llm: Llm,
        cache: Cache,
        budget: Budget,
        batches: Batches,
        expired: float,
        policy_sets: Sets,
        sender: Writer,
        dead_letters: DeadLetters,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`expired` is the age in seconds after which nobody waits for a reading any more."""
        self._topic = topic
        self._journal = journal
        self._partitions = partitions
        self._llm = llm
        self._cache = cache
        self._budget = budget
        self._batches = batches
        self._expired = expired
        self._sets = policy_sets
        self._sender = sender
        self._dead = dead_letters
        self._clock = clock
        self._monotonic = monotonic
        self.counts = batches.counts
        """Readings by what became of them, calls, tokens and oddities of answers."""

    async def handle(self, batch: Sequence[Raw]) -> None:
        """Returns when every request of the take has its reading in the journal."""
        until = self._monotonic() + self._llm.config.deadline
        letters, requests = self._decode(batch)
        if letters:
            await self._sender.send(letters)
        items, late = self._sort(requests)
        await self._write([_unread(r, "timeout", "nobody waits for it any more") for r in late])
        items = await self._from_cache(items)
        calls = self._batches.calls(await self._affordable(items))
        await asyncio.gather(*(self._call(call, until) for call in calls))

    async def follow(self) -> None:
        """Hands on what was counted until cancelled."""
        told: Counter[str] = Counter()
        while True:
            await asyncio.sleep(_TELL_EVERY)
            tell(self.counts - told, breaker_open=self._llm.breaker.open)
            told = self.counts.copy()

    # -- what is to be read ------------------------------------------------------------------

    def _decode(self, batch: Sequence[Raw]) -> tuple[list[Message], list[ParseRequest]]:
        letters, requests = [], []
        for raw in batch:
            try:
                requests.append(decode(raw.value))
            except BadRequestError as error:
                source = f"{self._topic}:{raw.partition}:{raw.offset}:0"
                letters.append(self._dead.letter(str(error), source, raw.value or b"", None))
            else:
                self._dead.good()
        return letters, requests

    def _sort(self, requests: Sequence[ParseRequest]) -> tuple[list[Item], list[ParseRequest]]:
        """Items, each content once; and those that came too late."""
        items: dict[str, Item] = {}
        late = []
        seen: set[str] = set()
        for request in requests:
            if request.id in seen:
                continue
            seen.add(request.id)
            if self._clock() - request.asked / 1000 > self._expired:
                late.append(request)
                continue
            key = self._key(request)
            if key in items:
                items[key].also.append(request)
            else:
                items[key] = Item(request, key)
        return list(items.values()), late

    def _key(self, request: ParseRequest) -> str:
        """What a reading depends on: model, way of asking, prompt with rubric, content."""
        config = self._llm.config
        asked = msgspec.msgpack.encode(
            [config.url, config.model, config.decoding, request.text, request.evidence, request.cut]
        )
        return digest(prompt_digest(request.type, request.rubric), asked, str(request.attempt))

    async def _from_cache(self, items: list[Item]) -> list[Item]:
        """Writes the readings that are known; gives the items that are not."""
        if not items:
            return []
        left, known = [], []
        for item, found in zip(
            items, await self._cache.get([item.key for item in items]), strict=True
        ):
            cached = None if found is None else _cached(found)
            if cached is None:
                left.append(item)
                continue
            item.item = cached.item
            item.account = msgspec.structs.replace(
                cached.account, batch=0, input_tokens=0, output_tokens=0, latency=0,
                cost=None if cached.account.cost is None else 0, detail="from the cache",
            )  # fmt: skip
            self.counts["cached"] += 1
            known.append(item)
        await self._finish(known)
        return left

    async def _affordable(self, items: list[Item]) -> list[Item]:
        """Takes each item's estimate from the budgets; what is too dear is not asked."""
        left, dear = [], []
        price = self._batches.price()
        for item in items:
            out = self._llm.config.output_tokens
            cost = None if price is None else price.cost(item.tokens, out)
            taken = await self._budget.take(item.request.service, item.tokens + out, cost)
            if isinstance(taken, Taken):
                item.taken = taken
                left.append(item)
            else:
                item.failed = ("budget", f"the budget of {taken} is spent")
                dear.append(item)
        await self._finish(dear)
        return left

    # -- asking ------------------------------------------------------------------------------

    async def _call(self, items: list[Item], until: float) -> None:
        """Asks for items and writes their readings."""
        await self._batches.ask(items, until, again=True)
        for item in items:
            if item.taken is not None:
                tokens_in, tokens_out, cost = item.spent
                await self._budget.settle(item.taken, tokens_in + tokens_out, cost)
        fresh = {
            item.key: msgspec.msgpack.encode(Cached(item.item, item.account))
            for item in items
            if item.item is not None and item.account is not None
        }
        if fresh:
            await self._cache.put(fresh)
        await self._finish(items)

    # -- writing -----------------------------------------------------------------------------

    async def _finish(self, items: Sequence[Item]) -> None:
        readings = []
        for item in items:
            for request in (item.request, *item.also):
                if item.item is None or item.account is None:
                    readings.append(_unread(request, *item.failed, self._account(item)))
                else:
                    readings.append(_read(request, item.item, item.account))
        await self._write(readings)

    def _account(self, item: Item) -> Account:
        return Account(
            model=self._llm.config.model,
            prompt=prompt_digest(item.request.type, item.request.rubric),
            rubric=digest(item.request.rubric),
            decoding=self._llm.config.decoding,
            detail=item.failed[1],
            input_tokens=item.spent[0],
            output_tokens=item.spent[1],
            cost=None if self._batches.price() is None else item.spent[2],
        )

    async def _write(self, readings: Sequence[Reading]) -> None:
        if not readings:
            return
        packer = Packer(await self._sets.latest(), self._partitions)
        for reading in readings:
            source = f"{self._topic}:{reading.id}"
            if packer.add(reading, 0, source) is not None:
                log.error("a reading of %s is too large and lost", reading.trajectory)
        await self._sender.send(
            [
                Message(self._journal, partition, None, value)
                for partition, value in packer.records()
            ]
        )
        for reading in readings:
            self.counts[reading.reason or "assessed"] += 1


def _read(request: ParseRequest, item: dict[str, Any], account: Account) -> Reading:
    read = item_model(request.type).model_validate(item)
    if isinstance(read, AnswerItem):
        parts: dict[str, Any] = {"claims": tuple(claim.model_dump() for claim in read.claims)}
    else:
        parts = {
            "entities": tuple(entity.model_dump() for entity in read.entities),
            "facts": tuple(fact.model_dump() for fact in read.facts),
        }
    return Reading(**_about(request), account=account, **parts)


def _unread(
    request: ParseRequest, reason: Reason, detail: str, account: Account | None = None
) -> Reading:
    about = Account("", "", "", detail=detail) if account is None else account
    return Reading(**_about(request), status="unassessed", reason=reason, account=about)


def _about(request: ParseRequest) -> dict[str, Any]:
    return {
        "trajectory": request.trajectory,
        "id": request.id,
        "step": request.step,
        "content": request.content,
        "parser": request.parser,
        "attempt": request.attempt,
        "version": READING_VERSION,
        "cut": request.cut,
    }


_decode_cached: Final = msgspec.msgpack.Decoder(Cached)


def _cached(data: bytes) -> Cached | None:
    """What another version wrote is not known."""
    try:
        return _decode_cached.decode(data)
    except msgspec.MsgspecError:
        return None


def tell(counted: Counter[str], *, breaker_open: bool) -> None:
    """Metrics of what a role counted since the last time."""
    metrics.put("llm_breaker_open", breaker_open)
    for name, amount in counted.items():
        if name in READINGS:
            metrics.count("readings_written", amount, outcome=name)
        elif name in ("input_tokens", "output_tokens"):
            metrics.count("llm_tokens", amount, direction=name.removesuffix("_tokens"))
        elif name == "micro_dollars":
            metrics.count("llm_dollars", amount / 1e6)
        elif name == "calls":
            metrics.count("llm_calls", amount)
        else:
            metrics.count("llm_oddities", amount, kind=name)
