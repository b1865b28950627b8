"""An event loop whose clock jumps to the next deadline instead of waiting for it: an hour of a fleet in a moment."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_WALL_MS = 1_790_000_000_000


class _Jumping(selectors.SelectSelector):
    """Never waits: tells the loop that the time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("every task waits for something that will never happen")
        self.passed_s += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs as fast as it can. Only for code that reaches the world through ports."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed_s


class VirtualClock:
    """The clock of whichever virtual loop is running."""

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return START_WALL_MS + self.now_ms()

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1000)


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
