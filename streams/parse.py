"""Parse: parse requests -> LLM, in batches -> readings -> journal. Keeps no state of its own.

A take of the topic is cut into calls by rubric, kind of step, count and tokens, and all calls run
side by side under one deadline, so a take ends in time whatever the server does. Answers are matched
by id: what is missing, doubled, foreign or invalid touches its own step only. A call that fails as a
whole is cut in two until the step that poisons it stands alone.

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
from typing import Any, Final, Literal, Protocol

import msgspec
from pydantic import ValidationError

from monitor.model import Account, Reading, digest
from monitor.prompt import item_id, messages, prompt_digest
from monitor.reading import (
    READING_VERSION,
    AnswerItem,
    ParseRequest,
    Reason,
    batch_schema,
    item_model,
)
from streams.dead_letters import DeadLetters
from streams.events import Message
from streams.journal import Packer
from streams.llm import Failed, Llm, Reply
from streams.requests import BadRequestError, decode
from streams.spending import Budget, Price, Taken, price_of
from streams.topic_log import Raw

log = logging.getLogger(__name__)

TAKE: Final = 256
"""Requests of a take at most."""
_RAW: Final = 16_000
"""Characters of a model's words that a reading keeps."""
_LARGEST: Final = 40_000
"""Characters of one step's answer: a reading must fit into an arrival, in whatever script."""
_CHARACTERS: Final = 3
"""Characters of a token, for estimates: few, since too high an estimate is corrected."""
_FENCE: Final = "```"

Outcome = Literal["assessed", "timeout", "invalid", "budget", "breaker", "refused", "truncated"]


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


class _Item:
    """A request on its way; several trajectories may ask for the same content."""

    def __init__(self, request: ParseRequest, key: str, tokens: int) -> None:
        self.request = request
        self.key = key
        self.tokens = tokens
        self.also: list[ParseRequest] = []
        self.taken: Taken | None = None
        self.spent = [0.0, 0.0, 0.0]
        """Tokens in, tokens out, dollars, over all calls that held it."""
        self.item: dict[str, Any] | None = None
        self.account: Account | None = None
        self.failed: tuple[Reason, str] = ("timeout", "not asked before the deadline")


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
        prices: dict[str, Price],
        limits: Limits,
        policy_sets: Sets,
        sender: Writer,
        dead_letters: DeadLetters,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        count: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        """`count` is told of each reading that is written."""
        self._topic = topic
        self._journal = journal
        self._partitions = partitions
        self._llm = llm
        self._cache = cache
        self._budget = budget
        self._prices = prices
        self._limits = limits
        self._sets = policy_sets
        self._sender = sender
        self._dead = dead_letters
        self._clock = clock
        self._monotonic = monotonic
        self._count = count
        self.counts: Counter[str] = Counter()
        """Items by what became of them, and oddities of answers, since the process began."""

    async def handle(self, batch: Sequence[Raw]) -> None:
        """Returns when every request of the take has its reading in the journal."""
        until = self._monotonic() + self._llm.config.deadline
        letters, requests = self._decode(batch)
        if letters:
            await self._sender.send(letters)
        items, late = self._sort(requests)
        await self._write([_unread(r, "timeout", "nobody waits for it any more") for r in late])
        items = await self._from_cache(items)
        calls: list[list[_Item]] = []
        for group in self._groups(await self._affordable(items)):
            calls += self._cut(group)
        await asyncio.gather(*(self._call(call, until) for call in calls))

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

    def _sort(self, requests: Sequence[ParseRequest]) -> tuple[list[_Item], list[ParseRequest]]:
        """Items, each content once; and those that came too late."""
        items: dict[str, _Item] = {}
        late = []
        seen: set[str] = set()
        for request in requests:
            if request.id in seen:
                continue
            seen.add(request.id)
            if self._clock() - request.asked / 1000 > self._limits.expired:
                late.append(request)
                continue
            key = self._key(request)
            if key in items:
                items[key].also.append(request)
            else:
                size = len(request.text) + sum(
                    len(text or "")
                    for one in request.evidence
                    for text in (one.arguments, one.result, one.error)
                )
                items[key] = _Item(request, key, size // _CHARACTERS + 100)
        return list(items.values()), late

    def _key(self, request: ParseRequest) -> str:
        """What a reading depends on: model, way of asking, prompt with rubric, content."""
        config = self._llm.config
        asked = msgspec.msgpack.encode(
            [config.url, config.model, config.decoding, request.text, request.evidence, request.cut]
        )
        return digest(prompt_digest(request.type, request.rubric), asked, str(request.attempt))

    async def _from_cache(self, items: list[_Item]) -> list[_Item]:
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

    async def _affordable(self, items: list[_Item]) -> list[_Item]:
        """Takes each item's estimate from the budgets; what is too dear is not asked."""
        left, dear = [], []
        price = price_of(self._llm.config.model, self._prices)
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

    def _groups(self, items: Sequence[_Item]) -> list[list[_Item]]:
        """Items that share a prompt."""
        groups: dict[tuple[str, str], list[_Item]] = {}
        for item in items:
            groups.setdefault((item.request.type, item.request.rubric), []).append(item)
        return list(groups.values())

    def _cut(self, group: Sequence[_Item]) -> list[list[_Item]]:
        calls: list[list[_Item]] = [[]]
        tokens = 0
        for item in group:
            full = len(calls[-1]) >= self._limits.items
            if calls[-1] and (full or tokens + item.tokens > self._limits.tokens):
                calls.append([])
                tokens = 0
            calls[-1].append(item)
            tokens += item.tokens
        return calls

    # -- asking ------------------------------------------------------------------------------

    async def _call(self, items: list[_Item], until: float) -> None:
        """Asks for items and writes their readings."""
        await self._ask(items, until, again=True)
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

    async def _ask(self, items: list[_Item], until: float, *, again: bool) -> None:
        """Fills in items, in as many calls as it takes."""
        first = items[0].request
        try:
            reply = await self._llm.ask(
                messages([item.request for item in items]),
                batch_schema(first.type),
                items=len(items),
                until=until,
            )
            left = self._match(items, reply)
        except Failed as failed:
            self.counts["calls_failed"] += 1
            self._spend(items, *failed.tokens)
            for item in items:
                item.failed = (failed.reason, failed.detail)
            if not failed.divisible or len(items) == 1:
                return
            left = items
        if not left:
            return
        if len(left) > 1 and len(left) == len(items):
            self.counts["splits"] += 1
            middle = len(left) // 2
            await asyncio.gather(
                self._ask(left[:middle], until, again=again),
                self._ask(left[middle:], until, again=again),
            )
        elif again or len(items) > 1:
            self.counts["asked_again"] += len(left)
            await self._ask(left, until, again=False)

    def _match(self, items: list[_Item], reply: Reply) -> list[_Item]:
        """Gives each item its answer; those without a valid one are left."""
        self.counts["calls"] += 1
        self._spend(items, reply.input_tokens, reply.output_tokens)
        entries = _entries(reply.text)
        if entries is None:
            raise Failed("invalid", "the answer is no JSON object with items", divisible=True)
        found: dict[str, list[Any]] = {}
        for entry in entries:
            name = entry.get("id") if isinstance(entry, dict) else None
            found.setdefault(name if isinstance(name, str) else "", []).append(entry)
        known = {item_id(item.request) for item in items}
        self.counts["foreign"] += sum(len(e) for name, e in found.items() if name not in known)
        left = []
        for item in items:
            given = found.get(item_id(item.request), [])
            if not given:
                item.failed = ("invalid", "the answer leaves it out")
            elif any(other != given[0] for other in given):
                item.failed = ("invalid", "the answer holds it twice, and differently")
            else:
                problem = self._accept(item, given[0], reply, len(items))
                if problem is None:
                    continue
                item.failed = ("invalid", problem)
            self.counts["invalid"] += 1
            left.append(item)
        return left

    def _accept(self, item: _Item, given: Any, reply: Reply, batch: int) -> str | None:
        """Takes an answer; or says what is wrong with it."""
        try:
            item_model(item.request.type).model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, first['loc']))[:100]}: {first['msg'][:150]}"
        raw = msgspec.json.encode(given).decode()
        if len(raw) > _LARGEST:
            return f"{len(raw)} characters, at most {_LARGEST} are kept"
        item.item = given
        priced = price_of(reply.model, self._prices) or price_of(
            self._llm.config.model, self._prices
        )
        item.account = Account(
            model=reply.model[:200],
            prompt=prompt_digest(item.request.type, item.request.rubric),
            rubric=digest(item.request.rubric),
            decoding=reply.decoding,
            raw=raw[:_RAW],
            batch=batch,
            input_tokens=item.spent[0],
            output_tokens=item.spent[1],
            latency=reply.latency,
            cost=None if priced is None else priced.cost(item.spent[0], item.spent[1]),
        )
        return None

    def _spend(self, items: Sequence[_Item], tokens_in: float, tokens_out: float) -> None:
        """Shares a call's tokens among its items, by size."""
        price = price_of(self._llm.config.model, self._prices)
        total = sum(item.tokens for item in items)
        self.counts["input_tokens"] += round(tokens_in)
        self.counts["output_tokens"] += round(tokens_out)
        for item in items:
            share = item.tokens / total
            item.spent[0] += tokens_in * share
            item.spent[1] += tokens_out / len(items)
            if price is not None:
                item.spent[2] = price.cost(item.spent[0], item.spent[1])

    # -- writing -----------------------------------------------------------------------------

    async def _finish(self, items: Sequence[_Item]) -> None:
        readings = []
        for item in items:
            for request in (item.request, *item.also):
                if item.item is None or item.account is None:
                    readings.append(_unread(request, *item.failed, self._account(item)))
                else:
                    readings.append(_read(request, item.item, item.account))
        await self._write(readings)

    def _account(self, item: _Item) -> Account:
        return Account(
            model=self._llm.config.model,
            prompt=prompt_digest(item.request.type, item.request.rubric),
            rubric=digest(item.request.rubric),
            decoding=self._llm.config.decoding,
            detail=item.failed[1],
            input_tokens=item.spent[0],
            output_tokens=item.spent[1],
            cost=item.spent[2] if price_of(self._llm.config.model, self._prices) else None,
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
            outcome: Any = reading.reason or "assessed"
            self.counts[outcome] += 1
            self._count(outcome)


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


def _entries(text: str) -> list[Any] | None:
    """The items of an answer; None for anything but one JSON object that has them. A fence around
    it is how models write JSON when nothing constrains them."""
    text = text.strip()
    if text.startswith(_FENCE) and text.endswith(_FENCE):
        text = text.removeprefix(_FENCE).removesuffix(_FENCE).removeprefix("json")
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    items = value.get("items") if isinstance(value, dict) else None
    return items if isinstance(items, list) else None


_decode_cached: Final = msgspec.msgpack.Decoder(Cached)


def _cached(data: bytes) -> Cached | None:
    """What another version wrote is not known."""
    try:
        return _decode_cached.decode(data)
    except msgspec.MsgspecError:
        return None
