"""Delivers batches to a handler, in order, until each record is done: retries, searches for poison, disposes of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from leasehold.core.records.record_columns import as_user_records
from leasehold.worker.batch import Batch
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.checkpointing.progress import InFlightBatch
from leasehold.worker.delivery.failures import report_failure, require_valid_lease
from leasehold.worker.delivery.poison_disposal import PoisonDisposal
from leasehold.worker.delivery.poison_search import Bisect, Poison, Retry, RetryRange, decide_after_failure
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import ShardConsumer
from leasehold.worker.user_code.handler_runners import Function, Outcome, Raised, Returned


class RetryingConsumer(ShardConsumer):
    """The base of consumers whose handler gets one batch at a time."""

    def __init__(self, shard: ServedShard) -> None:
        self._shard = shard
        self._held = shard.held
        self._checkpoints = shard.checkpoints
        self._context = shard.context
        self._errors = shard.context.settings.errors
        self._poison = PoisonDisposal(shard)

    @abstractmethod
    def _handler_call(self, batch: Batch) -> tuple[Function, object]:
        """Return the function that handles a batch, and its argument."""

    @abstractmethod
    def _check_outcome(self, batch: Batch, outcome: Outcome) -> Outcome:
        """Return the outcome of a handler's call, or a failure if it returned too early."""

    def _needs_handler(self, pending: PendingBatch) -> bool:
        """Return whether a batch is for the handler. For others only the position moves."""
        return bool(pending.records)

    async def handle(self, pending: PendingBatch) -> None:
        """Deliver a batch until all of its records are done, or until the lease must be released."""
        if not self._needs_handler(pending):
            await self._checkpoints.pass_over(pending)
            return
        in_flight = self._checkpoints.begin(pending)
        if pending.is_pinned and (disposal := self._poison.interrupted) is not None:
            if await self._poison.store_letters(pending.records, disposal):
                await self._checkpoints.finish(in_flight)
            return
        to_try = [RetryRange(0, len(pending.records))]
        while to_try:
            tried = self._skip_done(pending, to_try.pop())
            if not tried and pending.records:
                continue
            batch = self._shard.make_batch(pending, in_flight, tried)
            began_ms = self._context.clock.now_ms()
            async with self._context.handler_slots:
                # Only now, since the batch may have waited long for its slot.
                require_valid_lease(self._held)
                self._held.note_progress()
                function, argument = self._handler_call(batch)
                outcome = self._check_outcome(batch, await self._shard.runner.call(function, argument))
            self._held.note_progress()
            if isinstance(outcome, Returned):
                self._shard.report_handled(batch.columns, batch.end, batch.millis_behind, began_ms)
                self._mark_done(pending, in_flight, tried)
                continue
            retries = await self._after_failure(batch, tried, outcome)
            if retries is None:
                return
            if not retries:
                self._mark_done(pending, in_flight, tried)
            to_try += retries
            if to_try and self._held.draining.is_set():
                return
        await self._checkpoints.finish(in_flight)

    async def _after_failure(
        self, batch: Batch, tried: RetryRange, outcome: Raised
    ) -> Sequence[RetryRange] | None:
        """Return what to try next, last range first; nothing if the records were disposed of as poison.

        Returns None if the lease must be released before that.
        """
        error = report_failure(self._shard, batch, outcome)
        tried = replace(tried, is_prepared=self._shard.is_prepared(batch))
        match decide_after_failure(tried, self._errors, self._context.rng.random()):
            case Retry(again, wait_ms):
                await self._shard.pause(wait_ms)
                return [again]
            case Bisect(first, second):
                return [second, first]
            case Poison():
                return [] if await self._poison.dispose(batch, error) else None

    def _skip_done(self, pending: PendingBatch, to_try: RetryRange) -> RetryRange:
        """Leave out the records that a handler checkpointed before it failed: they are not delivered again."""
        tried = as_user_records(pending.records[to_try.first : to_try.stop])
        done = tried.count_to(self._checkpoints.progress.done)
        return replace(to_try, first=to_try.first + done) if done else to_try

    def _mark_done(self, pending: PendingBatch, in_flight: InFlightBatch, done: RetryRange) -> None:
        """Advance the position to the end of a part of the batch. `handle` finishes the batch itself."""
        if done.stop < len(pending.records):
            self._checkpoints.advance(in_flight, as_user_records(pending.records).position(done.stop - 1))
