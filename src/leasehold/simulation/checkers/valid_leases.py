"""A lease is valid from when its last write was sent. Records are delivered only while the lease is valid."""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, LeaseChange, Ownership


class DeliversWhileValid(Checker):
    """Follows the time at which each owner sent its last write that was applied.

    Other members count from the change of the row. An owner that counts from the response counts too long.
    """

    promise = "delivers-while-valid"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._sent_ms: dict[Ownership, int] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        current = self.world.ownerships.current.get(LeaseKey(change.row.key))
        if current is not None and change.row.by is current.process and change.row.sent_ms is not None:
            self._sent_ms[current] = max(self._sent_ms.get(current, 0), change.row.sent_ms)

    def delivery_began(self, delivery: Delivery) -> None:
        sent_ms = None if delivery.ownership is None else self._sent_ms.get(delivery.ownership)
        if sent_ms is None:
            return
        valid_ms = milliseconds(self.world.settings.fleet.lease_valid_for)
        late_ms = self.world.now_ms() - sent_ms - valid_ms
        if late_ms > 0:
            self.report(
                f"{delivery.process.name} delivers from {delivery.shard} {late_ms} ms after its lease was valid"
            )
