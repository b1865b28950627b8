"""How long to wait before trying again. The randomness is a number that the caller draws."""

from __future__ import annotations


def backoff_ms(attempt: int, draw: float, *, first_ms: int = 100, max_ms: int = 5_000) -> int:
    """The wait after failed attempt number `attempt` (0, 1, ...): doubling, bounded, spread by `draw` in [0, 1).

    Full jitter, so that members that failed together do not come back together; never quite zero, so that nobody
    spins.

    >>> [backoff_ms(attempt, 0.999999) for attempt in (0, 1, 2, 50)]
    [99, 199, 399, 4999]
    >>> backoff_ms(3, 0.0)
    25
    """
    ceiling = min(max_ms, first_ms << min(attempt, 30))
    return max(first_ms // 4, int(ceiling * draw))
