"""How long to wait before a retry."""

from __future__ import annotations


def backoff_ms(attempt: int, jitter: float, *, first_ms: int = 100, max_ms: int = 5_000) -> int:
    """The wait after failed attempt number `attempt` (0, 1, ...): exponential, bounded, with full jitter.

    `jitter` is a random number in [0, 1). Jitter keeps members that failed together from retrying together. The wait
    is never zero, so a caller cannot spin.

    >>> [backoff_ms(attempt, 0.999999) for attempt in (0, 1, 2, 50)]
    [99, 199, 399, 4999]
    >>> backoff_ms(3, 0.0)
    25
    """
    ceiling = min(max_ms, first_ms << min(attempt, 30))
    return max(first_ms // 4, int(ceiling * jitter))
