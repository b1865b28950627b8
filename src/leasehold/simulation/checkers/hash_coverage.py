"""The unfinished leases of each stream cover the whole hash range.

After rows were destroyed, audits close the hole within a bound.
"""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.model import StreamIdentifier
from leasehold.core.shards.hash_coverage import Hole, first_hole
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange

# About two members, chosen at random, audit each time, and one of them must see the hole several times.
_AUDITS_MAX = 30


def find_holes(world: WorldView) -> dict[StreamIdentifier | None, Hole]:
    """Return for each stream the first hash keys that no unfinished lease covers, if there are any."""
    unfinished = [lease for lease in world.services.leases() if not lease.checkpoint.is_shard_end]
    holes = {
        stream: first_hole(
            lease.hash_range for lease in unfinished if lease.stream == stream and lease.hash_range
        )
        for stream in world.services.streams.followed_ids
    }
    return {stream: hole for stream, hole in holes.items() if hole is not None}


class LeasesCoverTheHashRange(Checker):
    """Checks every half second, and after each finished or deleted lease, once the first leases exist."""

    promise = "leases-cover-the-hash-range"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._was_covered: set[StreamIdentifier | None] = set()
        self._hole_since_ms: dict[StreamIdentifier | None, int] = {}
        self._faults_ended_ms: int | None = None

    def faults_ended(self) -> None:
        self._faults_ended_ms = self.world.now_ms()

    def lease_changed(self, change: LeaseChange) -> None:
        # A member can make a hole only by finishing or deleting a lease.
        lease = change.after
        if change.row.by is not None and (lease is None or lease.checkpoint.is_shard_end):
            self.time_passed()

    def time_passed(self) -> None:
        if self.world.services.has_malformed_leases():
            return  # the coverage is unknown until these rows are repaired
        holes, now_ms = find_holes(self.world), self.world.now_ms()
        self._was_covered |= self.world.services.streams.followed_ids.keys() - holes.keys()
        self._hole_since_ms = {stream: self._hole_since_ms.get(stream, now_ms) for stream in holes}
        for stream, hole in holes.items():
            self._check(stream, hole, now_ms)

    def _check(self, stream: StreamIdentifier | None, hole: Hole, now_ms: int) -> None:
        since_ms = self._hole_since_ms[stream]
        of_stream = f" of {stream}" if stream else ""
        if not (self.world.rows_were_destroyed or self.world.shards_were_trimmed):
            if stream in self._was_covered:
                self.report(f"hash keys {hole}{of_stream} have no lease, although no row was destroyed")
        elif self._faults_ended_ms is not None:
            bound_ms = _AUDITS_MAX * milliseconds(self.world.settings.fleet.audit_every)
            if now_ms - max(since_ms, self._faults_ended_ms) > bound_ms:
                self.report(f"hash keys {hole}{of_stream} have had no lease for {now_ms - since_ms} ms")
