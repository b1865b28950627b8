"""The unfinished leases cover the whole hash range. After rows were destroyed, audits close the hole within a bound."""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.shards.hash_coverage import Hole, first_hole
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange

# About two members, chosen at random, audit each time, and one of them must see the hole several times.
_AUDITS_MAX = 30


def find_hole(world: WorldView) -> Hole | None:
    """Return the first hash keys that no unfinished lease covers, or None."""
    unfinished = (lease for lease in world.services.leases() if not lease.checkpoint.is_shard_end)
    return first_hole(lease.hash_range for lease in unfinished if lease.hash_range)


class LeasesCoverTheHashRange(Checker):
    """Checks every half second, and after each finished or deleted lease, once the first leases exist."""

    promise = "leases-cover-the-hash-range"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._was_covered = False
        self._hole_since_ms: int | None = None
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
        hole = find_hole(self.world)
        if hole is None:
            self._was_covered = True
            self._hole_since_ms = None
            return
        now_ms = self.world.now_ms()
        if self._hole_since_ms is None:
            self._hole_since_ms = now_ms
        if not (self.world.rows_were_destroyed or self.world.shards_were_trimmed):
            if self._was_covered:
                self.report(f"hash keys {hole} have no lease, although no row was destroyed")
        elif self._faults_ended_ms is not None:
            fleet = self.world.settings.fleet
            bound_ms = _AUDITS_MAX * milliseconds(fleet.audit_every)
            if now_ms - max(self._hole_since_ms, self._faults_ended_ms) > bound_ms:
                self.report(f"hash keys {hole} have had no lease for {now_ms - self._hole_since_ms} ms")
