"""Plans the batches of a query: one generation after the other, each from the leases.

`plan` builds the next generation from the shards that have new records; `replay` rebuilds a logged one. Both rely on
one property of Spark: when it asks for the plan of generation n+1, generation n is committed.

The planner runs on one event loop and reaches the outside through ports. It does not import pyspark.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from leasehold.core.exactly_once.bounded_run import (
    FirstSeen,
    leases_that_may_come,
    must_wait_for_parent,
    next_first_seen,
    will_create_leases,
)
from leasehold.core.exactly_once.lost_leases import (
    BehindLog,
    LoggedShards,
    Unfinished,
    children_in,
    compare_lease,
    logged_shards,
)
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
    join_streams,
    next_offset,
    resolve_start,
    shards_of_stream,
)
from leasehold.core.exactly_once.shard_phase import (
    Ended,
    Idle,
    InBatch,
    Ready,
    Taken,
    TipProgress,
    next_phase,
    next_start,
)
from leasehold.core.exactly_once.slice_limits import BatchLimits, SliceLimits, limits_per_shard
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import Lease, LeaseKey, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.position import Position
from leasehold.core.shards.shard_graph import ShardGraph
from leasehold.errors import LeaseLostError, OffsetMismatchError, ServiceError, UnavailableError
from leasehold.fleet.streams import TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.log_comparison import LogComparison, explain_lost_leases
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
        self._comparison = LogComparison(table, server.streams, settings, clock, rng)
        self._first_seen: dict[LeaseKey, FirstSeen] = {}
        self._forgotten: set[LeaseKey] = set()  # descendants of shards that the user has chosen to read again
        # By stream: listed for a new lease, until the next offset.
        self._graphs: dict[StreamIdentifier | None, ShardGraph] = {}

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the generation after `logged`, which is committed. Returns None if no shard has new records."""
        families = await self._families(logged)
        compare = partial(self._compare_with_log, families)
        waiting = [each for each in self._shards.values() if isinstance(each.phase, Taken | InBatch)]
        await all_of(*(self._resolve_after_commit(each, logged, compare) for each in waiting))
        ready = sorted(self._shards_to_read(), key=lambda pair: pair[0].key)
        if not ready or (not self.is_available_now and self._may_delay(ready, limits)):
            return None
        self._server.note_batch()
        generation_id, share = logged.generation_id.next, limits_per_shard(limits, len(ready))
        plans = [_slice_plan(shard, phase, generation_id, share) for shard, phase in ready]
        offset = self._next_offset(logged)
        for shard, phase in ready:
            shard.move(InBatch(phase.start, phase.committed_to))
        return offset, plans

    def plan_final(self, logged: QueryOffset) -> QueryOffset | None:
        """Plan a generation without slices, for the end of a bounded run. Returns None if the log is up to date.

        An offset contains the beginnings of slices, so only the next one contains the ends of the last batch. With
        this one the log knows all that the run has read, and could restore a lost lease table exactly.
        """
        offset = self._next_offset(logged)
        return None if replace(offset, generation_id=logged.generation_id) == logged else offset

    async def stamp(self, generation_id: GenerationId) -> None:
        """Write a generation without slices to a lease, so that an older log can be recognised. Call it once the
        generation is logged.
        """
        shards = sorted(self._shards.values(), key=lambda shard: shard.key)
        with suppress(LeaseLostError, ServiceError):
            for shard in shards[:1]:
                await shard.held.stamp((generation_id.query_id, generation_id.number))

    async def prepare(self, logged: QueryOffset) -> None:
        """Compare the log of an earlier run with the lease table, and release its leases. Call it before the member
        starts.

        Raises OffsetMismatchError if the log is an old copy, or if leases are lost.
        """
        await self.release_leases_of_earlier_run(logged)
        await self._comparison.require_leases(logged)

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """Plan a logged generation again: exactly the slices that it delivered before, and nothing new.

        A slice belongs to the generation that its pin names, even if the lease has another owner now.
        """
        plans = []
        leases = await all_of(*(self._table.get(key) for key in sorted(logged.starts)))
        for lease in leases:
            end = generation_end(lease, logged.generation_id)
            if lease is None or end is None:
                continue
            tracked = self._server.streams.of(lease)
            if tracked is None:
                raise OffsetMismatchError(_unknown_stream(lease, logged))
            start, name = logged.starts[lease.key], tracked.name
            plans.append(SlicePlan(lease, logged.generation_id, start, SliceLimits(), name, replay_to=end))
            shard = self._shards.get(lease.key)
            if shard is not None:
                shard.move(InBatch(shard.phase.start, shard.phase.committed_to, is_replay=True))
        return plans

    async def release_leases_of_earlier_run(self, logged: QueryOffset) -> None:
        """Release every lease that an earlier run of this query still owns.

        Tasks of the earlier run cannot pin after this, so its pins are final. And the leases of a killed run need not
        expire first. Raises OffsetMismatchError, before it releases a lease, if the log is an old copy: another run
        with the current log may own the leases.
        """
        listing = await self._comparison.list_leases()
        for lease in listing.leases:
            latest = latest_generation(lease, logged.generation_id.query_id)
            if latest is not None and latest.number > logged.generation_id.number:
                raise OffsetMismatchError(_outdated_log(lease, latest, logged))
        # A row that cannot be parsed still shows which batches were delivered.
        for key, generations in listing.rejected_generations:
            for query_id, number in generations:
                if query_id == logged.generation_id.query_id and number > logged.generation_id.number:
                    raise OffsetMismatchError(_outdated_log_by_generation(key, number, logged))
        owned = (lease.key for lease in listing.leases if lease.actual_owner == self._worker)
        await all_of(*(self._release(key) for key in sorted(owned)))

    async def has_read_all_available(self) -> bool:
        """True if this member has read every shard that it can get up to the tip. For bounded runs."""
        # Leases that this member begins to serve during the calls below are not checked here: they may come.
        shards = list(self._shards.values())
        ended = [(each.phase.children, each.tracked.id) for each in shards if isinstance(each.phase, Ended)]
        if not all(_has_caught_up(each) or isinstance(each.phase, Ended) for each in shards):
            return False
        # A list without the newest writes may lack the children of a shard that this member has just finished.
        listing = await self._table.list(is_consistent=True)
        self._first_seen = next_first_seen(self._first_seen, listing.leases)
        if not all(must_wait_for_parent(children, listing, stream) for children, stream in ended):
            return False
        if self._settings.max_leases is not None and len(shards) >= self._settings.max_leases:
            return True
        known = self._server.streams.known
        if any(self._may_get_leases(listing, shards, tracked.id) for tracked in known):
            return False
        return not any([await self._will_create_leases(listing, tracked) for tracked in known])

    def _may_get_leases(
        self, listing: LeaseListing, shards: Sequence[QueryShard], stream: StreamIdentifier | None
    ) -> bool:
        """Whether this member may still get leases of a stream, of which it reads some of these shards."""
        leases, here = listing.of_stream(stream), [each for each in shards if each.tracked.id == stream]
        reading = {each.key for each in here}
        left_over = {each.held.shard for each in here if isinstance(each.phase, Ready)}
        return not leases or bool(
            leases_that_may_come(leases, self._worker, reading, self._first_seen, left_over)
        )

    async def _will_create_leases(self, listing: LeaseListing, tracked: TrackedStream) -> bool:
        graph = await self._comparison.list_shards(tracked)
        return graph is None or will_create_leases(listing, graph, tracked.initial, tracked.id)

    def report(self) -> dict[str, Any]:
        """Return the lag of each shard, and what was read of it, for the progress of the query."""
        shards = {
            key: {
                **({"stream": each.tracked.name} if each.tracked.id else {}),
                "millisBehind": each.millis_behind,
                "position": _text(each.phase.start),
                "recordsRead": each.delivered.records,
                "bytesRead": each.delivered.size_bytes,
                "recordsPerSecond": each.delivered.records_per_s,
                "bytesPerSecond": each.delivered.bytes_per_s,
            }
            for key, each in sorted(self._shards.items())
        }
        behind = [each.millis_behind for each in self._shards.values() if each.millis_behind is not None]
        return {
            "shards": shards,
            "maxMillisBehind": max(behind, default=None),
            "recordsRead": self.records_read,
        }

    def _may_delay(self, ready: Sequence[tuple[QueryShard, Ready]], limits: BatchLimits) -> bool:
        # A shard that is not counted yet has at least the record that made it ready.
        waiting = sum(max(1, shard.backlog.records if shard.backlog else 1) for shard, _ in ready)
        return limits.may_delay(waiting, self._server.since_last_batch_ms())

    @property
    def _shards(self) -> Mapping[LeaseKey, QueryShard]:
        return self._server.shards

    def _shards_to_read(self) -> Iterator[tuple[QueryShard, Ready]]:
        for shard in self._shards.values():
            is_done = self.is_available_now and shard.tip is TipProgress.CAUGHT_UP
            if isinstance(shard.phase, Ready) and not is_done and not shard.held.draining.is_set():
                yield shard, shard.phase

    def _next_offset(self, logged: QueryOffset) -> QueryOffset:
        starts = {
            key: start for key, each in self._shards.items() if (start := next_start(each.phase)) is not None
        }
        self._forgotten -= starts.keys()
        parts = {
            tracked.id: next_offset(
                logged.in_stream(tracked.id),
                shards_of_stream(starts, tracked.id),
                _shards_in(self._server.finished, tracked.id),
                # Every shard that a plan has named since the list was made is in the list: a new one causes a new list.
                self._graphs.get(tracked.id),
                _shards_in(self._forgotten, tracked.id),
            )
            for tracked in self._server.streams.known
        }
        self._graphs.clear()
        self._server.finished.clear()  # from now on the log names them
        return join_streams(logged.generation_id.next, parts)

    async def _families(self, logged: QueryOffset) -> Mapping[StreamIdentifier | None, _Family]:
        """The part of each stream in the log. The shards of a stream are listed if a lease was taken whose shard the
        log does not name: it may name a relative.
        """
        taken = {key: each for key, each in self._shards.items() if isinstance(each.phase, Taken)}
        if not taken:
            return {}  # only new leases are compared with the log, and an idle query plans several times a second
        known = logged.known_starts
        new = {each.tracked.id for key, each in taken.items() if key not in known}
        families = {}
        for tracked in self._server.streams.known:
            part = logged.in_stream(tracked.id)
            is_needed = part.shards and tracked.id in new
            graph = await self._comparison.list_shards(tracked) if is_needed else None
            if graph is not None:
                self._graphs[tracked.id] = graph
            families[tracked.id] = _Family(logged_shards(part, graph), graph, has_log=bool(part.shards))
        return families

    # -- after a commit ----------------------------------------------------------------------------------------

    async def _resolve_after_commit(
        self, shard: QueryShard, logged: QueryOffset, compare: Callable[[QueryShard], Awaitable[None]]
    ) -> None:
        """Move a shard to its phase after the logged generation, which is committed."""
        before = shard.phase
        assert isinstance(before, Taken | InBatch)
        try:
            if isinstance(before, InBatch):
                await shard.held.refresh()
            else:
                await compare(shard)
        except (LeaseLostError, ServiceError):
            return  # the member stops serving a lost lease; otherwise the next plan retries
        if shard.phase is not before:
            return
        lease = shard.held.lease
        decision = next_phase(before, lease, logged, partial(self._resolve_start, shard, logged))
        if isinstance(decision, LeaseAheadOfLog):
            raise OffsetMismatchError(_outdated_log(lease, decision.generation_id, logged))
        if decision.delivered is not None:
            self._count(shard, decision.delivered)
        shard.reach_tip(decision.tip)
        shard.move(decision.phase)

    async def _compare_with_log(
        self, families: Mapping[StreamIdentifier | None, _Family], shard: QueryShard
    ) -> None:
        """Compare a new lease with the log. If the lease is behind, do what the options say."""
        held, family = shard.held, families[shard.tracked.id]
        graph = family.graph
        if graph is None and family.has_log and held.shard not in family.logged.starts:
            raise UnavailableError(f"shard {shard.key}: the shards of the stream could not be listed")
        lost = compare_lease(held.lease, family.logged)
        if lost is None:
            return
        match self._settings.on_leases_behind, lost:
            case OnLeasesBehind.LEASES, _:
                if isinstance(lost, Unfinished) and graph is not None:
                    descendants = graph.downward_from([held.shard]) - {held.shard}
                    self._forgotten |= {lease_key(each, shard.tracked.id) for each in descendants}
            case OnLeasesBehind.OFFSETS, BehindLog(logged=known):
                await held.checkpoint(known.position)
            case OnLeasesBehind.OFFSETS, Unfinished() if graph is not None and graph.children_of(held.shard):
                shard.move(Ended(children_in(graph, held.shard)))
            case _:
                raise OffsetMismatchError(explain_lost_leases([(shard.tracked.id, lost)]))

    def _resolve_start(self, shard: QueryShard, logged: QueryOffset, after: Position) -> ReadStart:
        lease = shard.held.lease
        known = logged.known_starts.get(lease.key)
        if known is None or known.position.is_record:
            known = self._settings.starting.get(lease.shard_id)
        latest_ms = self._clock.wall_ms() if lease.latest_at_ms is None else lease.latest_at_ms
        return resolve_start(after, known, shard.tracked.initial, latest_ms)

    def _count(self, shard: QueryShard, delivered: PinMetadata) -> None:
        self.records_read += delivered.records
        if delivered.records:
            shard.records_seen_ms = self._clock.now_ms()
        shard.delivered.add(delivered.records, delivered.size_bytes, self._clock.now_ms())
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


@dataclass(frozen=True, slots=True)
class _Family:
    """What the log says about the shards of one stream. Without a graph, it is known only for those that it names."""

    logged: LoggedShards
    graph: ShardGraph | None
    has_log: bool


def _shards_in(keys: AbstractSet[LeaseKey], stream: StreamIdentifier | None) -> frozenset[ShardId]:
    return frozenset(shards_of_stream(dict.fromkeys(keys), stream))


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
        shard.tracked.name,
        redeliver_to=phase.redeliver_to,
        iterator=phase.iterator,
        follows_parent=shard.held.follows_parent,
    )


def _unknown_stream(lease: Lease, logged: QueryOffset) -> str:
    return (
        f"shard {lease.key}: generation {logged.generation_id.number} of this query, which is not committed, has read "
        "records of this stream, and the query does not read the stream any more: it is not in the options, or was "
        "deleted and created again. The batch cannot be repeated. Put the stream back into the options; or give the "
        "query a new checkpoint location: it then continues where the lease table says"
    )


def _outdated_log(lease: Lease, delivered: GenerationId, logged: QueryOffset) -> str:
    end = lease.pin.end if lease.pin else lease.checkpoint
    return _outdated_log_by_generation(
        lease.key, delivered.number, logged, f", and the shard is read up to {end}"
    )


def _outdated_log_by_generation(
    key: LeaseKey, delivered: int, logged: QueryOffset, read_up_to: str = ""
) -> str:
    start = logged.known_starts.get(key, "an unknown position")
    return (
        f"shard {key}: according to the lease table, generation {delivered} of this query is "
        f"delivered{read_up_to}. The checkpoint location only knows generation "
        f"{logged.generation_id.number}, which begins at {start}. The checkpoint location is an old copy, or another "
        "run of this query is active. Stop the other run, or restore the newest copy, or give the query a new "
        "checkpoint location: it then continues where the lease table says (Spark's file sink also needs a new folder, "
        "because it skips batch ids that it knows)"
    )
