"""How often a member looks at the lease table, and whom it tells that a look is worthwhile.

Whoever is given a lease must learn of it soon, and a look at the table costs the same whether there is news or not. So
whoever changes who owns what leaves *word* in leases that the new owner already holds: a word that its next heartbeat
brings along. A member of few leases hears it within `ear`, the longest pause between two of its contacts with the
table: where its heartbeats are rarer than that, it looks in between. One of many hears it with one of four heartbeats
that are evenly apart, so within a quarter of the time in which all are put. Only where nobody would leave word (a Java
leader, peers, the table of a fleet that has no leader yet) must it look all the time.

The leader itself looks often enough to see in time who is silent. Those who stand by to lead look the more rarely the
more stand before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Final
from zlib import crc32

from leasehold.core.leases.liveness import Observations, unchanged_for_ms
from leasehold.core.model import Lease, WorkerId

STANDBYS: Final = 3  # all after the third who stands by look equally rarely
NUDGES_PER_WORKER: Final = 4  # whoever has more leases hears of one of these soon enough
# Heartbeats of a lease that is well are half a failover time apart. One that is late may be the first of many.
LATE_AFTER: Final = 0.7
NUDGED_WORKERS_MAX: Final = 16  # in a larger fleet too few of those who are told would get anything


class RefreshReason(Enum):
    """What a member's looks are for."""

    LEADING = "leading"
    NUDGED = "alert"  # word came: something is about to happen
    POLLING = "alone"  # nobody would leave word for us, or not of what is about to happen
    STANDBY = "listening"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshIntervals:
    """How far apart looks are, by what they are for."""

    leading_ms: int
    nudged_ms: int
    polling_ms: int
    contact_ms_max: int
    standby_ms: int


def next_refresh_ms(
    watch: RefreshReason, pace: RefreshIntervals, *, refreshed_ms: int, last_response_ms: int, rank: int
) -> int:
    """When the next look is worthwhile. `last_response_ms` is when a heartbeat was last answered; word would have come with it.

    >>> pace = RefreshIntervals(leading_ms=4_000, nudged_ms=500, polling_ms=2_000, contact_ms_max=2_000, standby_ms=10_000)
    >>> next_refresh_ms(RefreshReason.STANDBY, pace, refreshed_ms=0, last_response_ms=7_000, rank=0)
    9000
    """
    match watch:
        case RefreshReason.LEADING:
            return refreshed_ms + pace.leading_ms
        case RefreshReason.NUDGED:
            return refreshed_ms + pace.nudged_ms
        case RefreshReason.POLLING:
            return refreshed_ms + pace.polling_ms
        case RefreshReason.STANDBY:
            standby_ms = pace.standby_ms * (min(rank, STANDBYS - 1) + 1)
            return min(max(refreshed_ms, last_response_ms) + pace.contact_ms_max, refreshed_ms + standby_ms)


def workers_to_nudge_before_failover(
    leases: Iterable[Lease], observations: Observations, now_ms: int, failover_ms: int
) -> AbstractSet[WorkerId]:
    """Whom a leader tells that leases may fall to them in a moment: everyone, when an owner is late to renew."""
    owned = [lease for lease in leases if lease.owner is not None and not lease.checkpoint.is_shard_end]
    unchanged = {lease.key: unchanged_for_ms(observations, lease.key, now_ms) for lease in owned}
    late = {lease.owner for lease in owned if LATE_AFTER * failover_ms < unchanged[lease.key] <= failover_ms}
    others = {lease.owner for lease in owned if lease.owner not in late and lease.owner is not None}
    return others if late and len(others) <= NUDGED_WORKERS_MAX else frozenset()


def workers_to_nudge_on_resign(leases: Iterable[Lease], me: WorkerId) -> AbstractSet[WorkerId]:
    """Whom a leader that leaves tells to see who leads next: the others, or as many of them as are worth telling."""
    others = {lease.owner for lease in leases if lease.owner is not None} - {me}
    return frozenset(sorted(others)[:NUDGED_WORKERS_MAX])


def standby_rank(workers: Iterable[WorkerId], me: WorkerId, leader: WorkerId | None) -> int:
    """How many stand before us when the leader is gone. Not by name: neighbours often die together."""
    return sum(_place(worker) < _place(me) for worker in workers if worker != leader)


def _place(worker: WorkerId) -> tuple[int, WorkerId]:
    return crc32(worker.encode()), worker


def leases_to_nudge(leases: Sequence[Lease], workers: AbstractSet[WorkerId]) -> list[Lease]:
    """The leases in which word is left for these workers; those of Java members are not written to in vain."""
    held: defaultdict[WorkerId, list[Lease]] = defaultdict(list)
    for lease in leases:
        is_served = lease.session is not None and not lease.checkpoint.is_shard_end
        if is_served and lease.actual_owner is not None and lease.actual_owner in workers:
            held[lease.actual_owner].append(lease)
    # Far apart: leases that were begun one after the other have their heartbeats one after the other.
    return [lease for each in held.values() for lease in each[:: ceil(len(each) / NUDGES_PER_WORKER)]]
