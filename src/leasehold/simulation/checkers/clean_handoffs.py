"""Balancing and clean stops repeat nothing: whoever lets go in good order has stored everything that it has done."""

from __future__ import annotations

from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import LeaseChange, Ownership, session_in


class CleanHandoffsRepeatNothing(Checker):
    """Compares the checkpoint with what was done, at the moment in which an owner lets go by itself."""

    promise = "clean-handovers-repeat-nothing"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._holders: dict[ShardId, Ownership] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        shard = ShardId(change.row.key)
        holder = self._holders.pop(shard, None)
        if holder is not None and change.after is not None and _lets_go(holder, change):
            stored = self.scene.ledger.shard(shard).first_after(change.after.checkpoint)
            if holder.next_index > stored:
                self.broken(
                    f"{holder.process.name} let go of {shard} at {change.after.checkpoint}, though it has done "
                    f"{holder.next_index - stored} records more"
                )
        current = self.scene.ownerships.current.get(shard)
        if current is not None:
            self._holders[shard] = current


def _lets_go(holder: Ownership, change: LeaseChange) -> bool:
    """Whether the holder released or handed over. A leader that assigns a lease which it lost itself does neither."""
    by_itself = change.row.by is holder.process and session_in(change.row.after) is None
    was_asked_for = change.before is not None and change.before.is_in_handoff
    is_free = change.after is not None and change.after.owner is None
    return by_itself and (was_asked_for or is_free)
