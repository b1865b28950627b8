"""Gives batches to a handler, in order, until each record is done: tries again, searches for poison, puts it aside."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from leasehold.core.events import (
    BatchHandled,
    HandlerFailed,
    OperationFailed,
    RecordDeadLettered,
    RecordSkipped,
)
from leasehold.core.record import UserRecord
from leasehold.errors import HandlerError, LeaseholdError, LeaseLostError
from leasehold.fleet.reading.chunking import payload_bytes
from leasehold.worker.batch import Batch
from leasehold.worker.dead_letters import DeadLetter, error_text
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.progress import InFlightBatch
from leasehold.worker.delivery.retry_policy import (
    Poison,
    Retry,
    RetryRange,
    Split,
    decide_after_failure,
    retry_wait_ms,
)
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.settings import OnPoison
from leasehold.worker.user_code.handler_runners import Outcome, Raised, Returned, traceback_without_message
from leasehold.worker.waiting import first_of

LOGGER: Final = logging.getLogger("leasehold.worker")

# Takes a batch to user code and says how it ended.
Attempt = Callable[[Batch], Awaitable[Outcome]]


class RetryingConsumer:
    """The handling of one shard's batches, one call at a time."""

    def __init__(self, shard: ServedShard, attempt: Attempt) -> None:
        self._shard = shard
        self._attempt = attempt
        self._workplace = shard.context
        self._held = shard.accounting.held
        self._checkpoints = shard.accounting.checkpoints
        self._errors = shard.context.settings.errors

    async def deliver(self, cut: PendingBatch, portion: InFlightBatch) -> bool:
        """Hand over a batch until all of it is done. False if the lease is wanted back before that."""
        pieces = [RetryRange(0, len(cut.records))]
        while pieces:
            piece = self._without_done(cut, pieces.pop())
            if not piece and cut.records:
                continue
            failure = await self._give(cut, portion, piece)
            if failure is None:
                self._move_to_end_of(piece, cut, portion)
                continue
            match decide_after_failure(piece, self._errors, self._workplace.rng.random()):
                case Retry(again, wait_ms):
                    pieces.append(again)
                    await self._pause(wait_ms)
                case Split(first, second):
                    pieces += [second, first]
                case Poison():
                    if not await self._dispose(cut.records[piece.first : piece.stop], failure, piece.attempt):
                        return False
                    self._move_to_end_of(piece, cut, portion)
            if self._held.draining.is_set() and pieces:
                return False
        return True

    def _without_done(self, cut: PendingBatch, piece: RetryRange) -> RetryRange:
        """What the handler has stored by hand is not given again, even if it failed afterwards."""
        done = self._checkpoints.progress.done
        first = piece.first
        while first < piece.stop and cut.records[first].position <= done:
            first += 1
        return piece if first == piece.first else RetryRange(first, piece.stop, piece.attempt, piece.is_whole)

    async def _give(self, cut: PendingBatch, portion: InFlightBatch, piece: RetryRange) -> Exception | None:
        """One attempt at some records; returns what the handler raised."""
        batch = self._shard.batch(cut, portion, piece)
        began_ms = self._workplace.clock.now_ms()
        async with self._workplace.handlers:
            self._require_proof()
            self._held.note_progress()
            outcome = await self._attempt(batch)
        self._held.note_progress()
        if isinstance(outcome, Returned):
            self._tell_handled(batch, began_ms)
            return None
        return self._failure(batch, outcome)

    def _failure(self, batch: Batch, outcome: Raised) -> Exception:
        error = self._shard.failure_of(outcome)
        LOGGER.debug(
            "handler failed shard=%s %s at\n%s",
            self._held.lease.key,
            type(error).__name__,
            traceback_without_message(error),
        )
        self._workplace.observe(
            HandlerFailed(
                batch.shard, batch.start, batch.end, len(batch), batch.attempt, type(error).__name__
            )
        )
        return error

    def _require_proof(self) -> None:
        if not self._held.is_valid():
            raise LeaseLostError(
                f"lease {self._held.lease.key} may be another's by now: nothing more is given to the handler"
            )

    def _tell_handled(self, batch: Batch, began_ms: int) -> None:
        self._workplace.observe(
            BatchHandled(
                batch.shard,
                len(batch),
                payload_bytes(batch.records),
                batch.end,
                self._workplace.clock.now_ms() - began_ms,
                batch.millis_behind,
            )
        )

    def _move_to_end_of(self, piece: RetryRange, cut: PendingBatch, portion: InFlightBatch) -> None:
        if piece.stop < len(cut.records):
            self._checkpoints.advance(portion, cut.records[piece.stop - 1].position)

    async def _pause(self, wait_ms: int) -> None:
        await first_of(self._workplace.clock.sleep_ms(wait_ms), self._held.draining.wait())

    async def _dispose(self, records: Sequence[UserRecord], error: Exception, attempts: int) -> bool:
        """Do with poison what the settings say. False if the lease is wanted back before that."""
        name = type(error).__name__
        match self._errors.poison:
            case OnPoison.DEAD_LETTER:
                for record in records:
                    if not await self._put_aside(self._letter(record, error, attempts)):
                        return False
                    self._workplace.observe(RecordDeadLettered(self._held.shard, record.position, name))
            case OnPoison.SKIP:
                for record in records:
                    self._workplace.observe(RecordSkipped(self._held.shard, record.position, name))
            case OnPoison.STOP_SHARD:
                raise self._stopped(records, error, attempts)
            case OnPoison.STOP_WORKER:
                stopped = self._stopped(records, error, attempts)
                self._workplace.stop_worker(stopped)
                raise stopped
            case OnPoison.HOLD:
                raise AssertionError("the policy never gives up on a record that is held")
        return True

    def _letter(self, record: UserRecord, error: Exception, attempts: int) -> DeadLetter:
        context = self._workplace
        return DeadLetter(
            context.application,
            context.stream,
            self._held.shard,
            record,
            type(error).__name__,
            error_text(error),
            attempts,
            context.clock.wall_ms(),
        )

    async def _put_aside(self, letter: DeadLetter) -> bool:
        """Try until it is safe; the shard waits, for a letter that is lost is a record that is lost."""
        attempt = 1
        while (problem := await self._try_to_put_aside(letter)) is not None:
            self._workplace.observe(OperationFailed(f"dead letter of {self._held.lease.key}", problem))
            if self._held.draining.is_set():
                return False
            await self._pause(retry_wait_ms(attempt, self._errors, self._workplace.rng.random()))
            attempt += 1
        return True

    async def _try_to_put_aside(self, letter: DeadLetter) -> str | None:
        """What went wrong, in words that may be told."""
        self._held.note_progress()
        take = self._errors.dead_letters
        if callable(take):
            outcome = await self._shard.runner.call(take, letter)
            return type(outcome.error).__name__ if isinstance(outcome, Raised) else None
        assert self._workplace.dead_letters is not None
        try:
            await self._workplace.dead_letters.put(letter)
        except LeaseholdError as error:
            return str(error)
        return None

    def _stopped(self, records: Sequence[UserRecord], error: Exception, attempts: int) -> HandlerError:
        stopped = HandlerError(
            f"the handler failed {attempts} times on record {records[0].position} of shard {self._held.lease.key} "
            f"({type(error).__name__}): repair it, or put such records aside with dead_letters; nothing was skipped"
        )
        stopped.__cause__ = error
        return stopped
