"""Remembers when the lease table last responded to this member, and whether another member has nudged it."""

from __future__ import annotations

import asyncio
from typing import Final

from leasehold.ports import Clock

# A nudged member refreshes often for this time: the change that the nudge announces may take a moment to happen.
ALERT_MS: Final = 3_000


class TableContact:
    """The contact of one member with the lease table. `refresh_soon` is set when the next refresh should not wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._nudged_until_ms = 0
        self.last_response_ms = 0
        self.refresh_soon = asyncio.Event()

    @property
    def was_nudged(self) -> bool:
        """Whether another member nudged this one within the last `ALERT_MS`."""
        return self._clock.now_ms() < self._nudged_until_ms

    def on_response(self, was_nudged: bool) -> None:
        """The table responded to a write of a lease that we hold."""
        now_ms = self._clock.now_ms()
        self.last_response_ms = now_ms
        if was_nudged:
            self._nudged_until_ms = now_ms + ALERT_MS
            self.refresh_soon.set()
