"""The archive contains every record exactly once, in objects whose names tell the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.archived_objects import ArchivedObject, visible_objects


class ArchiveEqualsProduced(Checker):
    """Reads all objects at the end. Lost lease tables are no excuse."""

    promise = "archive-equals-produced"

    def all_stopped(self) -> None:
        if not self.world.is_archived:
            return
        for each in self.world.archived.values():
            if each.problem:
                self.report(f"{each.name}: {each.problem}")
        objects = visible_objects(self.world.archived.values())
        self._find_overlaps(objects)
        held = Counter((each.shard, key) for each in objects for key in each.records)
        expected = {
            (shard, key)
            for shard, shard_ledger in self.world.ledger.shards.items()
            for index, key in enumerate(shard_ledger.keys)
            if index not in shard_ledger.lost_to_trim
        }
        missing = expected - held.keys()
        if missing:
            self.report(f"{len(missing)} records are not in the archive, the first is {min(missing)}")
        duplicates = [key for key, times in held.items() if times > 1]
        if duplicates:
            self.report(
                f"{len(duplicates)} records are archived more than once, the first is {min(duplicates)}"
            )

    def _find_overlaps(self, objects: Sequence[ArchivedObject]) -> None:
        ordered = sorted(objects, key=lambda each: (each.shard, each.minute, each.first))
        for one, other in pairwise(ordered):
            if (one.shard, one.minute) == (other.shard, other.minute) and other.first <= one.last:
                self.report(f"{other.name} overlaps with {one.name}")
