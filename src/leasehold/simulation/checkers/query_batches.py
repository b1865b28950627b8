"""What a Spark query promises about its batches: no record twice, no old log, nothing without records."""

from __future__ import annotations

import json
from collections import Counter

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import offset_from_json
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.query_history import (
    BoundedRun,
    CommittedBatch,
    DeliveredSlice,
    PlannedBatch,
)

_Record = tuple[LeaseKey, RecordKey]


class BatchesEqualProduced(Checker):
    """At the end, a sink that stores batch ids holds every record exactly once."""

    promise = "batches-equal-produced"

    def all_stopped(self) -> None:
        query = self.world.query
        if not query.has_query or query.has_archive:
            return
        held = Counter(
            (each.shard, key) for slices in query.sink.values() for each in slices for key in each.records
        )
        expected = {
            (shard, key)
            for shard, shard_ledger in self.world.ledger.shards.items()
            for index, key in enumerate(shard_ledger.keys)
            if index not in shard_ledger.lost_to_trim
        }
        missing = expected - held.keys()
        if missing:
            self.report(f"{len(missing)} records are in no batch, the first is {min(missing)}")
        duplicates = [key for key, times in held.items() if times > 1]
        lost_both = query.had_old_log and self.world.rows_were_destroyed
        if duplicates and not (query.may_repeat or lost_both):
            self.report(f"{len(duplicates)} records are in two batches, the first is {min(duplicates)}")


class CommittedRowsAreNotRepeated(Checker):
    """A query does not deliver a record again in a later batch, unless its operator has allowed it after an error.

    This does not hold if workers share the stream: a worker that repeats a pinned batch removes the name of the query
    from it. If the lease table is lost, or restored as it was before the last batch of a shard, this batch may be
    delivered again: only the next plan would have logged where it ended.
    """

    promise = "committed-rows-are-not-repeated"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._committed_in: dict[_Record, GenerationId] = {}
        self._batches_of: dict[LeaseKey, set[GenerationId]] = {}

    def batch_committed(self, committed: CommittedBatch) -> None:
        for each in committed.slices:
            if each.records:
                self._batches_of.setdefault(each.shard, set()).add(committed.generation_id)
            for key in each.records:
                self._committed_in.setdefault((each.shard, key), committed.generation_id)

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        query = self.world.query
        lost_both = query.had_old_log and self.world.rows_were_destroyed
        if query.may_repeat or not query.is_alone or lost_both:
            return
        for key in delivered.records[:1]:
            before = self._committed_in.get((delivered.shard, key))
            if before is None or before == delivered.generation_id:
                continue
            is_only_batch = len(self._batches_of[delivered.shard]) == 1
            if self.world.rows_were_destroyed and (is_only_batch or delivered.generation_id == before.next):
                continue
            self.report(
                f"{delivered.by.name} delivers {key} of {delivered.shard} in generation "
                f"{delivered.generation_id.number}, although generation {before.number} with it is committed"
            )


class OldLogsAreRefused(Checker):
    """A query whose checkpoint location is an old copy fails. It does not plan a generation a second time."""

    promise = "old-logs-are-refused"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._committed: set[GenerationId] = set()

    def batch_committed(self, committed: CommittedBatch) -> None:
        if any(each.records for each in committed.slices):
            self._committed.add(committed.generation_id)

    def batch_planned(self, planned: PlannedBatch) -> None:
        # If the lease table was lost as well, nothing shows that the log is old.
        if planned.generation_id in self._committed and not self.world.rows_were_destroyed:
            self.report(
                f"{planned.by.name} plans generation {planned.generation_id.number} again, which is committed"
            )


class BoundedRunsReadAll(Checker):
    """A run with `availableNow` that ends has delivered every record that existed when it began.

    Another live member may read a part of the stream: a worker, or another run of the query, which has an id of its own
    if it began before the first batch was logged. A row that cannot be read blocks its shard.
    """

    promise = "bounded-runs-read-all"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._ended_ms: dict[SimulatedProcess, int] = {}

    def process_exited(self, process: SimulatedProcess) -> None:
        self._ended_ms[process] = self.world.now_ms()

    def bounded_run_ended(self, run: BoundedRun) -> None:
        has_others = any(
            each.is_member
            and each is not run.member
            and self._ended_ms.get(each, run.began_ms) >= run.began_ms
            for each in self.world.processes
        )
        if has_others or self.world.services.has_malformed_leases():
            return
        for shard, count in run.produced.items():
            shard_ledger = self.world.ledger.shard(shard)
            if shard_ledger.first_open < count:
                self.report(
                    f"{run.by.name} has ended and not read {count - shard_ledger.first_open} of {shard}"
                )


class IdleQueriesPlanNothing(Checker):
    """While no record arrives, there is no batch, except for one that reads a shard for the first time."""

    promise = "idle-queries-plan-nothing"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._is_steady = False
        self._begun: dict[
            SimulatedProcess, set[LeaseKey]
        ] = {}  # shards without a record, in batches of a run

    def steady_state_began(self) -> None:
        self._is_steady = True

    def steady_state_ended(self) -> None:
        self._is_steady = False

    def batch_planned(self, planned: PlannedBatch) -> None:
        offset = offset_from_json(json.loads(planned.offset))
        assert offset is not None
        empty = {shard for shard, start in offset.starts.items() if not start.position.is_record}
        begun = self._begun.setdefault(planned.by, set())
        if self._is_steady and empty <= begun:
            self.report(f"{planned.by.name} plans batch {planned.batch} although no record has arrived")
        begun |= empty
