"""Handlers that are classes with the KCL's life cycle: one object for each shard and lease session.

The callbacks come in the order of the Java KCL:

    initialize, process_records*, then one of
        lease_lost                       another member owns the shard
        shard_ended                      must call checkpoint(), or the children never start
        shutdown_requested, lease_lost   the worker stops, or the lease is handed over

Calls never overlap. Unlike the KCL, a `process_records` that raises is not skipped: the consumer's error settings
apply. Only the class itself makes checkpoints.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from leasehold.core.events import HandlerFailed, ProcessorCalled
from leasehold.core.model import ChildShard, ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.errors import CheckpointRejectedError, own_sentence
from leasehold.worker.batch import Batch, PreparedCheckpoint
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.delivery.poison_search import retry_wait_ms
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer
from leasehold.worker.user_code.engine_calls import EngineCalls
from leasehold.worker.user_code.handler_runners import Function, Outcome, Raised, Returned


class Checkpointer:
    """Stores how far a shard is done. In plain code a call returns when the write is done; in async code, await it."""

    def __init__(self, checkpoints: Checkpoints, engine: EngineCalls) -> None:
        self._checkpoints = checkpoints
        self._engine = engine
        self._delivered_through: Position | None = None
        self._children: Sequence[ChildShard] | None = None

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int = 0) -> Awaitable[None]:
        """Store that everything up to this record is done; without arguments, that all delivered records are done.

        In `shard_ended` it takes no arguments, and stores the end of the shard.
        """
        return self._engine.run(self._store(self._position(sequence_number, sub_sequence_number)))

    def prepare_checkpoint(
        self,
        sequence_number: str | None = None,
        sub_sequence_number: int = 0,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        """Write the first half of a two-phase checkpoint. Call `commit()` on the result for the second half.

        Without the second half, the next owner gets the position and the state in its `initialize`.
        """
        at = self._position(sequence_number, sub_sequence_number)
        checkpoints = self._checkpoints
        return PreparedCheckpoint(
            self._engine,
            checkpoints.prepare(checkpoints.progress.stored, at, state),
            lambda: self._store(at),
        )

    def allow_up_to(self, end: Position | None) -> None:
        """Allow checkpoints up to the end of the batch that is being processed; None when its call has ended."""
        self._delivered_through = end

    def allow_shard_end(self, children: Sequence[ChildShard] | None) -> None:
        """Let a checkpoint store the end of the shard; None when `shard_ended` has ended."""
        self._children = children

    async def _store(self, at: Position) -> None:
        if self._children is not None and at >= self._limit():
            await self._checkpoints.end_shard(self._children)
        else:
            await self._checkpoints.store(at)

    def _limit(self) -> Position:
        return self._delivered_through or self._checkpoints.progress.done

    def _position(self, sequence_number: str | None, sub_sequence_number: int) -> Position:
        limit = self._limit()
        if sequence_number is None:
            return limit
        at = Position(sequence_number, sub_sequence_number)
        if at > limit:
            raise CheckpointRejectedError(
                f"shard {self._checkpoints.held.lease.key}: {at} is beyond {limit}, the last record that was delivered"
            )
        return at


@dataclass(frozen=True, slots=True)
class InitializeInput:
    """A shard and its start: after this record, or at a sentinel such as TRIM_HORIZON."""

    shard_id: ShardId
    sequence_number: str
    sub_sequence_number: int
    # The checkpoint that an earlier owner prepared and did not commit. The class must find out whether its effect
    # took place.
    pending_checkpoint: Position | None
    pending_state: bytes | None
    stream: str = ""  # as named in the settings


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    """Records in shard order. `batch` has the same records, and the fencing token."""

    records: tuple[UserRecord, ...]
    millis_behind_latest: int | None
    checkpointer: Checkpointer
    batch: Batch


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    """The member no longer owns the shard. Nothing can be stored any more."""


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    """The shard has no more records."""

    checkpointer: Checkpointer


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The lease is released after this call: checkpoint what is done."""

    checkpointer: Checkpointer


class RecordProcessor:
    """The KCL's interface, with methods that do nothing. Each method may be plain or async."""

    def initialize(self, initialize_input: InitializeInput) -> object:
        """Called before the first records, and again if it raised."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> object:
        """Called with records, in order. If it raises, they are not done."""
        raise NotImplementedError(f"{type(self).__name__} has no process_records")

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> object:
        """Called when this member no longer owns the shard. Nothing can be stored."""

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> object:
        """Called at the end of the shard. Must checkpoint, and is called again until it has."""
        return shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> object:
        """Called before the worker stops or hands the lease over: the last chance to checkpoint."""


ProcessorFactory = Callable[[], RecordProcessor]


@dataclass(frozen=True, slots=True)
class ProcessorHandler(HandlerKind):
    """Delivers shards to objects that a factory makes, one for each shard and lease session."""

    make: ProcessorFactory

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Create the consumer that calls a new object for one shard."""
        return _ProcessorConsumer(shard, self.make)


class _ProcessorConsumer(RetryingConsumer):
    def __init__(self, shard: ServedShard, make: ProcessorFactory) -> None:
        super().__init__(shard)
        self._make = make
        self._processor: RecordProcessor | None = None
        self._checkpointer = Checkpointer(shard.checkpoints, shard.engine)

    async def start(self) -> None:
        """Call `initialize` until it succeeds, as the KCL does: no record is lost by waiting."""
        await self._retry(self._initialize)

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        if not self._checkpoints.progress.is_all_done:
            return
        self._checkpointer.allow_shard_end(children)
        await self._retry(self._call_shard_ended)
        self._checkpointer.allow_shard_end(None)

    async def shut_down(self) -> None:
        if self._processor is None:
            return
        for method, argument in (
            ("shutdown_requested", ShutdownRequestedInput(self._checkpointer)),
            ("lease_lost", LeaseLostInput()),
        ):
            outcome = await self._call_method(method, argument)
            if isinstance(outcome, Raised):
                self._report_callback_failure(outcome, 1)

    def lease_lost(self) -> None:
        if self._processor is not None:
            self._shard.runner.post(self._processor.lease_lost, LeaseLostInput())

    def _handler_call(self, batch: Batch) -> tuple[Function, object]:
        assert self._processor is not None
        self._checkpointer.allow_up_to(batch.end)
        argument = ProcessRecordsInput(batch.records, batch.millis_behind, self._checkpointer, batch)
        return self._processor.process_records, argument

    def _check_outcome(self, batch: Batch, outcome: Outcome) -> Outcome:  # noqa: ARG002 - as in the base class
        # From now on `checkpoint()` without arguments stores only batches that are done, not one that has failed.
        self._checkpointer.allow_up_to(None)
        return outcome

    async def _initialize(self) -> Outcome:
        if self._processor is None:
            made = await self._call(self._make)
            if isinstance(made, Raised):
                return made
            self._processor = cast("RecordProcessor", made.value)
        checkpoint, pin = self._held.lease.checkpoint, self._shard.prepared
        return await self._call_method(
            "initialize",
            InitializeInput(
                self._held.shard,
                checkpoint.sequence_number,
                checkpoint.sub_sequence_number,
                pin.end if pin else None,
                pin.state if pin else None,
                self._shard.stream,
            ),
        )

    async def _call_shard_ended(self) -> Outcome:
        outcome = await self._call_method("shard_ended", ShardEndedInput(self._checkpointer))
        if isinstance(outcome, Returned) and not self._held.has_ended:
            return Raised(
                CheckpointRejectedError(
                    f"shard_ended of {self._held.lease.key} returned without a checkpoint"
                )
            )
        return outcome

    async def _call_method(self, method: str, argument: object) -> Outcome:
        began_ms = self._context.clock.now_ms()
        outcome = await self._call(getattr(self._processor, method), argument)
        if isinstance(outcome, Returned):
            took_ms = self._context.clock.now_ms() - began_ms
            self._shard.observe(ProcessorCalled(self._held.shard, method, took_ms))
        return outcome

    async def _call(self, function: Function, *arguments: object) -> Outcome:
        async with self._context.handler_slots:
            self._held.note_progress()
            outcome = await self._shard.runner.call(function, *arguments)
        self._held.note_progress()
        return Raised(self._shard.require_retryable(outcome)) if isinstance(outcome, Raised) else outcome

    async def _retry(self, call: Callable[[], Awaitable[Outcome]]) -> None:
        """Repeat a call until it succeeds or the lease must be released."""
        attempt = 1
        while isinstance(outcome := await call(), Raised):
            self._report_callback_failure(outcome, attempt)
            await self._shard.pause(retry_wait_ms(attempt, self._errors, self._context.rng.random()))
            if self._held.draining.is_set():
                return
            attempt += 1

    def _report_callback_failure(self, outcome: Raised, attempt: int) -> None:
        done = self._checkpoints.progress.done
        name, reason = type(outcome.error).__name__, own_sentence(outcome.error)
        self._shard.observe(HandlerFailed(self._held.shard, done, done, 0, attempt, name, reason))
