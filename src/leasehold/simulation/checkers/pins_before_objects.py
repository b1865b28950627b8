"""Before records are written to the archive, the end of their range is pinned in the lease."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.archived_objects import ArchivedObject
from leasehold.simulation.environment.objects import Put
from leasehold.simulation.environment.ownership import LeaseChange


class PinnedBeforeWritten(Checker):
    """Remembers every range that was pinned. An object must lie within one of them."""

    promise = "pinned-before-written"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._ranges: dict[LeaseKey, set[tuple[int, int]]] = {}  # indexes: first record, end

    def lease_changed(self, change: LeaseChange) -> None:
        lease = change.after
        if lease is None or lease.pin is None or not self.world.is_archived:
            return
        shard_ledger = self.world.ledger.shard(lease.key)
        pinned = shard_ledger.index_after(lease.checkpoint), shard_ledger.index_after(lease.pin.end)
        self._ranges.setdefault(lease.key, set()).add(pinned)

    def object_put(self, put: Put, stored: ArchivedObject | None) -> None:
        if stored is None or put.before is not None or stored.since is not None:
            return
        index_of = self.world.ledger.shard(stored.shard).index_of
        first, last = index_of.get(stored.first, -1), index_of.get(stored.last, -1)
        pinned = self._ranges.get(stored.shard, set())
        if not any(begin <= first and last < end for begin, end in pinned):
            self.report(f"{put.by.name} created {put.key}, whose range was never pinned")
