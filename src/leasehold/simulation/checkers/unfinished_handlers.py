"""A checkpoint never passes a record that is still in the hands of a handler."""

from __future__ import annotations

from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery, LeaseChange


class NoCheckpointPastAnUnfinishedHandler(Checker):
    """Knows which records handlers have in hand, by shard."""

    promise = "no-checkpoint-past-an-unfinished-handler"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._open: dict[ShardId, list[Delivery]] = {}

    def delivery_began(self, delivery: Delivery) -> None:
        self._open.setdefault(delivery.shard, []).append(delivery)

    def lease_changed(self, change: LeaseChange) -> None:
        after = change.after
        if after is None or change.row.by is None:
            return
        if change.before is not None and change.before.checkpoint == after.checkpoint:
            return
        deliveries = self._open.get(after.shard_id, [])
        deliveries[:] = [each for each in deliveries if not (each.is_done or each.is_over)]
        first = self.scene.ledger.shard(after.shard_id).first_after(after.checkpoint)
        for delivery in deliveries:
            # The handler of a former owner is of no concern to the one who holds the lease now.
            if delivery.process is change.row.by and delivery.first < first:
                self.broken(
                    f"{after.key} moved to {after.checkpoint} while a handler of {delivery.process.name} has "
                    f"records before it since {delivery.began_ms} ms"
                )
