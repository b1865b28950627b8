"""Holds the leases of a query between plans.

The member calls `LeaseServer.serve` for every lease that it takes. Between two plans the server polls idle shards and
writes the ends of shards. It keeps the lease of a shard while a batch reads it, and promotes committed pins before a
lease is released. Tasks read the records elsewhere; their results are the pins in the leases.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Final

from leasehold.config.settings import milliseconds
from leasehold.core.backoff import backoff_ms
from leasehold.core.exactly_once.idle_polls import idle_poll_ms, to_tick_ms
from leasehold.core.exactly_once.pinned_batch import GenerationId, generation_end, pin_metadata
from leasehold.core.exactly_once.shard_phase import Ended, Finished, Idle, InBatch, Ready, TipProgress
from leasehold.core.model import LeaseKey
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION, DeaggregationSettings
from leasehold.core.records.pacing import quota_wait_ms
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.streams import Streams
from leasehold.ports import Clock
from leasehold.spark.query.backlog_counter import BacklogCounter
from leasehold.spark.query.idle_probe import IdleProbe, ProbeResult
from leasehold.spark.query.query_shard import QueryShard
from leasehold.tasks import cancel_and_wait

# Between two polls of a shard whose iterator is still behind the tip. Kinesis allows five reads per second and shard,
# for all readers together.
CATCH_UP_PAUSE_MS: Final = 250


class LeaseServer:
    """Serves the leases of one query."""

    def __init__(
        self,
        streams: Streams,
        poll_every: timedelta,
        clock: Clock,
        rng: random.Random,
        *,
        records_min: int | None = None,
        deaggregation: DeaggregationSettings = DEFAULT_DEAGGREGATION,
    ) -> None:
        self.shards: dict[LeaseKey, QueryShard] = {}
        self.has_news = asyncio.Event()  # the next plan may differ from the last one
        self.finished: set[LeaseKey] = (
            set()
        )  # shards whose end was written, and that the log does not name yet
        self.streams = streams
        self._poll_ms = milliseconds(poll_every)
        self._clock = clock
        self._rng = rng
        self._deaggregation = deaggregation
        self._records_min = records_min  # of a batch; None: waiting records are not counted
        self._last_batch_ms: int | None = None
        self._is_stopping = False
        self._committed: GenerationId | None = None

    async def serve(self, held: HeldLease) -> None:
        """Serve a lease until its shard is finished, or until the lease must be released and no batch reads it."""
        tracked = self.streams.of(held.lease)
        if tracked is None:  # a leader assigns leases of streams that it does not know to be ours
            held.drain()
            return
        await held.wait_for_parents(tracked.stream)
        shard = QueryShard(held, tracked)
        self.shards[shard.key] = shard
        self.has_news.set()
        waking = asyncio.ensure_future(_wake_when_draining(shard))
        try:
            while not isinstance(shard.phase, Finished) and not self._may_release(shard):
                await self._serve_once(shard)
            if not held.has_ended:
                await self._promote_before_release(shard)
        finally:
            del self.shards[shard.key]
            await cancel_and_wait(waking)

    def note_batch(self) -> None:
        """Note that a batch begins."""
        self._last_batch_ms = self._clock.now_ms()

    def since_last_batch_ms(self) -> int | None:
        """The time since the last batch began. None before the first batch of the run."""
        return None if self._last_batch_ms is None else self._clock.now_ms() - self._last_batch_ms

    def stop(self, committed: GenerationId | None = None) -> None:
        """Release leases from now on even while a batch reads their shards: no driver is left to commit the batch.

        `committed` is the last generation that Spark reported as committed; None if no report is known.
        """
        self._is_stopping = True
        self._committed = committed
        for shard in self.shards.values():
            shard.changed.set()

    def _may_release(self, shard: QueryShard) -> bool:
        is_in_batch = isinstance(shard.phase, InBatch)
        return shard.held.draining.is_set() and (self._is_stopping or not is_in_batch)

    async def _promote_before_release(self, shard: QueryShard) -> None:
        """Make the committed pin the checkpoint, so that the next owner repeats no committed record."""
        committed_to = shard.phase.committed_to
        if isinstance(shard.phase, InBatch) and self._committed is not None:
            committed_to = generation_end(await shard.held.refresh(), self._committed) or committed_to
        if committed_to is not None:
            await shard.held.promote(committed_to)

    async def _serve_once(self, shard: QueryShard) -> None:
        shard.changed.clear()
        match shard.phase:
            case Idle() as idle:
                wait_ms = await self._poll_idle_shard(shard, idle)
            case Ended() as ended:
                wait_ms = await self._finish(shard, ended)
            case Ready() as ready if self._records_min is not None:
                wait_ms = await self._count_backlog(shard, ready, self._records_min)
            case _:
                # A batch may take any time. Spark supervises it, and its end shows in the lease.
                shard.held.note_progress()
                wait_ms = self._poll_ms
        if not shard.changed.is_set():
            await self._wait(shard, wait_ms)

    async def _wait(self, shard: QueryShard, wait_ms: int) -> None:
        """Return after `wait_ms`, or as soon as the phase changes or the lease must be released.

        One task a wait: an idle query waits hundreds of times a second.
        """

        def wake(_: asyncio.Future[None]) -> None:
            shard.changed.set()

        sleeping = asyncio.ensure_future(self._clock.sleep_ms(wait_ms))
        sleeping.add_done_callback(wake)
        try:
            await shard.changed.wait()
        finally:
            if not sleeping.done():
                sleeping.remove_done_callback(wake)  # a cancelled sleep must not end the next wait
                await cancel_and_wait(sleeping)

    async def _poll_idle_shard(self, shard: QueryShard, idle: Idle) -> int:
        """Poll once for new records. Returns the pause before the next poll."""
        if wait_ms := self._quota_wait_ms(shard, idle):
            return wait_ms
        shard.probe = probe = shard.probe or IdleProbe(
            shard.tracked.stream,
            idle.lease,
            idle.start,
            self._deaggregation,
            was_just_read=idle.was_read_to_tip,
        )
        try:
            result = await probe.poll()
        except (ThrottledError, UnavailableError, IteratorExpiredError) as error:
            if isinstance(error, IteratorExpiredError):
                probe.discard_iterator()
            return self._backoff_ms(shard)
        except NotFoundError:
            result = ProbeResult.RECORDS  # the shard is gone: a task reads it and reports what that means
        if shard.phase is not idle:
            return 0
        shard.failures = 0
        shard.held.note_progress()
        page = probe.page
        shard.millis_behind = (page.millis_behind if page else None) or 0
        if result is ProbeResult.RECORDS:
            if shard.tip is TipProgress.READ_TO_TIP:
                shard.reach_tip(TipProgress.CAUGHT_UP)
            shard.move(Ready(idle.lease, idle.start, idle.committed_to, iterator=probe.iterator))
            shard.records_seen_ms = self._clock.now_ms()
            self.has_news.set()
            return 0
        if result is ProbeResult.END:
            assert page is not None
            shard.move(Ended(page.children, idle.start, idle.committed_to))
            return 0
        # A page with the last delivered record does not show whether the shard continues. The next page does: if the
        # shard has ended, that page is its end.
        is_at_tip = page is not None and not page.records and not page.millis_behind
        return await self._pause_idle(shard, idle, is_at_tip=is_at_tip)

    def _quota_wait_ms(self, shard: QueryShard, idle: Idle) -> int:
        """How long to wait before the first poll of an idle shard, because the last slice has used its quota.

        Only once in a phase: the time was measured on another machine, and may be wrong by hours.
        """
        if shard.has_waited_for_quota:
            return 0
        shard.has_waited_for_quota = True
        metadata = pin_metadata(idle.lease)
        return quota_wait_ms(metadata.quota_at_ms, self._clock.wall_ms()) if metadata else 0

    async def _count_backlog(self, shard: QueryShard, ready: Ready, enough: int) -> int:
        """Count waiting records with one call. Returns the pause before the next one."""
        shard.held.note_progress()
        shard.backlog = backlog = shard.backlog or BacklogCounter(shard.tracked.stream, ready, enough)
        if backlog.is_done:
            return self._poll_ms
        try:
            is_at_tip = await backlog.poll()
        except NotFoundError:
            backlog.records = enough  # the shard is gone: a task reads it and reports what that means
            return self._poll_ms
        except (ThrottledError, UnavailableError, IteratorExpiredError):
            return self._backoff_ms(shard)
        shard.failures = 0
        self.has_news.set()
        return self._poll_ms if is_at_tip else CATCH_UP_PAUSE_MS

    async def _pause_idle(self, shard: QueryShard, idle: Idle, *, is_at_tip: bool) -> int:
        """Promote the committed pin while nothing is to be read. Returns the pause before the next poll."""
        if idle.committed_to is not None and shard.held.lease.pin is not None:
            await shard.held.promote(idle.committed_to)
        if not is_at_tip:
            return CATCH_UP_PAUSE_MS  # in a gap without records, Kinesis answers with empty pages
        shard.reach_tip(TipProgress.CAUGHT_UP)
        now_ms, seen_ms = self._clock.now_ms(), shard.records_seen_ms
        quiet_ms = None if seen_ms is None else now_ms - seen_ms
        return to_tick_ms(now_ms, idle_poll_ms(quiet_ms, self._poll_ms, self._rng.random()))

    async def _finish(self, shard: QueryShard, ended: Ended) -> int:
        """Write the end of a shard. Returns the pause before a retry."""
        try:
            await shard.held.finish(ended.children)
        except ServiceError:
            return self._backoff_ms(shard)
        self.finished.add(shard.key)
        shard.move(Finished())
        return 0

    def _backoff_ms(self, shard: QueryShard) -> int:
        shard.failures += 1
        return backoff_ms(shard.failures, self._rng.random())


async def _wake_when_draining(shard: QueryShard) -> None:
    await shard.held.draining.wait()
    shard.changed.set()
