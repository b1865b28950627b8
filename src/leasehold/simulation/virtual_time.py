"""An event loop whose clock jumps to the next deadline instead of waiting for it: an hour of a fleet in a moment.

Only for code that reaches the world through ports. Knows nothing of fleets; the test kit, the unit tests and the
simulator all run on it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, Final, TypeVar

from leasehold.ports import Clock

T = TypeVar("T")

START_WALL_MS: Final = 1_790_000_000_000


class _Jumping(selectors.DefaultSelector):
    """Tells the loop that the time has passed. Waits for real only while something outside of the loop is at work."""

    def __init__(self, has_work_on_threads: Callable[[], bool] | None) -> None:
        super().__init__()
        self._waits_for_real = has_work_on_threads
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._waits_for_real is None:
            assert timeout is not None, "every task waits for something that will never happen"
            self.now_s += timeout
            return []
        if timeout == 0 or (timeout is not None and not self._waits_for_real()):
            self.now_s += timeout
            return super().select(0)
        began_s = monotonic()
        ready = super().select(timeout)
        self.now_s += monotonic() - began_s
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs as fast as it can. `has_work_on_threads` says that other threads are at work, whose time goes as all time does;
    without it there are no other threads, and a wait without an end is a bug that is told.
    """

    def __init__(self, has_work_on_threads: Callable[[], bool] | None = None) -> None:
        self._jumping = _Jumping(has_work_on_threads)
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made, on its own clock."""
        return self._jumping.now_s

    def advance_clock(self, duration_s: float) -> None:
        """Time passes, and nothing on the loop gets a turn."""
        self._jumping.now_s += duration_s


class VirtualClock(Clock):
    """The clock of whichever virtual loop is running."""

    def now_ms(self) -> int:
        """Since the loop was made."""
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        """From one day in 2026 on, always the same."""
        return START_WALL_MS + self.now_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(duration_ms / 1000)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
