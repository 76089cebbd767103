"""State of trajectories in Redis. A cache of the journal: what is lost here is folded again.

Every key of journal partition `n` carries the hash tag `{<prefix>:<schema>:<n>}`, written `@`
below, so that all of them lie in one slot and one script may touch them, on a Redis Cluster too.
`<t>` is a trajectory id.

| key       | type   | holds                                                            |
| --------- | ------ | ---------------------------------------------------------------- |
| `@:w`     | string | watermark: msgpack [partition count, epoch, offset, index, time] |
| `@:e`     | string | how many keys the Redis had evicted when the state was begun     |
| `@:due`   | zset   | trajectory -> journal time (ms) at which its close falls due     |
| `@:h:<t>` | string | head: the trajectory's small state, rewritten per batch          |
| `@:f:<t>` | hash   | index fields: read only for the names that a batch brings        |
| `@:c:<t>` | hash   | content: read only when an answer is grounded                    |

A head, field or content value starts with its owner: a byte of schema version and the 16 bytes of
the trace id. Another owner or version must not turn one trajectory's state into another's verdict,
and a key of another type, which some other program wrote, is no state at all. Such a value is read
once more on a new connection, since an old one may have handed out another request's answer; if it
stays, the partition's state is removed, and `StoreCorrupt` raised: the journal is folded again.

A Redis that evicts keys takes heads and leaves the watermark, so that nothing seems to be missing.
Every load asks how many keys it has evicted; when that differs from `@:e`, the state is not to be
trusted: it is removed, and folded again from the journal. (Who may not ask, as by an ACL, is told so
by `check`.)

Every key expires. The TTL is longer than the fold looks back, so it only removes what would be
ignored; apart from it, keys go away with `Saving(head=None)` and with `reset`, nowhere else.
"""

from __future__ import annotations

import hashlib
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Self, TypeVar

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoScriptError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from monitor.engine import StoreBehind
from monitor.head import STATE_VERSION
from monitor.ports import Loaded, SaveOutcome, Saving, StoreCorrupt, Wanted, Watermark
from streams import metrics, telemetry
from streams.errors import UserError
from streams.patience import PATIENCE, patiently, words
from streams.redis_wire import of_another_type, packed, packed_cluster
from streams.setting_values import redacted, variable

log = logging.getLogger(__name__)

T = TypeVar("T")
SCHEMA: Final = STATE_VERSION
"""Layout of the stored values. It is part of every key: another version finds nothing and rebuilds
from the journal, and a rolled-back one finds its own state again."""
_OWNER: Final = 17
_TRAJECTORY: Final = re.compile(rb"[0-9a-f]{32}")
_CALL: Final = 15.0
"""Seconds after which an unanswered call has failed."""

# What a failing or overloaded Redis raises. `ResponseError` is among them because that is how it
# says "out of memory", "read only replica", "loading", "cluster down".
FAILURES: Final = (RedisError, RedisClusterException, OSError, TimeoutError)

_GIVEN: Final = 8 * 1024**2
"""Bytes of spans after which a load gives no more of them; see `monitor.ports.Loaded`."""

_EVICTED: Final = """
local function evicted()
  local info = redis.pcall('INFO', 'stats')
  if type(info) ~= 'string' then return '' end
  return string.match(info, 'evicted_keys:(%d+)') or ''
end
"""
_MARK: Final = f"""{_EVICTED}
return {{redis.call('GET', KEYS[1]), evicted(), redis.call('GET', KEYS[2])}}
"""
_DUE: Final = f"""{_EVICTED}
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
return {{redis.call('GET', KEYS[1]), evicted(), due}}
"""
_LOAD: Final = f"""{_EVICTED}
local out, at, given = {{redis.call('GET', KEYS[1]), evicted()}}, 1, 0
for t = 1, tonumber(ARGV[1]) do
  local head, last, fields, content = 3 * t - 1, at + 2 + tonumber(ARGV[at + 1]), {{}}, false
  if ARGV[at + 2] == '1' and given <= {_GIVEN} then
    fields, content = redis.call('HGETALL', KEYS[head + 1]), redis.call('HGETALL', KEYS[head + 2])
    for _, value in ipairs(content) do given = given + #value end
  else
    for from = at + 3, last, 1000 do
      local to = math.min(from + 999, last)
      local some = redis.call('HMGET', KEYS[head + 1], unpack(ARGV, from, to))
      for _, value in ipairs(some) do fields[#fields + 1] = value end
    end
  end
  out[t + 2], at = {{redis.call('GET', KEYS[head]), fields, content}}, last
end
return out
"""

_SAVE: Final = """
local stored = redis.call('GET', KEYS[1])
if (stored or '') ~= ARGV[1] then return stored or '' end
local ttl, at = ARGV[3], 4
local function put(key, count)
  local last = at + 2 * count
  for from = at + 1, last, 1000 do
    redis.call('HSET', key, unpack(ARGV, from, math.min(from + 999, last)))
  end
  if count > 0 then redis.call('EXPIRE', key, ttl) end
  at = last
end
for t = 1, tonumber(ARGV[4]) do
  local key, id, due, head = 3 * t, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local fields, content = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  if ARGV[at + 4] == '1' then redis.call('DEL', KEYS[key], KEYS[key + 1], KEYS[key + 2]) end
  if head ~= '' then redis.call('SET', KEYS[key], head, 'EX', ttl) end
  at = at + 6
  put(KEYS[key + 1], fields)
  put(KEYS[key + 2], content)
  if due == '' then redis.call('ZREM', KEYS[2], id) else redis.call('ZADD', KEYS[2], due, id) end
end
redis.call('EXPIRE', KEYS[2], ttl)
redis.call('SET', KEYS[1], ARGV[2], 'EX', ttl)
return 1
"""


class StoreUnsafe(UserError):  # noqa: N818 - an outcome, named like the engine's
    """The Redis is set up so that it may drop state silently; the text says what to change."""


class StoreRefused(UserError):  # noqa: N818 - as above
    """There is no Redis, or it wants other credentials or certificates; the text says which."""


def _refusal(error: RedisError) -> str | None:
    """What waiting cannot mend, None for an outage."""
    if isinstance(error, AuthenticationError):
        told = f"refuses the credentials ({words(error)})"
        return f"{told}; see {variable('redis_username')}, {variable('redis_password_file')}"
    if any(text in str(error) for text in ("DB index is out of range", "SELECT is not allowed")):
        return f"has no such database ({words(error)}); see {variable('redis_url')}"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"shows a certificate that fails: {cause.verify_message}; see {variable('redis_ca')}"
    if cause is not None:
        return f"does not speak TLS as asked ({words(cause)}); see {variable('redis_url')}"
    return None


class _Stored(msgspec.Struct, array_like=True):
    """A watermark as it is written."""

    partitions: int
    epoch: int
    offset: int
    index: int
    timestamp: int


class RedisStore:
    """`monitor.ports.Store` on one Redis or a Redis Cluster.

    Outages are waited for (`streams.patience`), then raised. `ttl` is in seconds.
    """

    def __init__(
        self,
        client: Redis | RedisCluster,
        *,
        prefix: str,
        partitions: int,
        ttl: float,
        patience: float = PATIENCE,
    ) -> None:
        self._client: Any = client  # the two clients share no type
        self._prefix = prefix
        self._partitions = partitions
        self._ttl = int(ttl)
        self._patience = patience
        self._sha: dict[str, str] = {}
        self._seen: dict[int, Watermark] = {}
        self._evicted: dict[int, bytes] = {}

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        prefix: str,
        partitions: int,
        ttl: float,
        patience: float = PATIENCE,
        access: Mapping[str, Any] | None = None,
    ) -> Self:
        """Opens the store at a redis:// or rediss:// URL; finds out by itself whether it is a
        Redis Cluster. `access` is `Settings.redis_args()`: credentials and certificates.

        Raises StoreRefused: at once when the Redis wants other ones, else when patience ends.
        """
        options: dict[str, Any] = {"socket_timeout": _CALL, "socket_connect_timeout": 5.0}
        options.update(access or {})
        client: Any = packed(Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options))

        async def is_cluster() -> bool:
            try:
                info: dict[str, Any] = await client.info("cluster")
            except RedisError as error:
                if (why := _refusal(error)) is not None:
                    raise StoreRefused(f"the Redis at {redacted(url)} {why}") from error
                if isinstance(error, ResponseError):  # an embedded or restricted Redis: no INFO
                    return False
                raise
            return bool(info.get("cluster_enabled"))

        try:
            cluster = await patiently("state store", is_cluster, FAILURES, patience=patience)
        except FAILURES as error:
            await client.aclose()
            raise StoreRefused(f"no Redis answers at {redacted(url)}: {words(error)}") from error
        except BaseException:
            await client.aclose()
            raise
        if cluster:
            await client.aclose()
            client = packed_cluster(RedisCluster.from_url(url, **options))
        return cls(client, prefix=prefix, partitions=partitions, ttl=ttl, patience=patience)

    @property
    def client(self) -> Any:
        """The connection, for what is not part of a trajectory's state."""
        return self._client

    async def close(self) -> None:
        await self._client.aclose()

    # -- the port ----------------------------------------------------------------------------

    async def load(
        self, partition: int, wanted: Mapping[str, Wanted]
    ) -> tuple[Watermark | None, dict[str, Loaded]]:
        """Watermark and state in one script call: a consistent view.

        Raises StoreBehind when the watermark is older than one that this object has seen, or keys
        have been evicted.
        """
        tag = self._tag(partition)
        keys = [f"{tag}:w"]
        args: list[str | int] = [len(wanted)]
        for trajectory, want in wanted.items():
            keys += (f"{tag}:h:{trajectory}", f"{tag}:f:{trajectory}", f"{tag}:c:{trajectory}")
            args += (len(want.fields), 1 if want.content else 0, *want.fields)

        async def load() -> tuple[Watermark | None, bytes, dict[str, Loaded]]:
            mark, evicted, *values = await self._script("load", _LOAD, keys, args)
            return self._watermark(mark), evicted, _loaded(wanted, values)

        mark, evicted, loaded = await self._read(partition, load)
        self._compare(partition, evicted)
        return self._kept(partition, mark), loaded

    async def save(
        self,
        partition: int,
        expected: Watermark | None,
        watermark: Watermark,
        changes: Mapping[str, Saving],
    ) -> SaveOutcome:
        """One script call. A watermark that is already the new one means that this save was made
        before, by a call whose answer was lost or by an owner that folded the same records: written.
        """
        tag = self._tag(partition)
        keys = [f"{tag}:w", f"{tag}:due"]
        mark = self._mark(watermark)
        args: list[Any] = [b"" if expected is None else self._mark(expected), mark, self._ttl]
        args.append(len(changes))
        for trajectory, change in changes.items():
            keys += (f"{tag}:h:{trajectory}", f"{tag}:f:{trajectory}", f"{tag}:c:{trajectory}")
            if change.head is None:
                args += (trajectory, b"", b"", 1, 0, 0)
                continue
            owner = _owner(trajectory)
            due = b"" if change.due is None else change.due
            args += (trajectory, due, owner + change.head, 1 if change.fresh else 0)
            args += (len(change.fields), len(change.content))
            for name, value in (*change.fields.items(), *change.content.items()):
                args += (name, owner + value)
        answer = await self._read(partition, lambda: self._script("save", _SAVE, keys, args))
        if answer in (1, mark):
            self._seen[partition] = watermark
            return "written"
        stored = self._watermark(answer or None)
        return "older" if _place(stored) < _place(expected) else "newer"

    async def due(self, partition: int, now: int, limit: int) -> Sequence[str]:
        """Raises StoreBehind as `load` does: a Redis that was flushed or restored while nothing
        arrived is noticed here."""
        tag = self._tag(partition)
        keys = [f"{tag}:w", f"{tag}:due"]

        async def look() -> tuple[Watermark | None, bytes, list[str]]:
            raw, evicted, due = await self._script("due", _DUE, keys, [now, limit])
            return self._watermark(raw), evicted, [_trajectory(name) for name in due]

        mark, evicted, due = await self._read(partition, look)
        self._compare(partition, evicted)
        self._kept(partition, mark)
        return due

    async def give_up(self, partition: int, why: str) -> NoReturn:
        # What was seen stays: whoever folds this partition right now must not begin it anew.
        await self.reset(partition, watermark=True)
        raise StoreCorrupt(
            f"partition {partition}: {why}; its state is removed, and the journal folded again"
        )

    # -- for whoever owns the partition ------------------------------------------------------

    async def watermark(self, partition: int) -> Watermark | None:
        """What of the journal is folded into the state, whatever was seen before.

        None, and the state is removed, when keys were evicted since it was begun, or when the
        watermark is none.
        """
        self._seen.pop(partition, None)
        tag = self._tag(partition)
        keys = [f"{tag}:w", f"{tag}:e"]

        async def look() -> tuple[Watermark | None, bytes, bytes | None]:
            raw, evicted, before = await self._script("watermark", _MARK, keys, [])
            if before is not None and not before.isdigit():
                raise StoreCorrupt(f"{keys[1]} is no number")
            return self._watermark(raw), evicted, before

        try:
            mark, evicted, before = await self._read(partition, look)
        except StoreCorrupt as error:
            log.error("%s", error)  # noqa: TRY400 - mended: there is no state now
            await self._call("watermark", lambda: self._client.unlink(keys[1]))
            mark, evicted, before = await self._read(partition, look)
        self._evicted[partition] = evicted
        if evicted and int(evicted) != int(before or 0):
            log.error(
                "partition %d: the Redis has evicted keys (%s, it was %s): its state is not trusted",
                *(partition, evicted.decode(), (before or b"0").decode()),
            )
            await self.reset(partition, watermark=True)
            key = f"{tag}:e"
            await self._call("watermark", lambda: self._client.set(key, evicted, ex=self._ttl))
            return None
        return self._kept(partition, mark)

    def _compare(self, partition: int, evicted: bytes) -> None:
        """Raises StoreBehind when keys were evicted since the partition was taken over."""
        before = self._evicted.setdefault(partition, evicted)
        if evicted != before:
            raise StoreBehind(
                f"partition {partition}: the Redis evicts keys ({before.decode()} before,"
                f" {evicted.decode()} now)"
            )

    def _kept(self, partition: int, mark: Watermark | None) -> Watermark | None:
        seen = self._seen.get(partition)
        if _place(mark) < _place(seen):
            raise StoreBehind(f"partition {partition}: the store is at {mark}, it was at {seen}")
        if mark is not None:
            self._seen[partition] = mark
        return mark

    async def reset(self, partition: int, *, watermark: bool = False) -> None:
        """Removes the state of a log that is no more. The watermark stays, for its epoch; so a
        crash half way only means that this is done again. With `watermark` it goes too, first of
        all, for the same reason.
        """
        tag = self._tag(partition)
        mark = f"{tag}:w"
        keep = {f"{tag}:e".encode(), mark.encode()}
        if watermark:
            await self._call("reset", lambda: self._client.unlink(mark))

        async def remove() -> None:
            # On a cluster, a pattern with a hash tag is still asked of every primary.
            async for key in self._client.scan_iter(match=f"{_escaped(tag)}:*", count=1000):
                if key not in keep:
                    await self._client.unlink(key)

        await self._call("reset", remove)

    async def partitions(self) -> int | None:
        """The partition count that the stored state was made with; None for an empty store. A
        watermark that is none says nothing: it is removed when its partition is taken over."""
        counts = set()
        for partition in range(self._partitions):
            key = f"{self._tag(partition)}:w"

            async def look(key: str = key) -> bytes | None:
                with _typed():
                    found: bytes | None = await self._client.get(key)
                return found

            try:
                raw = await self._call("partitions", look)
                if raw is not None:
                    counts.add(_decoded(raw).partitions)
            except StoreCorrupt as error:
                log.warning("partition %d: %s", partition, error)
        return min(counts, key=lambda count: count == self._partitions, default=None)

    async def check(self) -> list[str]:
        """Warnings about how the Redis is set up. Raises StoreUnsafe when it may evict state."""
        try:
            memory, persistence = await self._info("memory"), await self._info("persistence")
        except ResponseError as error:
            return [f"cannot tell whether the Redis evicts keys or keeps a log: {words(error)}"]
        policies = {str(node.get("maxmemory_policy")) for node in memory}
        if "None" in policies:
            return ["cannot tell whether the Redis evicts keys: INFO names no maxmemory_policy"]
        if policies != {"noeviction"}:
            told = ", ".join(sorted(policies - {"noeviction"}))
            advice = f"maxmemory-policy is {told}; it must be noeviction, or state is lost silently"
            if any(node.get("maxmemory") for node in memory):
                raise StoreUnsafe(advice)
            return [advice + " once maxmemory is set"]
        if not all(node.get("aof_enabled") for node in persistence):
            return ["appendonly is off: a restart of the Redis means folding the journal again"]
        return []

    # -- inside ------------------------------------------------------------------------------

    async def _info(self, section: str) -> list[dict[str, Any]]:
        if isinstance(self._client, RedisCluster):
            answers = await self._client.info(section, target_nodes=RedisCluster.PRIMARIES)
            # One answer comes bare, several by node.
            nested = all(isinstance(value, dict) for value in answers.values())
            return list(answers.values()) if nested else [answers]
        return [await self._client.info(section)]

    async def _read(self, partition: int, attempt: Callable[[], Awaitable[T]]) -> T:
        """What `attempt` gives; once more on a new connection when it finds a value that is not what
        its key says, and then no more."""
        try:
            return await attempt()
        except StoreCorrupt as error:
            log.warning("partition %d: %s; asking again", partition, error)
        await self._client.aclose()  # which connects anew when it is used
        try:
            return await attempt()
        except StoreCorrupt as error:
            why = str(error)
        return await self.give_up(partition, why)

    async def _script(self, name: str, text: str, keys: list[str], args: list[Any]) -> Any:
        async def run() -> Any:
            with _typed():
                return await once()

        async def once() -> Any:
            sha = self._sha.get(name)
            if sha is not None:
                try:
                    return await self._client.evalsha(sha, len(keys), *keys, *args)
                except NoScriptError:  # restarted, flushed, or another node of the cluster
                    pass
            answer = await self._client.eval(text, len(keys), *keys, *args)
            self._sha[name] = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            return answer

        return await self._call(name, run)

    async def _call(self, name: str, attempt: Callable[[], Awaitable[Any]]) -> Any:
        what = f"state store: {name}"
        with metrics.timed("store_seconds", call=name), telemetry.span(what):
            return await patiently(what, attempt, FAILURES, patience=self._patience)

    def _tag(self, partition: int) -> str:
        return f"{{{self._prefix}:{SCHEMA}:{partition}}}"

    def _mark(self, mark: Watermark) -> bytes:
        stored = _Stored(self._partitions, mark.epoch, mark.offset, mark.index, mark.timestamp)
        return _encoder.encode(stored)

    def _watermark(self, raw: bytes | None) -> Watermark | None:
        if raw is None:
            return None
        stored = _decoded(raw)
        if stored.partitions != self._partitions:
            raise StoreUnsafe(
                f"the state store was filled with {stored.partitions} partitions, "
                f"this worker has {self._partitions}"
            )
        return Watermark(stored.epoch, stored.offset, stored.index, stored.timestamp)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Stored)


def _decoded(raw: bytes) -> _Stored:
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:
        raise StoreCorrupt(f"a watermark cannot be read: {error}") from error


@contextmanager
def _typed() -> Iterator[None]:
    """A key of another type raises StoreCorrupt."""
    try:
        yield
    except ResponseError as error:
        if not of_another_type(error):
            raise
        raise StoreCorrupt("a key holds another type of value than it must") from error


def _trajectory(name: bytes) -> str:
    if not _TRAJECTORY.fullmatch(name):
        raise StoreCorrupt("what falls due is no trajectory")
    return name.decode()


def _loaded(wanted: Mapping[str, Wanted], values: Sequence[Any]) -> dict[str, Loaded]:
    """State by trajectory, from a load's answer. Raises StoreCorrupt."""
    loaded = {}
    for (trajectory, want), (head, fields, content) in zip(wanted.items(), values, strict=True):
        owner = _owner(trajectory)
        flat = fields
        if content is None:  # values only, in the order of the names
            flat = [x for pair in zip(want.fields, fields, strict=True) for x in pair]
        loaded[trajectory] = Loaded(
            None if head is None else _own(owner, head, trajectory),
            _pairs(owner, flat, trajectory),
            None if content is None else _pairs(owner, content, trajectory),
        )
    return loaded


def _place(mark: Watermark | None) -> tuple[int, int, int]:
    return (-1, -1, -1) if mark is None else (mark.epoch, mark.offset, mark.index)


def _owner(trajectory: str) -> bytes:
    return bytes((SCHEMA,)) + bytes.fromhex(trajectory)


def _own(owner: bytes, value: bytes, trajectory: str) -> bytes:
    if value[:_OWNER] != owner:
        raise StoreCorrupt(f"a value read for trajectory {trajectory} belongs to another one")
    return value[_OWNER:]


def _pairs(owner: bytes, flat: list[Any], trajectory: str) -> dict[str, bytes]:
    """Entries of a reply that alternates names and values; a missing value is None."""
    items = iter(flat)
    try:
        return {
            name if isinstance(name, str) else name.decode(): _own(owner, value, trajectory)
            for name, value in zip(items, items, strict=True)
            if value is not None
        }
    except UnicodeDecodeError:
        raise StoreCorrupt(f"a field of trajectory {trajectory} has no name") from None


def _escaped(text: str) -> str:
    """A text as a pattern that matches only itself."""
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)
