"""Batches of a Faust stream: whatever is there, as soon as something is.

Faust's own `noack_take` hands over by the clock, so that each record waits for half of its tick and
a worker without work wakes up for nothing. Here a batch begins with its first record. A short wait
lets others join it; while it is handled more arrive, so that batches grow with the load by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any


async def batches(stream: Any, most: int, within: float) -> AsyncGenerator[list[Any], None]:
    """Batches of at most `most` events, in order, handed over when they are full or `within` seconds
    after their first event. No event is acknowledged. Ends with the stream; raises what it raises,
    after the batch that was filling."""
    stream.enable_acks = False
    queue: asyncio.Queue[Any] = asyncio.Queue(most)
    reading = asyncio.ensure_future(_fill(queue, stream.events()))
    try:
        while batch := await _batch(queue, reading, most, within):
            yield batch
        await reading
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading


async def _fill(queue: asyncio.Queue[Any], events: AsyncIterable[Any]) -> None:
    async for event in events:
        await queue.put(event)


async def _batch(
    queue: asyncio.Queue[Any], reading: asyncio.Future[None], most: int, within: float
) -> list[Any]:
    """The next batch; empty when nothing follows."""
    if queue.empty():
        first = asyncio.ensure_future(queue.get())
        try:
            await asyncio.wait((first, reading), return_when=asyncio.FIRST_COMPLETED)
        finally:
            first.cancel()
        if not first.done():
            return []
        batch = [first.result()]
    else:
        batch = [queue.get_nowait()]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while len(batch) < most:
                batch.append(await queue.get())
    return batch
