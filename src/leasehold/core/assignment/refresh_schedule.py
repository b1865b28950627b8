"""When a member refreshes its view of the lease table, and which members it nudges to refresh.

A member has to learn soon that it was assigned a lease, but each refresh costs the same whether anything changed or
not. So the member that changes an owner writes a *nudge*, a random value, into leases that the new owner already
serves. The new owner sees the nudge in the response to its next heartbeat, and refreshes.

A member with few leases also refreshes whenever it has had no response for `contact_ms_max`, so it sees a nudge within
that time. For a member with many leases, four leases with evenly spaced heartbeats are nudged: it sees a nudge within a
quarter of the renewal interval. A member polls only if no member would nudge it: the leader is a Java member, the fleet
has no leader yet, or its members are peers.

The leader refreshes often enough to notice silent leases in time. A standby refreshes the less often the more standbys
come before it.
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

STANDBY_RANKS: Final = 3  # standbys from the third on refresh equally often
NUDGES_PER_WORKER: Final = 4
# Heartbeats of a healthy lease are half a failover time apart. A late one may be the first of many.
LATE_AFTER: Final = 0.7
NUDGED_WORKERS_MAX: Final = 16  # in a larger fleet most of the nudged workers would get no lease


class RefreshReason(Enum):
    """Why a member refreshes."""

    LEADING = "leading"  # to notice silent leases
    NUDGED = "nudged"  # a nudge arrived: a change follows soon
    POLLING = "polling"  # no member would nudge us about the next change
    STANDBY = "standby"  # to see whether the leader is alive, and to receive nudges


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshIntervals:
    """The time between two refreshes, by reason. `contact_ms_max` is the longest time without any response."""

    leading_ms: int
    nudged_ms: int
    polling_ms: int
    contact_ms_max: int
    standby_ms: int


def next_refresh_ms(
    reason: RefreshReason,
    intervals: RefreshIntervals,
    *,
    refreshed_ms: int,
    last_response_ms: int,
    rank: int,
) -> int:
    """When the next refresh is due.

    `refreshed_ms` is the time of the last refresh, `last_response_ms` that of the last response to a heartbeat, which
    would have contained a nudge.

    >>> intervals = RefreshIntervals(
    ...     leading_ms=4_000, nudged_ms=500, polling_ms=2_000, contact_ms_max=2_000, standby_ms=10_000
    ... )
    >>> next_refresh_ms(RefreshReason.STANDBY, intervals, refreshed_ms=0, last_response_ms=7_000, rank=0)
    9000
    """
    match reason:
        case RefreshReason.LEADING:
            return refreshed_ms + intervals.leading_ms
        case RefreshReason.NUDGED:
            return refreshed_ms + intervals.nudged_ms
        case RefreshReason.POLLING:
            return refreshed_ms + intervals.polling_ms
        case RefreshReason.STANDBY:
            standby_ms = intervals.standby_ms * (min(rank, STANDBY_RANKS - 1) + 1)
            contact_ms = max(refreshed_ms, last_response_ms) + intervals.contact_ms_max
            return min(contact_ms, refreshed_ms + standby_ms)


def standby_rank(workers: Iterable[WorkerId], me: WorkerId, leader: WorkerId | None) -> int:
    """How many standbys come before this member if the leader dies.

    The order is by a checksum, not by name: workers with neighbouring names often run on one machine and die together.
    """
    return sum(_standby_order(worker) < _standby_order(me) for worker in workers if worker != leader)


def _standby_order(worker: WorkerId) -> tuple[int, WorkerId]:
    return crc32(worker.encode()), worker


def workers_to_nudge_before_failover(
    leases: Iterable[Lease], observations: Observations, now_ms: int, failover_ms: int
) -> AbstractSet[WorkerId]:
    """The workers that may soon be assigned leases: all others, if an owner is late to renew a lease."""
    owned = [lease for lease in leases if lease.owner is not None and not lease.checkpoint.is_shard_end]
    unchanged = {lease.key: unchanged_for_ms(observations, lease.key, now_ms) for lease in owned}
    late = {lease.owner for lease in owned if LATE_AFTER * failover_ms < unchanged[lease.key] <= failover_ms}
    others = {lease.owner for lease in owned if lease.owner not in late and lease.owner is not None}
    return others if late and len(others) <= NUDGED_WORKERS_MAX else frozenset()


def workers_to_nudge_on_resign(leases: Iterable[Lease], me: WorkerId) -> AbstractSet[WorkerId]:
    """The workers that a resigning leader nudges, so that they see the next leader soon: at most NUDGED_WORKERS_MAX."""
    others = {lease.owner for lease in leases if lease.owner is not None} - {me}
    return frozenset(sorted(others)[:NUDGED_WORKERS_MAX])


def leases_to_nudge(leases: Sequence[Lease], workers: AbstractSet[WorkerId]) -> list[Lease]:
    """The leases into which to write a nudge for these workers. Java members ignore nudges, so they get none.

    A member may hold nothing but leases of finished shards. It renews them too, so it finds a nudge there.
    """
    held: defaultdict[WorkerId, list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.session is not None and lease.actual_owner is not None and lease.actual_owner in workers:
            held[lease.actual_owner].append(lease)
    served = {
        worker: [lease for lease in each if not lease.checkpoint.is_shard_end] or each
        for worker, each in held.items()
    }
    # Evenly spaced: leases that were taken one after the other also have their heartbeats one after the other.
    return [lease for each in served.values() for lease in each[:: ceil(len(each) / NUDGES_PER_WORKER)]]
