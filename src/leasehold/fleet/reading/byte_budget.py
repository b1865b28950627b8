"""Limits the bytes of records that a process holds in memory: read ahead, or delivered and not yet checkpointed.

A slow handler fills the budget, and then all readers wait. This is the back-pressure of the process.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """A counting semaphore of bytes, one for the whole process, used from one event loop. Requests are served in order.

    A request for more than the limit is served when nothing else is acquired, so that no reader waits for ever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        """The bytes acquired now. More than the limit if something turned out larger than expected."""
        return self._used_bytes

    @property
    def free_bytes(self) -> int:
        """The bytes that could be acquired now if no other request waited."""
        return max(0, self._limit_bytes - self._used_bytes)

    async def acquire(self, size_bytes: int) -> None:
        """Wait until there is room for `size_bytes` and every earlier request was served."""
        if not self._waiting and self._has_room_for(size_bytes):
            self._used_bytes += size_bytes
            return
        served = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, served))
        try:
            await served
        except asyncio.CancelledError:
            if served.cancelled():
                self._serve_waiting()  # the next request may be smaller
            else:
                self.release(size_bytes)  # served and cancelled in the same turn of the loop
            raise

    def acquire_beyond_limit(self, size_bytes: int) -> None:
        """Count bytes that are in memory already, even beyond the limit: waiting would not free them."""
        self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give back acquired bytes."""
        assert 0 <= size_bytes <= self._used_bytes, f"{size_bytes} released of {self._used_bytes} acquired"
        self._used_bytes -= size_bytes
        self._serve_waiting()

    def _has_room_for(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self._limit_bytes

    def _serve_waiting(self) -> None:
        while self._waiting:
            size_bytes, served = self._waiting[0]
            if not served.cancelled():
                if not self._has_room_for(size_bytes):
                    return
                self._used_bytes += size_bytes
                served.set_result(None)
            self._waiting.popleft()


class BudgetShare:
    """The part of the budget that one reader has acquired. `close` releases all of it."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    @property
    def free_bytes(self) -> int:
        """The free bytes of the whole budget."""
        return self._budget.free_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Wait for room in the budget."""
        await self._budget.acquire(size_bytes)
        self._held_bytes += size_bytes

    def resize(self, before_bytes: int, after_bytes: int) -> None:
        """Correct an estimate: what counted for `before_bytes` has `after_bytes`."""
        self._held_bytes += after_bytes - before_bytes
        if after_bytes > before_bytes:
            self._budget.acquire_beyond_limit(after_bytes - before_bytes)
        else:
            self._budget.release(before_bytes - after_bytes)

    def transfer(self, size_bytes: int) -> None:
        """Pass bytes to the consumer, who releases them from now on."""
        self._held_bytes -= size_bytes

    def close(self) -> None:
        """Release the bytes that were not transferred."""
        self._budget.release(self._held_bytes)
        self._held_bytes = 0
