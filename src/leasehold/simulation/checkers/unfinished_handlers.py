"""A checkpoint never passes a record that a handler is still working on."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, LeaseChange


class NoCheckpointPastAnUnfinishedHandler(Checker):
    """Follows the running handler calls of each shard."""

    promise = "no-checkpoint-past-an-unfinished-handler"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._deliveries: dict[LeaseKey, list[Delivery]] = {}

    def delivery_began(self, delivery: Delivery) -> None:
        self._deliveries.setdefault(delivery.shard, []).append(delivery)

    def lease_changed(self, change: LeaseChange) -> None:
        after = change.after
        if after is None or change.row.by is None:
            return
        if change.before is not None and change.before.checkpoint == after.checkpoint:
            return
        deliveries = self._deliveries.get(after.key, [])
        deliveries[:] = [each for each in deliveries if not (each.is_done or each.is_over)]
        first = self.world.ledger.shard(after.key).index_after(after.checkpoint)
        for delivery in deliveries:
            # Handlers of former owners do not count: only the writer of the checkpoint must wait for its own handlers.
            if delivery.process is change.row.by and delivery.first < first:
                self.report(
                    f"{after.key} moved to {after.checkpoint} while a handler of {delivery.process.name} has "
                    f"records before it since {delivery.began_ms} ms"
                )
