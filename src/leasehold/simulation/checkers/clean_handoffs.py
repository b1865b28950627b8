"""Handoffs and clean stops repeat no record: an owner checkpoints all done records before it releases a lease."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange, Ownership, session_in


class CleanHandoffsRepeatNothing(Checker):
    """Compares the checkpoint with the done records when an owner releases or hands over its lease."""

    promise = "clean-handoffs-repeat-nothing"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._owners: dict[LeaseKey, Ownership] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        shard = LeaseKey(change.row.key)
        owner = self._owners.pop(shard, None)
        if owner is not None and change.after is not None and _is_clean_release(owner, change):
            checkpointed = self.world.ledger.shard(shard).index_after(change.after.checkpoint)
            if owner.next_index > checkpointed:
                self.report(
                    f"{owner.process.name} released {shard} at {change.after.checkpoint}, although it has done "
                    f"{owner.next_index - checkpointed} more records"
                )
        current = self.world.ownerships.current.get(shard)
        if current is not None:
            self._owners[shard] = current


def _is_clean_release(owner: Ownership, change: LeaseChange) -> bool:
    """Return whether the owner released or handed over its lease. An assignment by the leader is neither."""
    by_itself = change.row.by is owner.process and session_in(change.row.after) is None
    was_asked_for = change.before is not None and change.before.is_in_handoff
    is_free = change.after is not None and change.after.owner is None
    return by_itself and (was_asked_for or is_free)
