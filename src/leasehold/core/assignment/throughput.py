"""The smoothed throughput of a shard, by which the leader balances.

As in the KCL: KiB per second, a moving average with weight one half, computed at each heartbeat. Unlike the KCL, the
interval is measured, and the average of a new owner starts with the value in the row.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

ALPHA: Final = 0.5
INTERVAL_MIN_MS: Final = 1_000  # an average over a shorter interval is noise
_MICRO: Final = Decimal("0.000001")


class Throughput:
    """The moving average of one shard during one lease session."""

    def __init__(self, known_kbps: Decimal | None, now_ms: int) -> None:
        self._average = None if known_kbps is None else float(known_kbps)
        self._delivered = 0
        self._since_ms = now_ms
        self._has_delivered = known_kbps is not None

    def note(self, size_bytes: int) -> None:
        """Count bytes that were delivered."""
        self._delivered += size_bytes
        self._has_delivered = True

    def average_kbps(self, now_ms: int) -> Decimal | None:
        """The average at a heartbeat; None if the shard never delivered anything."""
        passed_ms = now_ms - self._since_ms
        if self._has_delivered and passed_ms >= INTERVAL_MIN_MS:
            current = self._delivered / 1024 / (passed_ms / 1000)
            self._average = (
                current if self._average is None else ALPHA * current + (1 - ALPHA) * self._average
            )
            self._delivered, self._since_ms = 0, now_ms
        if self._average is None:
            return None
        return Decimal(self._average).quantize(_MICRO, rounding=ROUND_HALF_UP)
