"""Measures the share of time in which work was under way: the load of a query that works in batches.

The caller passes in the time. It may report the end of a batch late, with the earlier time at which the batch ended.
"""

from __future__ import annotations


class BusyTime:
    """Accumulates periods of work, and computes their share of the elapsed time."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._worked_ms = 0  # since the last call of `percent`, in periods that have ended
        self._since_ms: int | None = None

    def begin(self, at_ms: int) -> None:
        """Start a period of work, unless one is under way."""
        if self._began_ms is None:
            self._began_ms = at_ms

    def end(self, at_ms: int) -> None:
        """End the period. Does nothing if no period is under way, or if `at_ms` is before its start."""
        if self._began_ms is not None and at_ms >= self._began_ms:
            self._worked_ms += max(0, at_ms - max(self._began_ms, self._since_ms or 0))
            self._began_ms = None

    def percent(self, now_ms: int) -> float | None:
        """The share of work in the time since the last call, 0 to 100. None at the first call."""
        worked_ms, since_ms = self._worked_ms, self._since_ms
        if self._began_ms is not None:
            worked_ms += now_ms - max(self._began_ms, since_ms or 0)
        self._worked_ms, self._since_ms = 0, now_ms
        if since_ms is None or now_ms <= since_ms:
            return None
        return min(100.0, 100 * worked_ms / (now_ms - since_ms))
