"""Within one lease session the records of a shard are delivered in order, without gaps."""

from __future__ import annotations

from leasehold.core.events import Event, RecordDeadLettered
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.ownership import Delivery
from leasehold.simulation.environment.process import SimulatedProcess


class OrderWithinASession(Checker):
    """Each delivery starts with the first record that is not done in this session."""

    promise = "order-within-a-session"

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None:
            return  # the table never had this session; the checker `stale_owners` reports it
        expected, shard_ledger = ownership.next_index, self.world.ledger.shard(delivery.shard)
        if delivery.first < expected or delivery.first > max(expected, shard_ledger.trimmed_before):
            keys = shard_ledger.keys
            next_key = keys[expected] if expected < len(keys) else "no record"
            self.report(
                f"{delivery.process.name} was given {keys[delivery.first]} of {delivery.shard} "
                f"although {next_key} is next (attempt {delivery.attempt})"
            )

    def delivery_done(self, delivery: Delivery) -> None:
        if delivery.ownership is not None:
            delivery.ownership.next_index = max(delivery.ownership.next_index, delivery.last + 1)

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, RecordDeadLettered):
            ownership = self.world.ownerships.find_latest(process, event.shard_key)
            if ownership is not None:
                after = self.world.ledger.shard(event.shard_key).index_after(event.position)
                ownership.next_index = max(ownership.next_index, after)
