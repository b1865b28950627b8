"""No record of a child is handled before all its parents have ended."""

from __future__ import annotations

from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery, LeaseChange


class ParentsBeforeChildren(Checker):
    """The parents are the stream's, not those that a row names."""

    promise = "parents-before-children"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._running: set[ShardId] = set()
        self._parents: dict[ShardId, tuple[ShardId, ...]] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        shard = ShardId(change.row.key)
        if change.after is not None and not change.after.checkpoint.is_shard_end:
            self._running.add(shard)
        elif change.after is not None or change.row.after is None:
            self._running.discard(shard)

    def delivery_began(self, delivery: Delivery) -> None:
        for parent in self._parents_of(delivery.shard):
            open_records = self._undone(parent)
            if parent in self._running or open_records:
                state = "is not finished" if parent in self._running else f"has {open_records} undone records"
                self.broken(f"{delivery.process.name} gives {delivery.shard} away while {parent} {state}")

    def _undone(self, parent: ShardId) -> int:
        if self.scene.rows_were_destroyed:
            return 0  # a parent without a lease holds nobody up
        book = self.scene.ledger.shard(parent)
        return len(book.places) - book.first_open_index()

    def _parents_of(self, shard: ShardId) -> tuple[ShardId, ...]:
        if shard not in self._parents:
            state = self.scene.stream.shards.get(shard)
            if state is None:
                return ()
            self._parents[shard] = state.parents
        return self._parents[shard]
