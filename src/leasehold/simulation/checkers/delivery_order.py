"""Records of a shard are handled in order within one ownership, and none is left out."""

from __future__ import annotations

from leasehold.core.events import Event, RecordDeadLettered
from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery, Ownership
from leasehold.simulation.process import SimulatedProcess


class OrderWithinAnOwnership(Checker):
    """Each delivery begins with the first record that this ownership has not done yet."""

    promise = "order-within-an-ownership"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._latest: dict[tuple[SimulatedProcess, ShardId], Ownership] = {}

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None:
            return  # of a holding that the table never saw: stale-owners says so
        self._latest[delivery.process, delivery.shard] = ownership
        expected, book = ownership.next_index, self.scene.ledger.shard(delivery.shard)
        if delivery.first < expected or delivery.first > max(expected, book.gone):
            places = book.places
            wanted = places[expected] if expected < len(places) else "nothing"
            self.broken(
                f"{delivery.process.name} was given {places[delivery.first]} of {delivery.shard} "
                f"where {wanted} is next (attempt {delivery.attempt})"
            )

    def delivery_done(self, delivery: Delivery) -> None:
        if delivery.ownership is not None:
            delivery.ownership.next_index = max(delivery.ownership.next_index, delivery.last + 1)

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, RecordDeadLettered):
            ownership = self._latest.get((process, event.shard))
            if ownership is not None:
                after = self.scene.ledger.shard(event.shard).first_after(event.position)
                ownership.next_index = max(ownership.next_index, after)
