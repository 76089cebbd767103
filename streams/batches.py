"""Batches: steps of many trajectories in one call, and which answer belongs to which step.

Answers are matched by id: what is missing, doubled, foreign or invalid touches its own step only. A
call that fails as a whole is cut in two until the step that poisons it stands alone; a step without a
valid answer is asked for once more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from monitor.model import Account, digest
from monitor.prompt import item_id, messages, prompt_digest
from monitor.reading import ParseRequest, Reason, batch_schema, item_model
from streams.llm import Failed, Llm, Reply
from streams.spending import Price, Taken, price_of

_RAW: Final = 16_000
"""Characters of a model's words that a reading keeps."""
_LARGEST: Final = 40_000
"""Characters of one step's answer: a reading must fit into an arrival, in whatever script."""
_CHARACTERS: Final = 3
"""Characters of a token, for estimates: few, since too high an estimate is corrected."""
_FENCE: Final = "```"


class Cut(msgspec.Struct, frozen=True):
    """How calls are cut: steps and estimated tokens of one at most."""

    items: int = 16
    tokens: int = 24_000


class Item:
    """A request on its way; several trajectories may ask for the same content."""

    def __init__(self, request: ParseRequest, key: str) -> None:
        self.request = request
        self.key = key
        self.tokens = _size(request) // _CHARACTERS + 100
        self.also: list[ParseRequest] = []
        self.taken: Taken | None = None
        self.spent = [0.0, 0.0, 0.0]
        """Tokens in, tokens out, dollars, over all calls that held it."""
        self.item: dict[str, Any] | None = None
        self.account: Account | None = None
        self.failed: tuple[Reason, str] = ("timeout", "not asked before the deadline")


class Batches:
    """Asks an LLM for items, and fills them in."""

    def __init__(self, llm: Llm, prices: Mapping[str, Price], cut: Cut) -> None:
        self._llm = llm
        self._prices = prices
        self._cut = cut
        self.counts: Counter[str] = Counter()
        """Calls, tokens and oddities of answers since the process began."""

    def price(self, model: str | None = None) -> Price | None:
        """The price of the model that answered, else of the one that is asked for."""
        named = None if model is None else price_of(model, self._prices)
        return named or price_of(self._llm.config.model, self._prices)

    def calls(self, items: Sequence[Item]) -> list[list[Item]]:
        """Items by call: those that share a prompt, in bounded numbers."""
        groups: dict[str, list[Item]] = {}
        for item in items:
            prompt = prompt_digest(item.request.type, item.request.rubric)
            groups.setdefault(prompt, []).append(item)
        return [call for group in groups.values() for call in self._bounded(group)]

    def _bounded(self, group: Sequence[Item]) -> list[list[Item]]:
        calls: list[list[Item]] = [[]]
        tokens = 0
        for item in group:
            full = len(calls[-1]) >= self._cut.items
            if calls[-1] and (full or tokens + item.tokens > self._cut.tokens):
                calls.append([])
                tokens = 0
            calls[-1].append(item)
            tokens += item.tokens
        return calls

    async def ask(self, items: list[Item], until: float, *, again: bool) -> None:
        """Fills in items, in as many calls as it takes."""
        first = items[0].request
        self.counts["calls"] += 1
        try:
            reply = await self._llm.ask(
                messages([item.request for item in items]),
                batch_schema(first.type),
                items=len(items),
                until=until,
            )
            left = self._match(items, reply)
        except Failed as failed:
            self.counts["call_failed"] += 1
            self._spend(items, *failed.tokens)
            for item in items:
                item.failed = (failed.reason, failed.detail)
            if not failed.divisible or len(items) == 1:
                return
            left = items
        if not left:
            return
        if len(left) > 1 and len(left) == len(items):
            self.counts["split"] += 1
            middle = len(left) // 2
            await asyncio.gather(
                self.ask(left[:middle], until, again=again),
                self.ask(left[middle:], until, again=again),
            )
        elif again or len(items) > 1:
            self.counts["asked_again"] += len(left)
            await self.ask(left, until, again=False)

    def _match(self, items: list[Item], reply: Reply) -> list[Item]:
        """Gives each item its answer; those without a valid one are left."""
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
            self.counts["invalid_item"] += 1
            left.append(item)
        return left

    def _accept(self, item: Item, given: Any, reply: Reply, batch: int) -> str | None:
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
        priced = self.price(reply.model)
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

    def _spend(self, items: Sequence[Item], tokens_in: float, tokens_out: float) -> None:
        """Shares a call's tokens among its items, by size."""
        price = self.price()
        total = sum(item.tokens for item in items)
        self.counts["input_tokens"] += round(tokens_in)
        self.counts["output_tokens"] += round(tokens_out)
        for item in items:
            share = item.tokens / total
            item.spent[0] += tokens_in * share
            item.spent[1] += tokens_out / len(items)
            if price is not None:
                item.spent[2] = price.cost(item.spent[0], item.spent[1])
        if price is not None:
            self.counts["micro_dollars"] += round(1e6 * price.cost(tokens_in, tokens_out))


def _size(request: ParseRequest) -> int:
    """Characters that a model is shown of a request."""
    return len(request.text) + sum(
        len(text or "")
        for one in request.evidence
        for text in (one.arguments, one.result, one.error)
    )


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
