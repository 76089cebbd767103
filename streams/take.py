"""Batches of a Faust stream: whatever is there, as soon as something is.

Faust's own `noack_take` hands over by the clock, so that each record waits for half of its tick and
a worker without work wakes up for nothing. Here a batch begins with its first record. A short wait
lets others join it; while it is handled more arrive, so that batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

Lane = Callable[[Any], Hashable]
"""The lane of an event: lanes are handled side by side, a lane's events in their order."""
_AHEAD: Final = 2
"""Batches of the largest size that are waiting or in hand at most, over all lanes."""


def one_lane(_: Any) -> Hashable:
    """For batches that mix all there is."""
    return None


async def hand_over(
    stream: Any,
    handle: Callable[[list[Any]], Awaitable[None]],
    *,
    most: int,
    within: float,
    lane: Lane = one_lane,
) -> None:
    """Hands batches of at most `most` events to `handle`, when they are full or `within` seconds
    after their first event. No event is acknowledged. Ends with the stream, when everything is
    handled; raises what the stream or `handle` raises."""
    stream.enable_acks = False
    room = asyncio.Semaphore(_AHEAD * most)
    lanes: dict[Hashable, asyncio.Queue[Any]] = {}
    tasks: list[asyncio.Task[None]] = []

    async def serve(queue: asyncio.Queue[Any]) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        while True:
            batch = await _batch(queue, most, within)
            await handle(batch)
            if serving.cancelling():  # a library has swallowed it; until Python 3.12 `wait_for` may
                raise asyncio.CancelledError
            for _ in batch:
                queue.task_done()
                room.release()

    try:
        async with asyncio.TaskGroup() as group, contextlib.aclosing(stream.events()) as events:
            async for event in events:
                await room.acquire()
                name = lane(event)
                if name not in lanes:
                    lanes[name] = asyncio.Queue()
                    tasks.append(group.create_task(serve(lanes[name])))
                lanes[name].put_nowait(event)
            for queue in lanes.values():
                await queue.join()
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def _batch(queue: asyncio.Queue[Any], most: int, within: float) -> list[Any]:
    batch = [await queue.get()]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while len(batch) < most:
                batch.append(await queue.get())
    return batch
