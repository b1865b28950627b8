"""How many bytes the readers of a process may hold together. First come, first served.

A consumer that takes long fills the budget, and then all readers wait: that is the back-pressure of the process.
"""

from __future__ import annotations

import asyncio
from collections import deque


class ByteBudget:
    """Bytes to take and to give back; one for the whole process, used from one event loop.

    Who asks for more than there is in all is served once everything else was given back, so nobody waits for ever.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def used_bytes(self) -> int:
        """What is taken now; above the limit where something turned out larger than expected."""
        return self._used_bytes

    @property
    def free_bytes(self) -> int:
        """What could be taken now if nobody waited."""
        return max(0, self._limit_bytes - self._used_bytes)

    async def acquire(self, size_bytes: int) -> None:
        """Waits until there is room for so many bytes and until everyone who came before has been served."""
        if not self._waiting and self._has_room_for(size_bytes):
            self._used_bytes += size_bytes
            return
        served = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, served))
        try:
            await served
        except asyncio.CancelledError:
            if served.cancelled():
                self._serve()  # who came next may need less
            else:
                self.release(size_bytes)  # served and cancelled in the same turn of the loop
            raise

    def acquire_beyond_limit(self, size_bytes: int) -> None:
        """Counts bytes that are here already, room or no room: a wait would not make them go away."""
        self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Makes room for others."""
        assert 0 <= size_bytes <= self._used_bytes, f"{size_bytes} given back of {self._used_bytes} taken"
        self._used_bytes -= size_bytes
        self._serve()

    def _has_room_for(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self._limit_bytes

    def _serve(self) -> None:
        while self._waiting:
            size_bytes, served = self._waiting[0]
            if not served.cancelled():
                if not self._has_room_for(size_bytes):
                    return
                self._used_bytes += size_bytes
                served.set_result(None)
            self._waiting.popleft()


class BudgetShare:
    """What one reader holds of the budget, so that nothing stays behind when it is gone."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held_bytes = 0

    @property
    def free_bytes(self) -> int:
        """What the whole budget has left."""
        return self._budget.free_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Waits for its turn."""
        await self._budget.acquire(size_bytes)
        self._held_bytes += size_bytes

    def resize(self, before_bytes: int, after_bytes: int) -> None:
        """Something that counted for `before_bytes` turned out to be `after_bytes`."""
        self._held_bytes += after_bytes - before_bytes
        if after_bytes > before_bytes:
            self._budget.acquire_beyond_limit(after_bytes - before_bytes)
        else:
            self._budget.release(before_bytes - after_bytes)

    def hand_over(self, size_bytes: int) -> None:
        """From now on someone else sees to it that these bytes are given back."""
        self._held_bytes -= size_bytes

    def close(self) -> None:
        """Gives back what is still held."""
        self._budget.release(self._held_bytes)
        self._held_bytes = 0
