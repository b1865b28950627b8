"""With two-phase handlers, the sink holds every produced record exactly once."""

from __future__ import annotations

from collections import Counter

from leasehold.simulation.checkers.base import Checker


class SinkEqualsProduced(Checker):
    """Counts at the end. Destroyed rows lose progress, so duplicates are allowed if rows were destroyed."""

    promise = "sink-equals-produced"

    def all_stopped(self) -> None:
        sink = self.world.services.sink
        if not sink.is_two_phase:
            return
        held = Counter(key for keys in sink.objects.values() for key in keys)
        held.update(sink.dead_letters)
        expected = {
            (shard, key)
            for shard, shard_ledger in self.world.ledger.shards.items()
            for index, key in enumerate(shard_ledger.keys)
            if index not in shard_ledger.lost_to_trim
        }
        missing = expected - held.keys()
        duplicates = [key for key, times in held.items() if times > 1]
        if missing:
            self.report(f"{len(missing)} records are not in the sink, the first is {min(missing)}")
        if duplicates and not self.world.rows_were_destroyed:
            self.report(
                f"{len(duplicates)} records are in the sink more than once, the first is {min(duplicates)}"
            )
