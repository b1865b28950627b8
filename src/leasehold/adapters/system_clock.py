"""The clock of this machine."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from leasehold.ports import Clock

_NS_PER_MS: Final = 1_000_000


class SystemClock(Clock):
    """Monotonic and wall-clock time from the operating system; sleeps on the running event loop."""

    def now_ms(self) -> int:
        """Monotonic; on Linux it stops while the machine is suspended."""
        return time.monotonic_ns() // _NS_PER_MS

    def wall_ms(self) -> int:
        """Epoch time."""
        return time.time_ns() // _NS_PER_MS

    async def sleep_ms(self, duration_ms: int) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(duration_ms / 1000)
