"""Within one lease session the records of a shard are delivered in order, without gaps.

If records are handled concurrently, this holds for the records of each partition key.
"""

from __future__ import annotations

from leasehold.core.events import Event, RecordDeadLettered
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, Ownership
from leasehold.simulation.environment.process import SimulatedProcess


def is_concurrent(world: WorldView) -> bool:
    """Return whether the handlers get single records, several at a time."""
    return world.settings.handling.records.concurrency > 1


class OrderWithinASession(Checker):
    """Each delivery starts with the first record that is not done in this session."""

    promise = "order-within-a-session"

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None or is_concurrent(self.world):
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
        if delivery.ownership is not None and not is_concurrent(self.world):
            delivery.ownership.next_index = max(delivery.ownership.next_index, delivery.last + 1)

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, RecordDeadLettered) and not is_concurrent(self.world):
            ownership = self.world.ownerships.find_latest(process, event.shard_key)
            if ownership is not None:
                after = self.world.ledger.shard(event.shard_key).index_after(event.position)
                ownership.next_index = max(ownership.next_index, after)


class OrderByKey(Checker):
    """A record is delivered after all earlier records of its partition key are done in this session, and not again."""

    promise = "order-by-key"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._last: dict[tuple[Ownership, str], Delivery] = {}  # of each partition key
        self._began: dict[Ownership, int] = {}  # the first record of each session

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None or not is_concurrent(self.world):
            return
        shard_ledger, index = self.world.ledger.shard(delivery.shard), delivery.first
        key = shard_ledger.partition_keys[index]
        last = self._last.get((ownership, key))
        self._last[ownership, key] = delivery
        about = (
            f"{delivery.process.name} was given {shard_ledger.keys[index]} of {delivery.shard} (key {key})"
        )
        if last is not None and not (last.is_done or last.is_over):
            self.report(f"{about} while a handler has {shard_ledger.keys[last.first]} of the same key")
        # Records that were trimmed after they were read are still delivered, so `next_index` may be beyond them.
        if index in ownership.done or index < self._began.setdefault(ownership, ownership.next_index):
            self.report(f"{about} again, although it is done in this session")
        for earlier in range(max(ownership.next_index, shard_ledger.trimmed_before), index):
            if shard_ledger.partition_keys[earlier] == key and earlier not in ownership.done:
                self.report(f"{about} before {shard_ledger.keys[earlier]} of the same key is done")
                return

    def delivery_done(self, delivery: Delivery) -> None:
        if delivery.ownership is not None and is_concurrent(self.world):
            self._mark_done(delivery.ownership, delivery.first)

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, RecordDeadLettered) and is_concurrent(self.world):
            ownership = self.world.ownerships.find_latest(process, event.shard_key)
            if ownership is not None:
                after = self.world.ledger.shard(event.shard_key).index_after(event.position)
                self._mark_done(ownership, after - 1)

    def _mark_done(self, ownership: Ownership, index: int) -> None:
        """Mark a record as done. The first record that is not done is the next, as with batches."""
        ownership.done.add(index)
        trimmed_before = self.world.ledger.shard(ownership.shard).trimmed_before
        while ownership.next_index in ownership.done or ownership.next_index < trimmed_before:
            ownership.next_index += 1
