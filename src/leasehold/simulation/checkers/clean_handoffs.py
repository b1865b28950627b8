"""Handoffs and clean stops repeat no record: an owner checkpoints all done records before it releases a lease."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.checkers.delivery_order import is_concurrent
from leasehold.simulation.environment.ownership import Delivery, LeaseChange, Ownership, session_in


class CleanHandoffsRepeatNothing(Checker):
    """Compares the checkpoint with the done records when an owner releases or hands over its lease."""

    promise = "clean-handoffs-repeat-nothing"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._owners: dict[LeaseKey, Ownership] = {}
        self._delivered: dict[Ownership, set[int]] = {}  # if records are handled concurrently

    def delivery_began(self, delivery: Delivery) -> None:
        if delivery.ownership is not None and is_concurrent(self.world):
            self._delivered.setdefault(delivery.ownership, set()).add(delivery.first)

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
            self._require_nothing_beyond(owner, checkpointed)
        current = self.world.ownerships.current.get(shard)
        if current is not None:
            self._owners[shard] = current

    def _require_nothing_beyond(self, owner: Ownership, checkpointed: int) -> None:
        """Report done records after the checkpoint, unless a record before them failed or took too long."""
        beyond = [index for index in owner.done if index >= checkpointed]
        if beyond and self._delivered.get(owner, set()) <= owner.done:
            self.report(
                f"{owner.process.name} released {owner.shard} although it has done {len(beyond)} records after its "
                "checkpoint, and has not tried those before them"
            )


def _is_clean_release(owner: Ownership, change: LeaseChange) -> bool:
    """Return whether the owner released or handed over its lease. An assignment by the leader is neither."""
    by_itself = change.row.by is owner.process and session_in(change.row.after) is None
    was_asked_for = change.before is not None and change.before.is_in_handoff
    is_free = change.after is not None and change.after.owner is None
    return by_itself and (was_asked_for or is_free)
