"""No record of a child shard is delivered before all its parents are finished."""

from __future__ import annotations

from leasehold.core.model import LeaseKey, lease_key, parse_lease_key
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, LeaseChange
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.query_history import DeliveredSlice


class ParentsBeforeChildren(Checker):
    """Takes the parents from the stream, not from the lease row."""

    promise = "parents-before-children"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._leased: set[LeaseKey] = set()
        self._unfinished: set[LeaseKey] = set()
        self._parents: dict[LeaseKey, tuple[LeaseKey, ...]] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        shard = LeaseKey(change.row.key)
        if change.row.after is None:
            self._leased.discard(shard)
        else:
            self._leased.add(shard)
        if change.after is not None and not change.after.checkpoint.is_shard_end:
            self._unfinished.add(shard)
        elif change.after is not None or change.row.after is None:
            self._unfinished.discard(shard)

    def delivery_began(self, delivery: Delivery) -> None:
        self._require_finished_parents(delivery.process, delivery.shard)

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        self._require_finished_parents(delivered.by, delivered.shard)

    def _require_finished_parents(self, process: SimulatedProcess, shard: LeaseKey) -> None:
        if shard not in self._leased:
            return  # its row was destroyed; its owner sees this at its next heartbeat
        for parent in self._parents_of(shard):
            open_records = self._count_open(parent)
            if parent in self._unfinished or open_records:
                state = (
                    "is not finished" if parent in self._unfinished else f"has {open_records} open records"
                )
                self.report(f"{process.name} delivers from {shard} while {parent} {state}")

    def _count_open(self, parent: LeaseKey) -> int:
        shard_ledger = self.world.ledger.shard(parent)
        return len(shard_ledger.keys) - shard_ledger.first_open

    def _parents_of(self, shard: LeaseKey) -> tuple[LeaseKey, ...]:
        if shard not in self._parents:
            state = self.world.services.streams.find_shard(shard)
            if state is None:
                return ()
            stream, _ = parse_lease_key(shard)
            self._parents[shard] = tuple(lease_key(parent, stream) for parent in state.parents)
        return self._parents[shard]
