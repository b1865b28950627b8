"""When to put which heartbeat: one lease after the other, evenly over the time in which all must have had one.

Spread out, heartbeats are no burst on the table, and their answers come all the time: a member that holds a few leases
hears within a moment what was written to one of them (see `looking`). Every write to a lease is a heartbeat, so a lease
that was written to a moment ago is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from math import ceil
from typing import Final

from leasehold.core.model import LeaseKey

TICK_MIN_MS: Final = 50
# With fewer leases than this a tick may pass without a heartbeat; leases that come all at once are seen in time.
TICKS_MIN: Final = 3
FIRST_AFTER: Final = 0.3  # of the interval: leases that were taken together are soon spread out
AGAIN_AFTER: Final = 0.95  # a lease whose turn comes a little early has it, or it would miss it
OVERDUE_AFTER: Final = 1.2  # then it waits for no turn


@dataclass(frozen=True, slots=True)
class LastWrite:
    """When a lease was last written to by its holder, and whether that was the write that began the holding."""

    at_ms: int
    is_first: bool

    def due_ms(self, renew_ms: int) -> int:
        """From when on a heartbeat is worth putting."""
        return self.at_ms + int(renew_ms * (FIRST_AFTER if self.is_first else AGAIN_AFTER))


def tick_ms(leases: int, renew_ms: int) -> int:
    """How long to wait before somebody's turn has come.

    >>> tick_ms(0, 6_000), tick_ms(6, 6_000), tick_ms(1_000, 6_000)
    (2000, 1000, 50)
    """
    return max(TICK_MIN_MS, renew_ms // max(TICKS_MIN, leases))


def leases_to_renew(writes: Mapping[LeaseKey, LastWrite], now_ms: int, renew_ms: int) -> list[LeaseKey]:
    """Whose turn it is now: as many as one tick has to do, those first whose time has come first."""
    share = ceil(len(writes) * tick_ms(len(writes), renew_ms) / renew_ms)
    due = {key: at_ms for key, last in writes.items() if (at_ms := last.due_ms(renew_ms)) <= now_ms}
    turn = nsmallest(share, due, key=lambda key: (due[key], key))
    overdue = (key for key, last in writes.items() if now_ms - last.at_ms > OVERDUE_AFTER * renew_ms)
    return list(dict.fromkeys((*turn, *overdue)))
