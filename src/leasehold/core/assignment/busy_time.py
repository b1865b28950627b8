"""How much of the time something was at work: the load of whoever works in batches. Time is passed in.

Knows neither what a batch is nor who measures; an end may be told late, when it is known only afterwards.
"""

from __future__ import annotations


class BusyTime:
    """Stretches of work, and which share of the time they take."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._worked_ms = 0  # since the last figure, in stretches that have ended
        self._since_ms: int | None = None

    def begin(self, at_ms: int) -> None:
        """Work begins, unless it is under way."""
        if self._began_ms is None:
            self._began_ms = at_ms

    def end(self, at_ms: int) -> None:
        """It has ended. Does nothing while there is none, or if that was an earlier one."""
        if self._began_ms is not None and at_ms >= self._began_ms:
            self._worked_ms += max(0, at_ms - max(self._began_ms, self._since_ms or 0))
            self._began_ms = None

    def percent(self, now_ms: int) -> float | None:
        """The share of the time since the last call, 0 to 100; None at the first call."""
        worked_ms, since_ms = self._worked_ms, self._since_ms
        if self._began_ms is not None:
            worked_ms += now_ms - max(self._began_ms, since_ms or 0)
        self._worked_ms, self._since_ms = 0, now_ms
        if since_ms is None or now_ms <= since_ms:
            return None
        return min(100.0, 100 * worked_ms / (now_ms - since_ms))
