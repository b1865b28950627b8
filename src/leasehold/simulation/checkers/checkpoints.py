"""Checkpoints never move back, and a finished shard stays finished."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange


class CheckpointsNeverGoBack(Checker):
    """Compares each row with the row before, and remembers the finished shards."""

    promise = "checkpoints-never-go-back"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._finished: set[LeaseKey] = set()

    def lease_changed(self, change: LeaseChange) -> None:
        if change.row.by is None:
            if change.row.after is None:
                self._finished.discard(
                    LeaseKey(change.row.key)
                )  # the row was destroyed, so its shard may be read again
            return
        before, after = change.before, change.after
        if after is None:
            return
        if before is not None and after.checkpoint < before.checkpoint:
            self.report(f"{after.key} moved back from {before.checkpoint} to {after.checkpoint}")
        if after.checkpoint.is_shard_end:
            self._finished.add(after.key)
        elif after.key in self._finished and not self.world.rows_were_destroyed:
            self.report(f"{after.key} was finished, and is at {after.checkpoint} now")
