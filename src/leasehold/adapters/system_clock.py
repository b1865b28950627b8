"""The clock of this machine."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from leasehold.ports import Clock

_NS_PER_MS: Final = 1_000_000
# A monotonic clock that does not stop while the machine is suspended: a lease expires meanwhile. On Linux the usual one
# stops. On macOS it does not.
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock(Clock):
    """Monotonic and wall-clock time from the operating system; sleeps on the running event loop."""

    def now_ms(self) -> int:
        """Monotonic; it includes the time in which the machine was suspended."""
        return time.clock_gettime_ns(_MONOTONIC) // _NS_PER_MS

    def wall_ms(self) -> int:
        """Epoch time."""
        return time.time_ns() // _NS_PER_MS

    async def sleep_ms(self, duration_ms: int) -> None:
        """Sleep without blocking the event loop."""
        await asyncio.sleep(duration_ms / 1000)
