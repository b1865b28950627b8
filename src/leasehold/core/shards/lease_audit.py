"""Whether the leader should sync shards now. Reads the leases of a stream and what earlier audits saw; says
whether to sync, and what to remember. Lists no shards itself and does not know how often it runs.

While every hash key belongs to a lease that is still being read, there is nothing to create: children come
when their parents end. A hole means that a lease was lost, or that this scan caught the table between two
writes. So a hole counts only when several audits in a row see the same one.

Where this differs from the Java KCL, whose leader does the same on the same rows:

* Java calls the last range in sort order the end of the stream. A parent over the whole range beside one
  child in its middle is a false alarm there, and no hole here.
* Java recognises a hole by its neighbours, so a hole next to shards that keep splitting is new each time and
  may never be repaired. Here the missing keys themselves identify it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.model import HashRange, Lease, ShardId, StreamIdentifier
from leasehold.core.shards.hash_coverage import Hole, first_hole

# The Java KCL's default. With an audit every two minutes: a hole that lasts four minutes is no coincidence.
SIGHTINGS_NEEDED: Final = 3


@dataclass(frozen=True, slots=True)
class Sightings:
    """What the audits of a stream remember: the hole that the last one saw, and how many in a row saw it."""

    hole: Hole | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found. `filled` are leases with the hash range that their rows lack: write it there."""

    sync_now: bool
    sightings: Sightings
    found_ranges: tuple[Lease, ...] = ()


def shards_without_range(
    leases: Iterable[Lease], *, stream: StreamIdentifier | None = None
) -> frozenset[ShardId]:
    """The shards whose hash range an audit has to be told, because their leases (old ones) do not say it."""
    return frozenset(lease.shard_id for lease in _active(leases, stream) if lease.hash_range is None)


def audit_leases(
    leases: Iterable[Lease],
    before: Sightings,
    *,
    stream: StreamIdentifier | None = None,
    known_ranges: Mapping[ShardId, HashRange] | None = None,
    sightings_needed: int = SIGHTINGS_NEEDED,
) -> Audit:
    """One audit of a stream. A stream without any lease is synced at once, a hole when it has been seen often
    enough.

    After that every further audit syncs again for as long as the hole stays. Leases that are finished cover
    nothing. A lease whose range is neither stored nor among `known_ranges` belongs to a shard that is gone,
    and covers nothing.
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
    """The memory after one more audit. Another hole, or none, starts the count afresh.

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
