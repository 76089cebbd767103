"""A worker whose consumer stops reading at SIGUSR1, without an error and without leaving its group,
as consumers sometimes do: `python -m tests.chaos.deaf worker --roles …`."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from aiokafka.consumer.fetcher import Fetcher

from streams.cli import main

deaf = asyncio.Event()
real = Fetcher.fetched_records


async def fetched_records(self: Fetcher, *args: Any, **more: Any) -> Any:
    if deaf.is_set():
        await asyncio.sleep(0.5)
        return {}
    return await real(self, *args, **more)


if __name__ == "__main__":
    Fetcher.fetched_records = fetched_records
    signal.signal(signal.SIGUSR1, lambda *_: deaf.set())
    main()
