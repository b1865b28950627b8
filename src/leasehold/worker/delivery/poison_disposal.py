"""Does with poison records what the setting `on_poison` says: dead-letter, skip, stop the shard or stop the worker."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold.core.events import OperationFailed, RecordDeadLettered, RecordSkipped
from leasehold.core.record import UserRecord
from leasehold.errors import HandlerError, LeaseholdError
from leasehold.tasks import first_of
from leasehold.worker.batch import Batch
from leasehold.worker.dead_letters import DeadLetter, error_text
from leasehold.worker.delivery.disposals import Disposal, disposal_from_state, disposal_to_state
from leasehold.worker.delivery.poison_search import retry_wait_ms
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.settings import OnPoison
from leasehold.worker.user_code.handler_runners import Raised


class PoisonDisposal:
    """Disposes of the poison records of one shard."""

    def __init__(self, shard: ServedShard) -> None:
        self._shard = shard
        self._held = shard.held
        self._context = shard.context
        self._errors = shard.context.settings.errors

    @property
    def interrupted(self) -> Disposal | None:
        """The disposal that an earlier owner pinned and did not complete, if we dispose of records in the same way."""
        pin = self._shard.pin
        if pin is None or self._errors.poison is not OnPoison.DEAD_LETTER:
            return None
        return disposal_from_state(pin.state)

    async def dispose(self, batch: Batch, error: Exception) -> bool:
        """Dispose of records that the handler cannot handle. Returns False if the lease must be released first.

        Raises HandlerError if the settings say to stop.
        """
        name = type(error).__name__
        match self._errors.poison:
            case OnPoison.DEAD_LETTER:
                disposal = Disposal(name, error_text(error), batch.attempt)
                await self._pin(batch, disposal)
                return await self.store_letters(batch.records, disposal)
            case OnPoison.SKIP:
                for record in batch.records:
                    self._shard.observe(RecordSkipped(self._held.shard, record.position, name))
            case OnPoison.STOP_SHARD:
                raise self._handler_error(batch, error)
            case OnPoison.STOP_WORKER:
                stopped = self._handler_error(batch, error)
                self._context.stop_worker(stopped)
                raise stopped
            case OnPoison.HOLD:
                raise AssertionError("with on_poison='hold' a record is retried for ever and is never poison")
        return True

    async def store_letters(self, records: Sequence[UserRecord], disposal: Disposal) -> bool:
        """Store records as dead letters. Returns False if the lease must be released first."""
        for record in records:
            if not await self._store_dead_letter(self._make_dead_letter(record, disposal)):
                return False
            self._shard.observe(RecordDeadLettered(self._held.shard, record.position, disposal.error_type))
        return True

    async def _pin(self, batch: Batch, disposal: Disposal) -> None:
        """Pin the records before their letters are stored: the next owner then never passes them to its handler.

        With manual checkpoints, a pin is possible only if user code has checkpointed everything before the records.
        """
        checkpoints = self._shard.checkpoints
        if checkpoints.is_automatic or batch.start <= checkpoints.progress.stored:
            await checkpoints.prepare(batch.start, batch.end, disposal_to_state(disposal))

    def _make_dead_letter(self, record: UserRecord, disposal: Disposal) -> DeadLetter:
        return DeadLetter(
            self._context.application,
            self._shard.stream,
            self._held.shard,
            record,
            disposal.error_type,
            disposal.error_message,
            disposal.attempts,
            self._context.clock.wall_ms(),
        )

    async def _store_dead_letter(self, letter: DeadLetter) -> bool:
        """Retry until the letter is stored. The shard waits, because a lost letter would be a lost record."""
        attempt = 1
        while (problem := await self._try_to_store(letter)) is not None:
            self._shard.observe(OperationFailed(f"dead letter of {self._held.lease.key}", problem))
            if self._held.draining.is_set():
                return False
            wait_ms = retry_wait_ms(attempt, self._errors, self._context.rng.random())
            await first_of(self._context.clock.sleep_ms(wait_ms), self._held.draining.wait())
            attempt += 1
        return True

    async def _try_to_store(self, letter: DeadLetter) -> str | None:
        """Return None on success, or the problem in a form that is safe to log."""
        self._held.note_progress()
        function = self._errors.dead_letters
        if callable(function):
            outcome = await self._shard.runner.call(function, letter)
            return type(outcome.error).__name__ if isinstance(outcome, Raised) else None
        assert self._context.dead_letters is not None
        try:
            await self._context.dead_letters.put(letter)
        except LeaseholdError as error:
            return str(error)
        return None

    def _handler_error(self, batch: Batch, error: Exception) -> HandlerError:
        first, last = batch.records[0].position, batch.records[-1].position
        records = f"record {first}" if len(batch) == 1 else f"the records {first} to {last}"
        stopped = HandlerError(
            f"the handler failed {batch.attempt} times on {records} of shard {self._held.lease.key} "
            f"({type(error).__name__}): correct it, or set dead_letters to store such records elsewhere; no record was "
            "skipped"
        )
        stopped.__cause__ = error
        return stopped
