"""Which leases a member may take by itself although another member leads, because the leader does not assign them.

This happens if the leader does not read the stream of a lease. But a leader may also leave leases free on purpose,
because no worker has room (`max_leases`, `max_kbps`). So each standby makes the leader's decision for all streams that
it reads. A lease counts as unassigned only if the standby would assign it in place of the leader, and if it has been
unchanged for longer than the slowest leader takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from leasehold.core.assignment.leader_assignment import Assignment
from leasehold.core.leases.liveness import Observations, unchanged_for_ms
from leasehold.core.model import Lease, LeaseKey, WorkerId

# The slowest leader is Java's: it assigns the leases of a dead worker within a minute.
UNASSIGNED_FAILOVERS: Final = 6
PARTS: Final = 4  # one of so many parts is taken in one refresh


def unassigned_leases(
    would_assign: Iterable[Assignment],
    observations: Observations,
    *,
    me: WorkerId,
    busy: AbstractSet[LeaseKey],
    now_ms: int,
    failover_ms: int,
    draw: float,
) -> list[Lease]:
    """A part of the leases that the leader does not assign. The rest is left to other members that read the stream.

    `would_assign` is what this member would assign as the leader. `busy` are the leases that it serves, or that cool
    down. `draw`, a random number in [0, 1), is where the part begins.
    """
    unread = sorted(
        (
            line.lease
            for line in would_assign
            if unchanged_for_ms(observations, line.lease.key, now_ms) > UNASSIGNED_FAILOVERS * failover_ms
            and line.lease.key not in busy
            and line.lease.owner != me
        ),
        key=lambda lease: lease.key,
    )
    begin = int(draw * len(unread))
    return [*unread[begin:], *unread[:begin]][: -(-len(unread) // PARTS)]
