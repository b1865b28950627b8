"""A query's part in a fleet: the leases that its member holds, and the generations in which it reads them.

`serve` is what the member runs for every lease. `plan` makes the next generation from the shards that have something
new; `replay` makes a logged one again. Both rest on one fact of Spark's: when the plan of generation n+1 is asked for,
generation n is committed. Shards are read elsewhere, by tasks; here only the leases tell what they did.

Runs on one event loop, through ports; knows nothing of pyspark.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from typing import Any, TypeVar

from leasehold.config.settings import milliseconds
from leasehold.core.backoff import backoff_ms
from leasehold.core.exactly_once.bounded_run import leases_that_may_come
from leasehold.core.exactly_once.pinned_batch import (
    ContinueReading,
    GenerationId,
    LeaseAheadOfLog,
    Redeliver,
    ShardFinished,
    generation_end,
    next_slice,
    pin_metadata,
)
from leasehold.core.exactly_once.query_offset import (
    QueryOffset,
    ReadStart,
    is_lease_behind_log,
    resolve_start,
)
from leasehold.core.exactly_once.slice_limits import BatchLimits, SliceLimits, limits_per_shard
from leasehold.core.model import ChildShard, InitialPosition, Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.errors import (
    IteratorExpiredError,
    LeaseLostError,
    NotFoundError,
    OffsetMismatchError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, Stream
from leasehold.spark.query.idle_probe import IdleProbe, ProbeResult
from leasehold.spark.query.pinned_slices import SlicePlan

# Kinesis allows five reads a second and shard, for all readers together.
_STRETCH_PAUSE_MS = 250
_ATTEMPTS_MAX = 10

T = TypeVar("T")


class OnLeasesBehind(Enum):
    """What to do with a lease that stands before what the query has committed: its table was lost, or put back."""

    FAIL = "fail"
    OFFSETS = "offsets"  # go on where the query's log says
    LEASES = "leases"  # go on where the lease says: records are delivered again


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """How a query reads its shards."""

    initial: InitialPosition
    starting: Mapping[ShardId, ReadStart] = field(default_factory=dict)  # where single shards begin instead
    poll_every: timedelta = timedelta(seconds=1)
    on_leases_behind: OnLeasesBehind = OnLeasesBehind.FAIL
    max_leases: int | None = None


class ShardPhase(Enum):
    """What is known of a shard between two plans."""

    TAKEN = auto()  # what its lease means is for the next plan to say
    IDLE = auto()  # all that was delivered is committed, and nothing new was seen
    READY = auto()  # likewise, and there is something to read
    IN_BATCH = auto()  # a generation reads it
    ENDED = auto()  # all of it is delivered and committed; what is left is to write that
    OVER = auto()


@dataclass(slots=True, eq=False)
class QueryShard:
    """One shard while the query holds its lease."""

    held: HeldLease
    phase: ShardPhase = ShardPhase.TAKEN
    lease: Lease | None = None  # as it was when `start` was read from it
    start: ReadStart | None = None
    redeliver_to: Position | None = None
    iterator: str | None = None
    probe: IdleProbe | None = None
    done_to: Position | None = None  # pinned by a committed generation: may become the checkpoint
    children: tuple[ChildShard, ...] = ()
    is_replayed: bool = False  # an earlier run has decided where its batch ends
    was_at_tip: bool = False  # a batch has read to it; whether the shard goes on there is for a look to say
    has_caught_up: bool = False
    millis_behind: int | None = None
    records: int = 0
    failures: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, phase: ShardPhase) -> None:
        """Stand differently from now on."""
        self.phase = phase
        self.changed.set()


class Generations:
    """The shards of one query, generation after generation."""

    def __init__(
        self,
        *,
        worker: WorkerId,
        table: LeaseTable,
        stream: Stream,
        settings: QuerySettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._worker = worker
        self._table = table
        self._stream = stream
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._shards: dict[ShardId, QueryShard] = {}
        self._first_counters: dict[LeaseKey, int] = {}
        self._ended: set[ShardId] = set()
        self._is_stopping = False
        self._committed: GenerationId | None = None
        self.is_available_now = False  # a bounded run: each shard to its tip, once
        self.records_read = 0

    # -- holding leases ----------------------------------------------------------------------------------------

    async def serve(self, held: HeldLease) -> None:
        """Hold a lease until its shard has ended, or until it is wanted back and nothing is under way."""
        await held.wait_for_parents()
        shard = QueryShard(held)
        self._shards[held.shard] = shard
        try:
            while shard.phase is not ShardPhase.OVER and not self._may_let_go(shard):
                await self._attend(shard)
            if not held.ended:
                await self._settle_up(shard)
        finally:
            del self._shards[held.shard]

    def stop(self, committed: GenerationId | None = None) -> None:
        """From now on a lease that is wanted back is not kept for the batch that reads it: nobody will commit it.

        `committed` is the last generation of which Spark has said that it is; None if nobody knows.
        """
        self._is_stopping = True
        self._committed = committed
        for shard in self._shards.values():
            shard.changed.set()

    async def _settle_up(self, shard: QueryShard) -> None:
        """Write how far the shard is done, so that its next owner repeats nothing that is committed."""
        done_to = shard.done_to
        if shard.phase is ShardPhase.IN_BATCH and self._committed is not None:
            done_to = generation_end(await shard.held.refresh(), self._committed) or done_to
        if done_to is not None:
            await shard.held.promote(done_to)

    def _may_let_go(self, shard: QueryShard) -> bool:
        in_batch = shard.phase is ShardPhase.IN_BATCH
        return shard.held.draining.is_set() and (self._is_stopping or not in_batch)

    async def _attend(self, shard: QueryShard) -> None:
        """One round of what a shard needs between plans."""
        shard.changed.clear()
        if shard.phase is ShardPhase.IDLE:
            wait_ms = await self._look_for_news(shard)
        elif shard.phase is ShardPhase.ENDED:
            wait_ms = await self._finish(shard)
        else:
            # A batch takes as long as it takes: Spark watches over it, and its end shows in the lease.
            shard.held.note_progress()
            wait_ms = milliseconds(self._settings.poll_every)
        if not shard.changed.is_set():
            await self._wait(shard, wait_ms)

    async def _wait(self, shard: QueryShard, wait_ms: int) -> None:
        """Until so much time has passed, the shard stands differently, or it is wanted back."""
        waits = [
            asyncio.ensure_future(self._clock.sleep_ms(wait_ms)),
            asyncio.ensure_future(shard.changed.wait()),
        ]
        if not shard.held.draining.is_set():
            waits.append(asyncio.ensure_future(shard.held.draining.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _look_for_news(self, shard: QueryShard) -> int:
        """Look once at an idle shard; says how long to leave it alone then."""
        probe = shard.probe
        assert probe is not None
        try:
            finding = await probe.poll()
        except (ThrottledError, UnavailableError, IteratorExpiredError) as error:
            if isinstance(error, IteratorExpiredError):
                probe.discard_iterator()
            shard.failures += 1
            return backoff_ms(shard.failures, self._rng.random())
        except NotFoundError:
            finding = ProbeResult.RECORDS  # the shard is gone: a task finds out what that means
        shard.failures = 0
        shard.held.note_progress()
        page = probe.page
        behind_ms = (page.millis_behind if page else None) or 0
        shard.millis_behind = behind_ms
        if finding is ProbeResult.RECORDS:
            shard.iterator, shard.has_caught_up = probe.iterator, shard.has_caught_up or shard.was_at_tip
            shard.move(ShardPhase.READY)
            return 0
        if finding is ProbeResult.END:
            assert page is not None
            shard.children = page.children
            shard.move(ShardPhase.ENDED)
            return 0
        return await self._rest(shard, behind_ms)

    async def _rest(self, shard: QueryShard, behind_ms: int) -> int:
        if shard.done_to is not None:
            await shard.held.promote(shard.done_to)
            shard.done_to = None
        if behind_ms:
            return _STRETCH_PAUSE_MS  # a stretch without records; it is crossed in empty answers
        shard.has_caught_up = True
        return int(milliseconds(self._settings.poll_every) * (0.75 + self._rng.random() / 2))

    async def _finish(self, shard: QueryShard) -> int:
        """Write the end of a shard; says how long to wait before another try."""
        try:
            await shard.held.finish(shard.children)
        except ServiceError:
            shard.failures += 1
            return backoff_ms(shard.failures, self._rng.random())
        self._ended.add(shard.held.shard)
        shard.move(ShardPhase.OVER)
        return 0

    # -- planning ----------------------------------------------------------------------------------------------

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """The generation after `logged`, which is committed; None if no shard has anything new."""
        unsettled = [each for each in self._shards.values() if _is_unsettled(each)]
        await asyncio.gather(*(self._settle(each, logged) for each in unsettled))
        settled = [
            each for each in self._shards.values() if each.phase in {ShardPhase.IDLE, ShardPhase.READY}
        ]
        ready = sorted(filter(self._is_wanted, settled), key=lambda each: each.held.shard)
        if not ready:
            return None
        generation_id, share = logged.generation_id.next, limits_per_shard(limits, len(ready))
        plans = [_slice_plan(each, generation_id, share) for each in ready]
        for each in ready:
            each.move(ShardPhase.IN_BATCH)
        starts = {each.held.shard: each.start for each in settled if each.start is not None}
        return QueryOffset(generation_id, {**self._times_in(logged), **starts}), plans

    def _times_in(self, logged: QueryOffset) -> dict[ShardId, ReadStart]:
        """What "latest" means for shards of which nothing was read yet, whether they are held now or not."""
        return {
            shard: start
            for shard, start in logged.starts.items()
            if start.timestamp_ms is not None and shard not in self._ended
        }

    async def release_leases_of_earlier_run(self, logged: QueryOffset) -> None:
        """Free what an earlier run of this query held, before the member starts. Its tasks can pin nothing more.

        Only then is it certain what they have pinned. And nobody has to wait until the leases of a killed run expire.
        """
        listing = await self._patiently(self._table.list)
        keys = {LeaseKey(shard) for shard in logged.starts}
        keys |= {lease.key for lease in listing.leases if lease.actual_owner == self._worker}
        await asyncio.gather(*(self._free(key) for key in sorted(keys)))

    async def _free(self, key: LeaseKey) -> None:
        lease = await self._patiently(lambda: self._table.get(key))
        while lease is not None and lease.actual_owner == self._worker and lease.session is not None:
            freed = await self._patiently(partial(self._table.release, lease))
            lease = freed if isinstance(freed, Lease) else freed.current

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """What a logged generation delivered before, to be delivered once more: exactly that, and nothing new.

        Whoever holds a lease now: what bears the generation's stamp was delivered in it.
        """
        plans = []
        leases = await asyncio.gather(*(self._table.get(LeaseKey(shard)) for shard in sorted(logged.starts)))
        for lease in leases:
            end = generation_end(lease, logged.generation_id)
            if lease is None or end is None:
                continue
            start = logged.starts[lease.shard_id]
            plans.append(SlicePlan(lease, logged.generation_id, start, SliceLimits(), replay_to=end))
            if lease.shard_id in self._shards:
                self._shards[lease.shard_id].is_replayed = True
                self._shards[lease.shard_id].move(ShardPhase.IN_BATCH)
        return plans

    async def has_read_all_available(self) -> bool:
        """Whether this member has read all that it can get, up to the tip. For bounded runs."""
        if not all(self._has_tip(each) for each in self._shards.values()):
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

    def _has_tip(self, shard: QueryShard) -> bool:
        return shard.has_caught_up and shard.phase in {ShardPhase.IDLE, ShardPhase.READY}

    @property
    def shards(self) -> int:
        """How many shards the query holds."""
        return len(self._shards)

    def report(self) -> dict[str, Any]:
        """How far behind each shard is; for the query's progress."""
        shards = {
            name: {"millisBehind": each.millis_behind, "position": str(each.start) if each.start else None}
            for name, each in sorted(self._shards.items())
        }
        behind = [each.millis_behind for each in self._shards.values() if each.millis_behind is not None]
        return {
            "shards": shards,
            "maxMillisBehind": max(behind, default=None),
            "recordsRead": self.records_read,
        }

    def _is_wanted(self, shard: QueryShard) -> bool:
        is_done = self.is_available_now and shard.has_caught_up
        return shard.phase is ShardPhase.READY and not is_done and not shard.held.draining.is_set()

    async def _settle(self, shard: QueryShard, logged: QueryOffset) -> None:
        """Find out, from its lease, where a shard stands now that the logged generation is committed."""
        is_new = shard.phase is ShardPhase.TAKEN
        try:
            lease = shard.held.lease if is_new else await shard.held.refresh()
            await self._settle_with(shard, lease, logged, is_new=is_new)
        except LeaseLostError:
            return  # the member ends the serving of it
        except ServiceError:
            return  # the next plan tries again

    async def _settle_with(
        self, shard: QueryShard, lease: Lease, logged: QueryOffset, *, is_new: bool
    ) -> None:
        known = logged.starts.get(lease.shard_id)
        if is_new and known is not None and is_lease_behind_log(lease, known):
            lease = await self._after_disagreement(shard, lease, known)
        match next_slice(lease, logged.generation_id, known.position if known else None):
            case ContinueReading(after):
                self._go_on(shard, lease, after, logged, is_new=is_new)
            case Redeliver(after, end):
                shard.start, shard.redeliver_to = self._start_of(lease, after, logged), end
                shard.lease, shard.iterator = lease, None
                shard.move(ShardPhase.READY)
            case ShardFinished(children):
                self._count(shard, lease)
                shard.children = children
                shard.move(ShardPhase.ENDED)
            case LeaseAheadOfLog(generation_id):
                raise OffsetMismatchError(_old_copy(lease, generation_id, logged))

    def _go_on(
        self, shard: QueryShard, lease: Lease, after: Position, logged: QueryOffset, *, is_new: bool
    ) -> None:
        note = pin_metadata(lease)
        # Whether the batch that was just committed has read the shard. Otherwise the note is an older one's.
        was_read = not is_new and note is not None and note.generation_id == logged.generation_id
        has_more = note is not None and note.has_more and (is_new or was_read)
        shard.start, shard.redeliver_to, shard.iterator = self._start_of(lease, after, logged), None, None
        shard.lease, shard.done_to = lease, lease.pin.end if lease.pin else None
        if was_read:
            self._count(shard, lease)
            shard.was_at_tip = shard.was_at_tip or not (has_more or shard.is_replayed)
            shard.is_replayed = False
        never_read = not shard.start.position.is_record and is_new
        shard.probe = IdleProbe(
            self._stream, lease.shard_id, shard.start, was_just_read=was_read and not has_more
        )
        shard.move(ShardPhase.READY if never_read or has_more else ShardPhase.IDLE)

    def _count(self, shard: QueryShard, lease: Lease) -> None:
        note = pin_metadata(lease)
        if note is not None:
            shard.records += note.records
            self.records_read += note.records
            shard.held.note_delivered(note.size_bytes)
            shard.millis_behind = note.millis_behind

    async def _after_disagreement(self, shard: QueryShard, lease: Lease, known: ReadStart) -> Lease:
        if self._settings.on_leases_behind is OnLeasesBehind.LEASES:
            return lease
        if self._settings.on_leases_behind is OnLeasesBehind.OFFSETS:
            await shard.held.checkpoint(known.position)
            return shard.held.lease
        raise OffsetMismatchError(
            f"shard {lease.shard_id}: the checkpoint location says that everything up to {known} is committed, the "
            f"lease table stands at {lease.checkpoint}: the table was deleted, or put back from an older copy. Put the "
            "right table back; or set onLeasesBehind=offsets to go on after the former (the last batch may come "
            "twice), or onLeasesBehind=leases to read again from the latter (all since then comes twice; the archive "
            "drops it)"
        )

    def _start_of(self, lease: Lease, after: Position, logged: QueryOffset) -> ReadStart:
        known = logged.starts.get(lease.shard_id)
        if known is None or known.position.is_record:
            known = self._settings.starting.get(lease.shard_id)
        latest_ms = self._clock.wall_ms() if lease.latest_at_ms is None else lease.latest_at_ms
        return resolve_start(after, known, self._settings.initial, latest_ms)

    # -- trouble -----------------------------------------------------------------------------------------------

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Nothing goes on before it is known."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return await call()
            except (ThrottledError, UnavailableError):
                await self._clock.sleep_ms(backoff_ms(attempt, self._rng.random()))
        return await call()


def _is_unsettled(shard: QueryShard) -> bool:
    return shard.phase in {ShardPhase.TAKEN, ShardPhase.IN_BATCH}


def _slice_plan(shard: QueryShard, generation_id: GenerationId, limits: SliceLimits) -> SlicePlan:
    assert shard.start is not None
    assert shard.lease is not None
    return SlicePlan(
        shard.lease,
        generation_id,
        shard.start,
        limits,
        redeliver_to=shard.redeliver_to,
        iterator=shard.iterator,
        follows_parent=shard.held.follows_parent,
    )


def _old_copy(lease: Lease, delivered: GenerationId, logged: QueryOffset) -> str:
    end = lease.pin.end if lease.pin else lease.checkpoint
    start = logged.starts.get(lease.shard_id, "nowhere")
    return (
        f"shard {lease.shard_id}: the lease table says that generation {delivered.generation} of this query is "
        f"delivered up to {end}, the checkpoint location knows generation {logged.generation_id.generation} only, which begins "
        f"at {start}: it is an old copy, or another run of this query is at work. Stop that, or put the newest copy "
        "back, or give the query a new checkpoint location: it then goes on where the lease table says"
    )
