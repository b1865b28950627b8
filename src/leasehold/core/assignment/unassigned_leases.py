"""Which leases a member may help itself to though another leads: those that the leader leaves lying, as it does for a
stream that it does not know.

It may also leave some on purpose, because nobody has room for more (`max_leases`, `max_kbps`). Those who stand by
decide as a leader would, of all streams that they know. So a lease counts as neglected only if we would give it away in
the leader's place, and if it has stayed as it is for longer than the slowest leader takes. Draws nothing, writes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from leasehold.core.assignment.leader_assignment import Assignment
from leasehold.core.leases.liveness import Observations, unchanged_for_ms
from leasehold.core.model import Lease, LeaseKey, WorkerId

# As long as a slow leader may take: Java's gives a dead worker's leases away within a minute.
UNASSIGNED_FAILOVERS: Final = 6
PART: Final = 4  # one of so many is taken in a look


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
    """A part of the leases that nobody shares out: others who know the stream should have some, too.

    `would_assign` is what we would do as the leader, `busy` what we hold or had to let rest. `draw`, in [0, 1), says
    where among them our part begins.
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
    return [*unread[begin:], *unread[:begin]][: -(-len(unread) // PART)]
