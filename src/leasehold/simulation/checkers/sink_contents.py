"""What a sink with pinned ranges holds is what was produced: nothing twice, nothing invented, nothing missing."""

from __future__ import annotations

from collections import Counter

from leasehold.simulation.checkers.base import Checker


class SinkEqualsProduced(Checker):
    """Counts at the end. Where rows were destroyed, what was done is forgotten, and records may come twice."""

    promise = "sink-equals-produced"

    def all_stopped(self) -> None:
        sink = self.scene.sink
        if not sink.is_two_phase:
            return
        held = Counter(place for places in sink.objects.values() for place in places)
        held.update(sink.dead_lettered)
        wanted = {
            (shard, place)
            for shard, book in self.scene.ledger.shards.items()
            for index, place in enumerate(book.places)
            if index not in book.trimmed
        }
        missing = wanted - held.keys()
        twice = [place for place, times in held.items() if times > 1]
        if missing:
            self.broken(f"{len(missing)} records are not in the sink, the first is {min(missing)}")
        if twice and not self.scene.rows_were_destroyed:
            self.broken(f"{len(twice)} records are in the sink more than once, the first is {min(twice)}")
