"""An event loop in virtual time: its clock jumps to the next deadline instead of waiting for it.

Only for code that does all input and output through ports. The simulator, the public test kit and the unit tests run
on it.
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


class _JumpingSelector(selectors.DefaultSelector):
    """Returns from `select` at once and advances virtual time, unless other threads have work to finish."""

    def __init__(self, has_work_on_threads: Callable[[], bool] | None) -> None:
        super().__init__()
        self._has_work_on_threads = has_work_on_threads
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._has_work_on_threads is None:
            assert timeout is not None, "deadlock: every task waits, and no timer is set"
            self.now_s += timeout
            return []
        if timeout == 0 or (timeout is not None and not self._has_work_on_threads()):
            self.now_s += timeout
            return super().select(0)
        began_s = monotonic()
        ready = super().select(timeout)
        self.now_s += monotonic() - began_s
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits for a timer.

    While `has_work_on_threads` returns True, other threads are working and time passes at its real pace. Without this
    function there are no other threads, and a wait without a timer is reported as a deadlock.
    """

    def __init__(self, has_work_on_threads: Callable[[], bool] | None = None) -> None:
        self._selector_in_virtual_time = _JumpingSelector(has_work_on_threads)
        super().__init__(self._selector_in_virtual_time)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._selector_in_virtual_time.now_s

    def advance_clock(self, duration_s: float) -> None:
        """Let time pass while no task runs, as blocking code on the loop does."""
        self._selector_in_virtual_time.now_s += duration_s


class VirtualClock(Clock):
    """The clock of the running virtual loop."""

    def now_ms(self) -> int:
        """Return the milliseconds since the loop was created."""
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        """Return the time since the epoch. It starts at the same moment in every run."""
        return START_WALL_MS + self.now_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(duration_ms / 1000)


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on a virtual loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
