"""When to renew which lease: heartbeats are spread evenly over the renewal interval.

Spread heartbeats cause no burst on the table. Their responses also arrive all the time, so a member sees a nudge soon
(see `core.assignment.refresh_schedule`). Every write to a lease counts as a heartbeat, so a lease that was written
recently is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from math import ceil
from typing import Final

from leasehold.core.model import LeaseKey

TICK_MIN_MS: Final = 200  # each tick looks at every lease, so few ticks a second are cheap
# At least this many ticks per interval, even with fewer leases: new leases must get their first heartbeat in time.
TICKS_MIN: Final = 3
FIRST_AFTER: Final = 0.3  # of the interval: leases that were taken together are spread soon
AGAIN_AFTER: Final = (
    0.95  # a lease that is due shortly after this tick is renewed now, not a whole tick later
)
OVERDUE_AFTER: Final = 1.2  # an overdue lease is renewed at once, beyond the share of the tick


@dataclass(frozen=True, slots=True)
class LastWrite:
    """When the owner last wrote to a lease, and whether that write began the lease session."""

    at_ms: int
    is_first: bool

    def due_ms(self, renew_ms: int) -> int:
        """From when on the lease may be renewed."""
        return self.at_ms + int(renew_ms * (FIRST_AFTER if self.is_first else AGAIN_AFTER))


def tick_ms(leases: int, renew_ms: int) -> int:
    """The time between two ticks of the heartbeat loop.

    >>> tick_ms(0, 6_000), tick_ms(6, 6_000), tick_ms(1_000, 6_000)
    (2000, 1000, 200)
    """
    return max(TICK_MIN_MS, renew_ms // max(TICKS_MIN, leases))


def tick_max_ms(renew_ms: int) -> int:
    """The longest time between two ticks, for any number of leases."""
    return tick_ms(0, renew_ms)


def leases_to_renew(writes: Mapping[LeaseKey, LastWrite], now_ms: int, renew_ms: int) -> list[LeaseKey]:
    """The leases to renew in this tick: an even share of those that are due, the longest due first, and all overdue."""
    share = ceil(len(writes) * tick_ms(len(writes), renew_ms) / renew_ms)
    due = {key: at_ms for key, last in writes.items() if (at_ms := last.due_ms(renew_ms)) <= now_ms}
    first_due = nsmallest(share, due, key=lambda key: (due[key], key))
    overdue = (key for key, last in writes.items() if now_ms - last.at_ms > OVERDUE_AFTER * renew_ms)
    return list(dict.fromkeys((*first_due, *overdue)))
