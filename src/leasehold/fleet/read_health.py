"""Judges whether this member can read shards, from the leases that it gave up.

A shard that is given up without a single page says more about the member than about the shard. Such a member takes no
leases for a while, longer with every failure, and then a single one until reading works again. All shards that it had
before the wait began are one failure.
"""

from __future__ import annotations

import asyncio
from typing import Final

from leasehold.ports import Clock

BACKOFF_MAX_MS: Final = 120_000
_DOUBLINGS_MAX: Final = 10


class ReadHealth:
    """The read failures of one member. `cooldown_ms` is the first backoff; each further failure doubles it."""

    def __init__(self, clock: Clock, cooldown_ms: int) -> None:
        self._clock = clock
        self._cooldown_ms = cooldown_ms
        self._read_failures = 0
        self._backoff_until_ms = 0
        self.refused = (
            asyncio.Event()
        )  # a service refused to read a shard; the member checks why, and clears it

    @property
    def may_take(self) -> bool:
        """Whether this member may take more leases."""
        return self._clock.now_ms() >= self._backoff_until_ms

    def leases_max(self, configured: int | None) -> int | None:
        """How many leases this member may have. One is enough to find out whether reading works again."""
        return 1 if self._read_failures else configured

    def note_progress(self) -> None:
        """A shard was read: reading works."""
        self._read_failures = 0

    def note_unread_shard(self) -> None:
        """A shard was given up, and no page of it was read."""
        if not self.may_take:
            return
        self._read_failures += 1
        pause_ms = min(BACKOFF_MAX_MS, self._cooldown_ms << min(self._read_failures, _DOUBLINGS_MAX))
        self._backoff_until_ms = self._clock.now_ms() + pause_ms
