"""Whether a Java member should lead, so that the fleet can move from three tables to one.

Only a Java leader performs this move (`TableMigration3.5`). It proceeds only while every owner of a lease reports that
it supports a single table. If all owners do, and one of them is a Java member, our leader resigns and our standbys let
a Java member acquire the lock first. Otherwise the fleet would keep three tables for as long as one of our members
leads. If no Java member acquires the lock, one of ours does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, SUPPORTS_SINGLE_TABLE, WorkerReport
from leasehold.core.model import Lease

# A lease that was just assigned to one of our members has no session yet, like the lease of a Java member.
STABLE_FOR_MS: Final = 30_000
JAVA_FIRST_MS: Final = 45_000  # a Java member tries to acquire the lock every 30 s
GIVE_WAY_EVERY_MS: Final = 600_000  # rarely, in case no Java member acquires the lock


def may_move(leases: Collection[Lease], reports: Iterable[WorkerReport], wall_s: int) -> bool:
    """Whether a Java leader may move the tables: all owners support a single table, and one is a Java member."""
    ready = {
        report.worker
        for report in reports
        if report.updated_s + EXPIRED_AFTER_MS // 1000 > wall_s
        and (report.support or 0) >= SUPPORTS_SINGLE_TABLE
    }
    owned = [lease for lease in leases if lease.owner is not None]
    # Only our members write a session. In a lease that Java takes from us, the old session remains.
    javas = {lease.owner for lease in owned if lease.session is None}
    return all(lease.owner in ready for lease in owned) and bool(javas)


def is_java_preferred(could_move_since_ms: int | None, now_ms: int) -> bool:
    """Whether a Java member should lead, because the tables could have been moved for a while."""
    return could_move_since_ms is not None and now_ms - could_move_since_ms >= STABLE_FOR_MS
