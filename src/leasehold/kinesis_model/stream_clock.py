"""The clock of one stream: the latest time seen, the last write and the trim horizon."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StreamClock:
    """Three times of a stream in milliseconds. None of them goes back, whatever times the callers pass in."""

    now_ms: int
    # The last time at which a record was written, a shard was created or all records were trimmed.
    latest_write_ms: int
    # Records that arrived before this time are gone, even if the retention period grows later.
    trimmed_until_ms: int

    @classmethod
    def start(cls, at_ms: int) -> StreamClock:
        return cls(at_ms, at_ms, at_ms)

    def advance(self, now_ms: int) -> int:
        """Advance to `now_ms`, unless the clock is ahead of it already. Returns the clock's time."""
        self.now_ms = max(now_ms, self.now_ms)
        return self.now_ms

    def begin_write(self) -> int:
        """Return the time of a write that happens now."""
        self.latest_write_ms = self.now_ms
        return self.now_ms

    def begin_reshard(self, due_ms: int) -> int:
        """Return the time of a reshard that is due at `due_ms`. It is later than every earlier write."""
        self.latest_write_ms = max(due_ms, self.latest_write_ms + 1)
        self.advance(self.latest_write_ms)
        return self.latest_write_ms
