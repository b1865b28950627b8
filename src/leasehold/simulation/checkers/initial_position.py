"""A fleet begins to read where its settings say: records that are older are not delivered."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.ownership import Delivery
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.query_history import DeliveredSlice


class BeginsAtTheInitialPosition(Checker):
    """No record from before the initial position is delivered."""

    promise = "begins-at-the-initial-position"

    def delivery_began(self, delivery: Delivery) -> None:
        self._check(delivery.process, delivery.shard, delivery.first)

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        shard_ledger = self.world.ledger.shard(delivered.shard)
        for key in delivered.records[:1]:
            self._check(delivered.by, delivered.shard, shard_ledger.index_of[key])

    def _check(self, process: SimulatedProcess, shard: LeaseKey, index: int) -> None:
        if index < self.world.ledger.shard(shard).starts_at:
            self.report(
                f"{process.name} delivers a record of {shard} that is older than the initial position"
            )
