"""One shard during one lease session: what the three kinds of handlers have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leasehold.core.events import BatchHandled, Observer
from leasehold.core.model import Pin
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.core.records.record_columns import as_user_records
from leasehold.errors import HandlerError, LeaseLostError, MalformedRowError, ServiceError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.chunking import payload_bytes
from leasehold.ports import Clock
from leasehold.tasks import first_of
from leasehold.worker.batch import Batch
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.checkpointing.progress import InFlightBatch
from leasehold.worker.dead_letters import DeadLetters
from leasehold.worker.delivery.disposals import disposal_from_state
from leasehold.worker.delivery.poison_search import RetryRange
from leasehold.worker.settings import HandlingSettings
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.user_code.handler_runners import HandlerRunner, Raised


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all shards of a worker share."""

    application: str
    settings: HandlingSettings
    dead_letters: DeadLetters | None
    handler_slots: asyncio.Semaphore  # limits the handlers that run at one time
    clock: Clock
    rng: random.Random
    observe: Observer
    stop_worker: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class ServedShard:
    """A shard, its lease, its checkpoints, and the runner of its user code."""

    stream: str
    held: HeldLease
    checkpoints: Checkpoints
    runner: HandlerRunner
    engine: EngineCalls
    context: WorkerContext
    observe: Observer  # adds the stream to each event
    pin: Pin | None  # what an earlier owner pinned and did not complete

    @property
    def prepared(self) -> Pin | None:
        """The checkpoint that user code of an earlier owner prepared and did not commit."""
        return None if self.pin is None or disposal_from_state(self.pin.state) else self.pin

    def is_prepared(self, batch: Batch) -> bool:
        """Whether user code has prepared a checkpoint for records of this batch: their effect may exist."""
        pin = self.checkpoints.progress.prepared_within(batch.start, batch.end)
        return pin is not None and disposal_from_state(pin.state) is None

    def make_batch(
        self, pending: PendingBatch, in_flight: InFlightBatch, part: RetryRange | None = None
    ) -> Batch:
        """Make the `Batch` for user code, of all or of a part of a pending batch."""
        part = part or RetryRange(0, len(pending.records))
        is_start, is_end = part.first == 0, part.stop == len(pending.records)
        start = pending.start if is_start else pending.records[part.first - 1].position
        end = pending.end if is_end else pending.records[part.stop - 1].position
        pin = self.checkpoints.progress.prepared_for(start, end)
        return Batch(
            self.stream,
            self.held.shard,
            as_user_records(pending.records[part.first : part.stop]),
            start,
            end,
            self.held.fencing_token,
            pending.millis_behind,
            part.attempt,
            pending.ends_shard and is_end,
            None if pin is None or disposal_from_state(pin.state) else pin,
            _checkpoints=self.checkpoints,
            _in_flight=in_flight,
            _engine=self.engine,
        )

    def require_retryable(self, outcome: Raised) -> Exception:
        """Return the error that user code raised. Raises if the shard must not go on.

        A lost lease and an unwritable row come from a manual checkpoint. They say nothing about the records, so the
        records must not be treated as poison.
        """
        error = outcome.error
        if isinstance(error, LeaseLostError | MalformedRowError | ServiceError):
            raise error
        if isinstance(error, Exception):
            return error
        # SystemExit and KeyboardInterrupt end the program.
        self.context.stop_worker(error)
        raise HandlerError(
            f"user code of shard {self.held.lease.key} raised {type(error).__name__}"
        ) from error

    def report_handled(
        self, records: Sequence[UserRecord], end: Position, millis_behind: int | None, began_ms: int
    ) -> None:
        """Report that a handler has finished these records."""
        self.observe(
            BatchHandled(
                self.held.shard,
                len(records),
                payload_bytes(records),
                end,
                self.context.clock.now_ms() - began_ms,
                millis_behind,
            )
        )

    async def pause(self, wait_ms: int) -> None:
        """Wait before a retry, or until the lease must be released."""
        await first_of(self.context.clock.sleep_ms(wait_ms), self.held.draining.wait())

    def close(self) -> None:
        """End the lease session: nothing can be stored, nothing is buffered, and user code gets no more calls."""
        self.checkpoints.close()
        self.runner.close()
