"""Flushes collected metrics periodically, and once more at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from leasehold.ports import Clock
from leasehold.tasks import cancel_and_wait


@asynccontextmanager
async def flush_in_background(
    flush: Callable[[], Awaitable[None]], clock: Clock, every_ms: int
) -> AsyncIterator[None]:
    """Flush periodically until the block ends, then flush the rest. `flush` must not raise."""

    async def flush_periodically() -> None:
        while True:
            await clock.sleep_ms(every_ms)
            await flush()

    task = asyncio.create_task(flush_periodically())
    try:
        yield
    finally:
        await cancel_and_wait(task)
        await flush()
