"""The server's clock: the system clock plus an offset that tests can increase."""

from __future__ import annotations

import time
from dataclasses import dataclass

from leasehold.errors import ConfigError


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
        self.offset_ms += by_ms
