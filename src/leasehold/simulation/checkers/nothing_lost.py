"""No record is lost: a checkpoint passes a record only after it was handled or stored as a dead letter."""

from __future__ import annotations

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.ownership import LeaseChange


class NothingLost(Checker):
    """Compares every checkpoint with the first open record."""

    promise = "nothing-lost"

    def lease_changed(self, change: LeaseChange) -> None:
        if change.after is None or (change.before and change.before.checkpoint == change.after.checkpoint):
            return
        shard_ledger = self.world.ledger.shard(change.after.key)
        if shard_ledger.index_after(change.after.checkpoint) > shard_ledger.first_open:
            key = shard_ledger.keys[shard_ledger.first_open]
            self.report(
                f"{change.row.key} moved to {change.after.checkpoint} past record {key}, which is not done"
            )

    def all_stopped(self) -> None:
        for shard, shard_ledger in self.world.ledger.shards.items():
            if shard_ledger.first_open < len(shard_ledger.keys):
                self.report(f"{shard}: record {shard_ledger.keys[shard_ledger.first_open]} was never done")
