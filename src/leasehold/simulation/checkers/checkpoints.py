"""Checkpoints never go back, and the end of a shard is final."""

from __future__ import annotations

from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import LeaseChange


class CheckpointsNeverGoBack(Checker):
    """Compares each row with the one before it, and remembers who has ended."""

    promise = "checkpoints-never-go-back"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._ended: set[ShardId] = set()

    def lease_changed(self, change: LeaseChange) -> None:
        if change.row.by is None:
            if change.row.after is None:
                self._ended.discard(ShardId(change.row.key))  # destroyed: its shard may be read again
            return
        before, after = change.before, change.after
        if after is None:
            return
        if before is not None and after.checkpoint < before.checkpoint:
            self.broken(f"{after.key} went back from {before.checkpoint} to {after.checkpoint}")
        if after.checkpoint.is_shard_end:
            self._ended.add(after.shard_id)
        elif after.shard_id in self._ended and not self.scene.rows_were_destroyed:
            self.broken(f"{after.key} had ended, and is at {after.checkpoint} again")
