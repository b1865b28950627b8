"""The read and write limits of a shard as token buckets. The caller passes in the time and refuses the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

READS_PER_SECOND: Final = 5
READ_BYTES_PER_SECOND: Final = 2_097_152
WRITE_RECORDS_PER_SECOND: Final = 1_000
WRITE_BYTES_PER_SECOND: Final = 1_048_576


@dataclass(slots=True)
class TokenBucket:
    """Allows `per_second` units a second, and stores at most one second of them.

    A full bucket allows a single cost above its size. Nothing else is allowed until that cost is paid off. So a
    response of 10 MB blocks a shard of 2 MB/s for five seconds, as in the service.

    >>> bucket = TokenBucket(per_second=2)
    >>> bucket.take(0, 10), bucket.allows(4_999), bucket.allows(5_000)
    (None, False, True)
    """

    per_second: int
    _milli_units: int = field(init=False)
    _at_ms: int = field(init=False, default=0)
    _blocked_until_ms: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._milli_units = self.per_second * 1000

    def allows(self, now_ms: int, cost: int = 1) -> bool:
        """True if this cost may be taken now."""
        self._refill(now_ms)
        return now_ms >= self._blocked_until_ms and self._milli_units >= min(cost, self.per_second) * 1000

    def take(self, now_ms: int, cost: int = 1) -> None:
        """Take a cost. It may be higher than the cost that `allows` was called with."""
        self._refill(now_ms)
        self._milli_units -= cost * 1000
        if self._milli_units < 0:
            missing = self.per_second * 1000 - self._milli_units
            self._blocked_until_ms = now_ms + -(-missing // self.per_second)

    def _refill(self, now_ms: int) -> None:
        gained = max(0, now_ms - self._at_ms) * self.per_second
        self._milli_units = min(self.per_second * 1000, self._milli_units + gained)
        self._at_ms = max(now_ms, self._at_ms)


@dataclass(slots=True)
class ShardLimits:
    """The four limits of one shard: read calls, bytes read, records written, bytes written."""

    reads: TokenBucket = field(default_factory=lambda: TokenBucket(READS_PER_SECOND))
    read_bytes: TokenBucket = field(default_factory=lambda: TokenBucket(READ_BYTES_PER_SECOND))
    write_records: TokenBucket = field(default_factory=lambda: TokenBucket(WRITE_RECORDS_PER_SECOND))
    write_bytes: TokenBucket = field(default_factory=lambda: TokenBucket(WRITE_BYTES_PER_SECOND))

    def may_read(self, now_ms: int) -> bool:
        return self.reads.allows(now_ms) and self.read_bytes.allows(now_ms)

    def may_write(self, now_ms: int, size: int) -> bool:
        return self.write_records.allows(now_ms) and self.write_bytes.allows(now_ms, size)

    def count_read(self, now_ms: int, size: int) -> None:
        self.reads.take(now_ms)
        self.read_bytes.take(now_ms, size)

    def count_write(self, now_ms: int, size: int) -> None:
        self.write_records.take(now_ms)
        self.write_bytes.take(now_ms, size)
