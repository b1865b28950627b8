"""Whether the leader should sync shards now, judged by the hash keys that the leases cover.

While each hash key belongs to a lease that is still being read, no lease has to be created: children are created when
their parents end. A hole means that a lease was lost, or that the scan ran between two writes. So a hole counts only
after several audits in a row have seen the same one.

The leader of the Java KCL audits the same rows. Two differences:

* Java takes the last range in sort order for the end of the stream. With a parent over the whole range and one child in
  its middle, it finds a hole that does not exist.
* Java identifies a hole by the ranges next to it. Next to shards that keep splitting, each audit sees a different hole,
  and it may never be repaired. Here the missing hash keys identify the hole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.model import HashRange, Lease, ShardId, StreamIdentifier
from leasehold.core.shards.hash_coverage import Hole, first_hole

# The default of the Java KCL. With an audit every two minutes, a hole has to last for four minutes.
SIGHTINGS_NEEDED: Final = 3


@dataclass(frozen=True, slots=True)
class Sightings:
    """The hole that the last audit of a stream saw, and how many audits in a row saw it."""

    hole: Hole | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of an audit. `found_ranges` are leases whose rows lack their hash range: write it there."""

    sync_now: bool
    sightings: Sightings
    found_ranges: tuple[Lease, ...] = ()


def shards_without_range(
    leases: Iterable[Lease], *, stream: StreamIdentifier | None = None
) -> frozenset[ShardId]:
    """The shards whose leases have no hash range. An audit needs these ranges from a list of shards."""
    return frozenset(lease.shard_id for lease in _active(leases, stream) if lease.hash_range is None)


def audit_leases(
    leases: Iterable[Lease],
    before: Sightings,
    *,
    stream: StreamIdentifier | None = None,
    known_ranges: Mapping[ShardId, HashRange] | None = None,
    sightings_needed: int = SIGHTINGS_NEEDED,
) -> Audit:
    """Audits the leases of a stream. Syncs if the stream has no lease, or if enough audits in a row saw a hole.

    Each further audit syncs again while the hole remains. Finished leases cover no hash keys. A lease without a hash
    range that is not in `known_ranges` belongs to a deleted shard, and covers none either.
    """
    here = [lease for lease in leases if lease.stream == stream]
    if not here:
        return Audit(sync_now=True, sightings=before)
    known = known_ranges or {}
    active = [_with_range(lease, known) for lease in _active(here, stream)]
    hole = first_hole(lease.hash_range for lease in active if lease.hash_range is not None)
    sightings = next_sightings(before, hole)
    without = shards_without_range(here, stream=stream)
    return Audit(
        sync_now=hole is not None and sightings.times >= sightings_needed,
        sightings=sightings,
        found_ranges=tuple(
            lease for lease in active if lease.shard_id in without and lease.hash_range is not None
        ),
    )


def next_sightings(before: Sightings, hole: Hole | None) -> Sightings:
    """The sightings after one more audit. A different hole, or none, restarts the count.

    >>> twice = Sightings(Hole(5, 9), 2)
    >>> next_sightings(twice, Hole(5, 9)).times, next_sightings(twice, Hole(1, 9)).times
    (3, 1)
    """
    if hole is None:
        return Sightings()
    return Sightings(hole, before.times + 1 if hole == before.hole else 1)


def _active(leases: Iterable[Lease], stream: StreamIdentifier | None) -> list[Lease]:
    return [lease for lease in leases if lease.stream == stream and not lease.checkpoint.is_shard_end]


def _with_range(lease: Lease, known: Mapping[ShardId, HashRange]) -> Lease:
    if lease.hash_range is not None:
        return lease
    return replace(lease, hash_range=known.get(lease.shard_id))
