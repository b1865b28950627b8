"""A reader sees each archived record once, at every moment, also while the archive is compacted."""

from __future__ import annotations

from collections import Counter

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.archived_objects import ArchivedObject, ArchiveRead, visible_objects
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.objects import Put


class ReadersSeeEachRecordOnce(Checker):
    """Checks which objects a reader would read after each change, and what processes read with the shipped code."""

    promise = "readers-see-each-record-once"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._archived: dict[LeaseKey, set[RecordKey]] = {}

    def object_put(self, put: Put, stored: ArchivedObject | None) -> None:
        if stored is not None and put.before is None:
            self._archived.setdefault(stored.shard, set()).update(stored.records)
            if stored.since is not None:
                self._check(stored.shard, f"{put.by.name} created {stored.name}")

    def object_deleted(self, deleted: ArchivedObject) -> None:
        self._check(deleted.shard, f"{deleted.name} was deleted")

    def archive_read(self, read: ArchiveRead) -> None:
        seen = Counter(read.records)
        missing = read.before - seen.keys()
        doubled = [key for key, times in seen.items() if times > 1]
        if missing or doubled:
            self.report(f"{read.by.name} read the archive: {len(missing)} missing, {len(doubled)} doubled")

    def _check(self, shard: LeaseKey, cause: str) -> None:
        objects = visible_objects(each for each in self.world.archived.values() if each.shard == shard)
        seen = Counter(key for each in objects for key in each.records)
        missing = self._archived.get(shard, set()) - seen.keys()
        doubled = [key for key, times in seen.items() if times > 1]
        if missing or doubled:
            self.report(f"{cause}: {len(missing)} missing, {len(doubled)} doubled")
