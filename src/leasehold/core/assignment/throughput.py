"""How much a shard delivers, smoothed, for the leader to balance by. Time is passed in.

The KCL's unit and cadence: KiB a second, an average with weight one half, taken at each heartbeat. Unlike it, the
interval is measured rather than assumed, and a shard that moves keeps its figure: the value in the row is where the
average of its new owner begins.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

ALPHA: Final = 0.5
INTERVAL_MIN_MS: Final = 1_000  # heartbeats may come close together; a shorter interval says nothing
_MICRO: Final = Decimal("0.000001")


class Throughput:
    """The moving average of one shard while one member serves it."""

    def __init__(self, known_kbps: Decimal | None, now_ms: int) -> None:
        self._average = None if known_kbps is None else float(known_kbps)
        self._delivered = 0
        self._since_ms = now_ms
        self._has_delivered = known_kbps is not None

    def note(self, size_bytes: int) -> None:
        """So much was handed on."""
        self._delivered += size_bytes
        self._has_delivered = True

    def average_kbps(self, now_ms: int) -> Decimal | None:
        """The average at a heartbeat; None while nothing was ever delivered, so that nothing is known."""
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
