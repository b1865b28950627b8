"""Decides how often the driver of a query polls an idle shard."""

from __future__ import annotations

from typing import Final

# Kinesis allows five reads a second and shard. The rest is for the tasks, and for other consumers.
ACTIVE_POLL_MS: Final = 250
# Polls begin at multiples of this time, together with those of other shards: a process that wakes up 20 times a second
# needs less processor time than one that wakes up for every shard.
TICK_MS: Final = 50
# A shard that has been quiet for a time is polled once in a twentieth of this time.
_QUIET_SHARE: Final = 20


def idle_poll_ms(quiet_ms: int | None, poll_ms: int, jitter: float) -> int:
    """How long to wait before the next poll of a shard whose last records were seen `quiet_ms` ago; None: not yet.

    A record often follows soon after another. So a shard with recent records is polled often, and a quiet one every
    `poll_ms`: a record waits for at most a twentieth of the time in which there was none. `jitter`, from 0 to 1, keeps
    the polls of several shards from staying in step.

    >>> [idle_poll_ms(quiet, 1000, 0.5) for quiet in (None, 0, 5_000, 10_000, 60_000)]
    [1000, 250, 250, 500, 1000]
    >>> idle_poll_ms(0, 200, 0.5), idle_poll_ms(0, 1000, 0.0)
    (200, 187)
    """
    interval_ms = poll_ms if quiet_ms is None else min(poll_ms, max(ACTIVE_POLL_MS, quiet_ms // _QUIET_SHARE))
    return int(interval_ms * (0.75 + jitter / 2))


def to_tick_ms(now_ms: int, wait_ms: int) -> int:
    """The wait that ends at the tick nearest to the end of `wait_ms`, and not before the next one.

    >>> to_tick_ms(1_000, 260), to_tick_ms(1_010, 260), to_tick_ms(1_010, 3)
    (250, 240, 40)
    """
    end_ms = max(now_ms // TICK_MS + 1, round((now_ms + wait_ms) / TICK_MS)) * TICK_MS
    return end_ms - now_ms
