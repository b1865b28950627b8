"""Who should lead a fleet that could move from three tables to one.

The move (`TableMigration3.5`) is the business of the leader, and its steps are Java's alone. It begins, and goes on,
only while every owner of a lease says that it understands a single table. So where all of them do, and one of them is a
Java member, we let that one lead: a leader of ours gives way, a standby lets Java go first. Otherwise the fleet would
stay where it is for as long as one of us leads it. Where no Java member takes the lead, one of ours does.

Reads nothing, writes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, SUPPORTS_SINGLE_TABLE, WorkerReport
from leasehold.core.model import Lease

# A lease that was just given to one of ours looks like a Java member's, until it is begun a moment later.
STABLE_FOR_MS: Final = 30_000
JAVA_FIRST_MS: Final = 45_000  # a Java member tries to take the lead every 30 s
GIVE_WAY_EVERY_MS: Final = 600_000  # not again and again where no Java member takes it


def may_move(leases: Collection[Lease], reports: Iterable[WorkerReport], wall_s: int) -> bool:
    """Whether a Java leader could move the tables: all owners understand a single one, and one of them is Java's."""
    ready = {
        each.worker
        for each in reports
        if each.updated_s + EXPIRED_AFTER_MS // 1000 > wall_s and (each.support or 0) >= SUPPORTS_SINGLE_TABLE
    }
    owned = [lease for lease in leases if lease.owner is not None]
    # Only our members write the id of a holding; Java leaves one where it is in a lease that it takes from us.
    javas = {lease.owner for lease in owned if lease.session is None}
    return all(lease.owner in ready for lease in owned) and bool(javas)


def is_java_preferred(could_move_since_ms: int | None, now_ms: int) -> bool:
    """Whether a Java member should lead, judging by how long the fleet could have moved."""
    return could_move_since_ms is not None and now_ms - could_move_since_ms >= STABLE_FOR_MS
