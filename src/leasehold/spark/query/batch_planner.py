"""Plans the batches of a query: one generation after the other, each from the leases.

`plan` builds the next generation from the shards that have new records; `replay` rebuilds a logged one. Both rely on
one property of Spark: when it asks for the plan of generation n+1, generation n is committed.

The planner runs on one event loop and reaches the outside through ports. It does not import pyspark.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from leasehold.core.exactly_once.bounded_run import leases_that_may_come
from leasehold.core.exactly_once.pinned_batch import (
    GenerationId,
    LeaseAheadOfLog,
    PinMetadata,
    generation_end,
    latest_generation,
)
from leasehold.core.exactly_once.query_offset import (
    QueryOffset,
    ReadStart,
    is_lease_behind_log,
    resolve_start,
)
from leasehold.core.exactly_once.shard_phase import Idle, InBatch, Ready, Taken, TipProgress, next_phase
from leasehold.core.exactly_once.slice_limits import BatchLimits, SliceLimits, limits_per_shard
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.errors import LeaseLostError, OffsetMismatchError, ServiceError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.query_shard import QueryShard
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from leasehold.tasks import all_of, retry

_ATTEMPTS_MAX: Final = 11

T = TypeVar("T")


class BatchPlanner:
    """Plans the generations of one query."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        table: LeaseTable,
        server: LeaseServer,
        settings: QuerySettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.is_available_now = False  # a bounded run: read each shard to its tip, once
        self.records_read = 0
        self._worker = worker
        self._table = table
        self._server = server
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._first_counters: dict[LeaseKey, int] = {}

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the generation after `logged`, which is committed. Returns None if no shard has new records."""
        await all_of(*(self._resolve_after_commit(each, logged) for each in self._shards.values()))
        ready = sorted(self._shards_to_read(), key=lambda pair: pair[0].held.shard)
        if not ready:
            return None
        generation_id, share = logged.generation_id.next, limits_per_shard(limits, len(ready))
        plans = [_slice_plan(shard, phase, generation_id, share) for shard, phase in ready]
        starts = {
            name: each.phase.start
            for name, each in self._shards.items()
            if isinstance(each.phase, Idle | Ready)
        }
        for shard, phase in ready:
            shard.move(InBatch(phase.start, phase.committed_to))
        return QueryOffset(generation_id, {**self._timestamps_in(logged), **starts}), plans

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """Plan a logged generation again: exactly the slices that it delivered before, and nothing new.

        A slice belongs to the generation that its pin names, even if the lease has another owner now.
        """
        plans = []
        leases = await all_of(*(self._table.get(LeaseKey(shard)) for shard in sorted(logged.starts)))
        for lease in leases:
            end = generation_end(lease, logged.generation_id)
            if lease is None or end is None:
                continue
            start = logged.starts[lease.shard_id]
            plans.append(SlicePlan(lease, logged.generation_id, start, SliceLimits(), replay_to=end))
            shard = self._shards.get(lease.shard_id)
            if shard is not None:
                shard.move(InBatch(shard.phase.start, shard.phase.committed_to, is_replay=True))
        return plans

    async def release_leases_of_earlier_run(self, logged: QueryOffset) -> None:
        """Release every lease that an earlier run of this query still owns. Call it before the member starts.

        Tasks of the earlier run cannot pin after this, so its pins are final. And the leases of a killed run need not
        expire first. Raises OffsetMismatchError, before it releases a lease, if the log is an old copy: another run
        with the current log may own the leases.
        """
        listing = await self._retry(self._table.list)
        for lease in listing.leases:
            latest = latest_generation(lease, logged.generation_id.query_id)
            if latest is not None and latest.number > logged.generation_id.number:
                raise OffsetMismatchError(_outdated_log(lease, latest, logged))
        keys = {LeaseKey(shard) for shard in logged.starts}
        keys |= {lease.key for lease in listing.leases if lease.actual_owner == self._worker}
        await all_of(*(self._release(key) for key in sorted(keys)))

    async def has_read_all_available(self) -> bool:
        """True if this member has read every shard that it can get up to the tip. For bounded runs."""
        if not all(_has_caught_up(each) for each in self._shards.values()):
            return False
        listing = await self._table.list()
        for lease in listing.leases:
            self._first_counters.setdefault(lease.key, lease.counter)
        reading = {each.held.lease.key for each in self._shards.values()}
        if self._settings.max_leases is not None and len(reading) >= self._settings.max_leases:
            return True
        return bool(listing.leases) and not leases_that_may_come(
            listing.leases, self._worker, reading, self._first_counters
        )

    def report(self) -> dict[str, Any]:
        """Return the lag of each shard, for the progress of the query."""
        shards = {
            name: {"millisBehind": each.millis_behind, "position": _text(each.phase.start)}
            for name, each in sorted(self._shards.items())
        }
        behind = [each.millis_behind for each in self._shards.values() if each.millis_behind is not None]
        return {
            "shards": shards,
            "maxMillisBehind": max(behind, default=None),
            "recordsRead": self.records_read,
        }

    @property
    def _shards(self) -> Mapping[ShardId, QueryShard]:
        return self._server.shards

    def _shards_to_read(self) -> Iterator[tuple[QueryShard, Ready]]:
        for shard in self._shards.values():
            is_done = self.is_available_now and shard.tip is TipProgress.CAUGHT_UP
            if isinstance(shard.phase, Ready) and not is_done and not shard.held.draining.is_set():
                yield shard, shard.phase

    def _timestamps_in(self, logged: QueryOffset) -> dict[ShardId, ReadStart]:
        """The moment that "latest" means for each shard without a delivered record, whether it is held now or not."""
        return {
            shard: start
            for shard, start in logged.starts.items()
            if start.timestamp_ms is not None and shard not in self._server.finished
        }

    # -- after a commit ----------------------------------------------------------------------------------------

    async def _resolve_after_commit(self, shard: QueryShard, logged: QueryOffset) -> None:
        """Move a shard to its phase after the logged generation, which is committed."""
        before = shard.phase
        if not isinstance(before, Taken | InBatch):
            return
        try:
            lease = await self._lease_to_resolve(shard, before, logged)
        except (LeaseLostError, ServiceError):
            return  # the member stops serving a lost lease; otherwise the next plan retries
        decision = next_phase(before, lease, logged, partial(self._resolve_start, lease, logged))
        if isinstance(decision, LeaseAheadOfLog):
            raise OffsetMismatchError(_outdated_log(lease, decision.generation_id, logged))
        if decision.delivered is not None:
            self._count(shard, decision.delivered)
        shard.reach_tip(decision.tip)
        shard.move(decision.phase)

    async def _lease_to_resolve(
        self, shard: QueryShard, before: Taken | InBatch, logged: QueryOffset
    ) -> Lease:
        if isinstance(before, InBatch):
            return await shard.held.refresh()
        lease, known = shard.held.lease, logged.starts.get(shard.held.shard)
        if known is None or not is_lease_behind_log(lease, known):
            return lease
        match self._settings.on_leases_behind:
            case OnLeasesBehind.LEASES:
                return lease
            case OnLeasesBehind.OFFSETS:
                await shard.held.checkpoint(known.position)
                return shard.held.lease
            case OnLeasesBehind.FAIL:
                raise OffsetMismatchError(_lease_behind(lease, known))

    def _resolve_start(self, lease: Lease, logged: QueryOffset, after: Position) -> ReadStart:
        known = logged.starts.get(lease.shard_id)
        if known is None or known.position.is_record:
            known = self._settings.starting.get(lease.shard_id)
        latest_ms = self._clock.wall_ms() if lease.latest_at_ms is None else lease.latest_at_ms
        return resolve_start(after, known, self._settings.initial, latest_ms)

    def _count(self, shard: QueryShard, delivered: PinMetadata) -> None:
        self.records_read += delivered.records
        shard.held.note_delivered(delivered.size_bytes)
        shard.millis_behind = delivered.millis_behind

    # -- the lease table ---------------------------------------------------------------------------------------

    async def _release(self, key: LeaseKey) -> None:
        lease = await self._retry(lambda: self._table.get(key))
        while lease is not None and lease.actual_owner == self._worker and lease.session is not None:
            released = await self._retry(partial(self._table.release, lease))
            lease = released if isinstance(released, Lease) else released.current

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, clock=self._clock, rng=self._rng, attempts_max=_ATTEMPTS_MAX)


def _has_caught_up(shard: QueryShard) -> bool:
    return shard.tip is TipProgress.CAUGHT_UP and isinstance(shard.phase, Idle | Ready)


def _text(start: ReadStart | None) -> str | None:
    return None if start is None else str(start)


def _slice_plan(
    shard: QueryShard, phase: Ready, generation_id: GenerationId, limits: SliceLimits
) -> SlicePlan:
    return SlicePlan(
        phase.lease,
        generation_id,
        phase.start,
        limits,
        redeliver_to=phase.redeliver_to,
        iterator=phase.iterator,
        follows_parent=shard.held.follows_parent,
    )


def _outdated_log(lease: Lease, delivered: GenerationId, logged: QueryOffset) -> str:
    end = lease.pin.end if lease.pin else lease.checkpoint
    start = logged.starts.get(lease.shard_id, "an unknown position")
    return (
        f"shard {lease.shard_id}: according to the lease table, generation {delivered.number} of this query is "
        f"delivered, and the shard is read up to {end}. The checkpoint location only knows generation "
        f"{logged.generation_id.number}, which begins at {start}. The checkpoint location is an old copy, or another "
        "run of this query is active. Stop the other run, or restore the newest copy, or give the query a new "
        "checkpoint location: it then continues where the lease table says (Spark's file sink also needs a new folder, "
        "because it skips batch ids that it knows)"
    )


def _lease_behind(lease: Lease, known: ReadStart) -> str:
    return (
        f"shard {lease.shard_id}: according to the checkpoint location, everything up to {known} is committed, but the "
        f"lease is at {lease.checkpoint}. The lease table was deleted, or restored from an older backup. Restore the "
        f"right table; or set onLeasesBehind=offsets to continue after {known} (the last batch may be delivered "
        f"twice); or set onLeasesBehind=leases to read again from {lease.checkpoint} (everything since then is "
        "delivered twice; the archive drops duplicates)"
    )
