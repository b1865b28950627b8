"""The server's clock: the system clock plus an offset that tests can increase."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from leasehold.errors import ConfigError

# The year 2500. A sequence number has 44 bits for a time in milliseconds.
LATEST_MS: Final = 16_725_225_600_000


@dataclass(slots=True)
class AdjustableClock:
    """Wall-clock time in milliseconds. Tests can advance it, but not set it back."""

    offset_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms

    def advance(self, by_ms: int) -> None:
        if by_ms < 0:
            raise ConfigError(
                f"the clock cannot go back ({by_ms} ms): new records would arrive before older ones"
            )
        if self.now_ms() + by_ms > LATEST_MS:
            raise ConfigError(f"the clock cannot go forward by {by_ms} ms: its last year is 2500")
        self.offset_ms += by_ms
