"""Dead letters hold exactly the poison records."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.ownership import LeaseChange


class DeadLettersHoldThePoison(Checker):
    """Compares the dead letters with the poison records: before each checkpoint, and at the end."""

    promise = "dead-letters-hold-the-poison"

    def lease_changed(self, change: LeaseChange) -> None:
        after = change.after
        if after is None or (change.before is not None and change.before.checkpoint == after.checkpoint):
            return
        shard = self.world.ledger.shard(after.key)
        passed = shard.index_after(after.checkpoint)
        for index in shard.poison:
            is_lost = index < shard.trimmed_before or index in shard.lost_to_trim
            if index < passed and not is_lost and not self._is_dead_lettered(after.key, index):
                self.report(
                    f"{after.key} moved to {after.checkpoint}, past a poison record without a dead letter"
                )

    def all_stopped(self) -> None:
        if self.world.handlers_fail_at_random:
            return  # a sound record may fail as often as a poison record
        for shard, key in sorted(self.world.services.sink.dead_letters):
            ledger = self.world.ledger.shard(shard)
            if ledger.index_of[key] not in ledger.poison:
                self.report(f"record {key} of {shard} is not poison, but has a dead letter")

    def _is_dead_lettered(self, shard: LeaseKey, index: int) -> bool:
        key = self.world.ledger.shard(shard).keys[index]
        return (shard, key) in self.world.services.sink.dead_letters
