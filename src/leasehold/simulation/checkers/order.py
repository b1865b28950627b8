"""Records of a shard are handled in order within one ownership, and none is left out."""

from __future__ import annotations

from leasehold.core.events import Event, RecordDeadLettered
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.facts import Delivery, Ownership
from leasehold.simulation.process import SimulatedProcess


class OrderWithinAnOwnership(Checker):
    """Each delivery begins with the first record that this ownership has not done yet."""

    promise = "order-within-an-ownership"

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None:
            return  # of a holding that the table never saw: stale-owners says so
        expected = self._next_index(ownership)
        if delivery.first != expected:
            places = self.scene.ledger.shard(delivery.shard).places
            wanted = places[expected] if expected < len(places) else "nothing"
            self.broken(
                f"{delivery.process.name} was given {places[delivery.first]} of {delivery.shard} "
                f"where {wanted} is next (attempt {delivery.attempt})"
            )

    def delivery_done(self, delivery: Delivery) -> None:
        if delivery.ownership is not None:
            delivery.ownership.next_index = max(delivery.ownership.next_index, delivery.last + 1)

    def told(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, RecordDeadLettered):
            ownership = self.scene.ownerships.current.get(event.shard)
            if ownership is not None and ownership.process is process:
                after = self.scene.ledger.shard(event.shard).first_after(event.position)
                ownership.next_index = max(ownership.next_index, after)

    def _next_index(self, ownership: Ownership) -> int:
        trimmed = self.scene.ledger.shard(ownership.shard).trimmed
        while ownership.next_index in trimmed:
            ownership.next_index += 1
        return ownership.next_index
