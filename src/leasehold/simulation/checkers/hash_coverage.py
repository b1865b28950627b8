"""The leases that are not finished cover the whole hash range; a hole is closed within the auditor's bound."""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.shards.hash_coverage import Hole, first_hole
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import LeaseChange

# Of a fleet's members about two audit each time, at random, and one must see the hole several times.
_AUDITS_MAX = 30


def find_hole(scene: WorldView) -> Hole | None:
    """Hash keys that no unfinished lease covers."""
    running = (lease for lease in scene.leases() if not lease.checkpoint.is_shard_end)
    return first_hole(lease.hash_range for lease in running if lease.hash_range)


class LeasesCoverTheHashRange(Checker):
    """Looks every half second, once the first leases are there."""

    promise = "leases-cover-the-hash-range"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._was_whole = False
        self._hole_since_ms: int | None = None
        self._healed_ms: int | None = None

    def faults_ended(self) -> None:
        self._healed_ms = self.scene.now_ms()

    def lease_changed(self, change: LeaseChange) -> None:
        # Ends and deletions are the only ways in which a member can make a hole.
        lease = change.after
        if change.row.by is not None and (lease is None or lease.checkpoint.is_shard_end):
            self.time_passed()

    def time_passed(self) -> None:
        if self.scene.has_unreadable_rows():
            return  # until someone repairs them, nobody can tell
        hole = find_hole(self.scene)
        if hole is None:
            self._was_whole = True
            self._hole_since_ms = None
            return
        now_ms = self.scene.now_ms()
        if self._hole_since_ms is None:
            self._hole_since_ms = now_ms
        if not (self.scene.rows_were_destroyed or self.scene.shards_were_trimmed):
            if self._was_whole:
                self.broken(f"hash keys {hole} are nobody's, though no row was destroyed")
        elif self._healed_ms is not None:
            fleet = self.scene.settings.fleet
            bound_ms = _AUDITS_MAX * milliseconds(fleet.audit_every)
            if now_ms - max(self._hole_since_ms, self._healed_ms) > bound_ms:
                self.broken(f"hash keys {hole} have been nobody's for {now_ms - self._hole_since_ms} ms")
