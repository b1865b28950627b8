"""Measures what one shard does while this member serves it: its progress and its throughput."""

from __future__ import annotations

from decimal import Decimal

from leasehold.core.assignment.throughput import Throughput
from leasehold.ports import Clock


class ShardActivity:
    """Progress and throughput of one shard during one lease session."""

    def __init__(self, known_kbps: Decimal | None, clock: Clock) -> None:
        self._clock = clock
        self._progress_ms = clock.now_ms()
        self._throughput = Throughput(known_kbps, clock.now_ms())
        self.has_progressed = False

    @property
    def idle_ms(self) -> int:
        """The time since the last progress."""
        return self._clock.now_ms() - self._progress_ms

    def note_progress(self) -> None:
        """Something shows that the shard is alive."""
        self._progress_ms = self._clock.now_ms()
        self.has_progressed = True

    def note_delivered(self, size_bytes: int) -> None:
        """Count records that were delivered."""
        self._throughput.note(size_bytes)

    def average_kbps(self) -> Decimal | None:
        """The throughput to write with the next heartbeat; None if nothing was ever delivered."""
        return self._throughput.average_kbps(self._clock.now_ms())
