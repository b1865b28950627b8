"""The KCL's life-cycle class: one object a shard and holding, called in the order that the Java KCL keeps.

    initialize, process_records*, then one of
        lease_lost                       another member has the shard
        shard_ended                      must call checkpoint(), or the children never begin
        shutdown_requested, lease_lost   the worker stops, or the lease is handed over

Calls never overlap. Unlike the KCL, a `process_records` that raises is not skipped: the consumer's error policy
applies. Checkpoints are made by the class alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from leasehold.core.events import HandlerFailed, ProcessorCalled
from leasehold.core.model import ChildShard, ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.errors import CheckpointRejectedError
from leasehold.worker.batch import Batch, PreparedCheckpoint, ShardAccounting
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.retry_policy import retry_wait_ms
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.delivery.served_shard import HandlerKind, ServedShard, ShardConsumer
from leasehold.worker.user_code.handler_runners import Function, Outcome, Raised, Returned
from leasehold.worker.waiting import first_of


class Checkpointer:
    """Says how far a shard is done. In plain code a call returns when that is stored; in async code, await it."""

    def __init__(self, accounting: ShardAccounting) -> None:
        self._desk = accounting
        self._in_hand: Position | None = None
        self._children: Sequence[ChildShard] | None = None

    def checkpoint(self, sequence_number: str | None = None, sub_sequence_number: int = 0) -> Awaitable[None]:
        """Everything up to this record is done; without arguments: everything that was delivered.

        In `shard_ended` it takes no arguments, and stores the end of the shard.
        """
        return self._desk.engine.run(self._store(self._position(sequence_number, sub_sequence_number)))

    def prepare_checkpoint(
        self,
        sequence_number: str | None = None,
        sub_sequence_number: int = 0,
        state: bytes | None = None,
    ) -> PreparedCheckpoint:
        """The first half of a two-phase checkpoint; `commit()` of the result is the second.

        If it never comes, the next owner finds position and state in its `initialize`.
        """
        at = self._position(sequence_number, sub_sequence_number)
        checkpoints = self._desk.checkpoints
        return PreparedCheckpoint(
            self._desk.engine,
            checkpoints.prepare(checkpoints.progress.stored, at, state),
            lambda: self._store(at),
        )

    def deliver_up_to(self, end: Position | None) -> None:
        """These records are in hand; None: they came back."""
        self._in_hand = end

    def deliver_end(self, children: Sequence[ChildShard] | None) -> None:
        """The shard's end is in hand; None: it came back."""
        self._children = children

    async def _store(self, at: Position) -> None:
        """At the end of a shard, everything delivered means the end itself."""
        if self._children is not None and at >= self._permitted():
            await self._desk.checkpoints.end_shard(self._children)
        else:
            await self._desk.checkpoints.store(at)

    def _permitted(self) -> Position:
        return self._in_hand or self._desk.checkpoints.progress.done

    def _position(self, sequence_number: str | None, sub_sequence_number: int) -> Position:
        permitted = self._permitted()
        if sequence_number is None:
            return permitted
        at = Position(sequence_number, sub_sequence_number)
        if at > permitted:
            raise CheckpointRejectedError(
                f"shard {self._desk.held.lease.key}: {at} is beyond {permitted}, the last record that was delivered"
            )
        return at


@dataclass(frozen=True, slots=True)
class InitializeInput:
    """A shard, and where its reading begins: after this record, or at a sentinel such as TRIM_HORIZON."""

    shard_id: ShardId
    sequence_number: str
    sub_sequence_number: int
    # What an earlier owner prepared and did not commit: it is up to this class to find out whether it happened.
    pending_checkpoint: Position | None
    pending_state: bytes | None
    stream: str = ""  # what the settings call it


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    """Records in shard order. `batch` holds the same records, and the token."""

    records: tuple[UserRecord, ...]
    millis_behind_latest: int | None
    checkpointer: Checkpointer
    batch: Batch


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    """Another member has the shard, or will have it. Nothing can be stored any more."""


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    """There are no more records in this shard."""

    checkpointer: Checkpointer


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The lease goes to another member in good order: store what is done."""

    checkpointer: Checkpointer


class RecordProcessor:
    """The KCL's interface, with methods that do nothing. Each may be plain or async."""

    def initialize(self, initialize_input: InitializeInput) -> object:
        """Called once, before the first records; again after it raised."""

    def process_records(self, process_records_input: ProcessRecordsInput) -> object:
        """Called with records, in order. Raising means that they are not done."""
        raise NotImplementedError(f"{type(self).__name__} has no process_records")

    def lease_lost(self, lease_lost_input: LeaseLostInput) -> object:
        """Called when the shard is no longer served here. Nothing can be stored."""

    def shard_ended(self, shard_ended_input: ShardEndedInput) -> object:
        """Called at the end of the shard. Must checkpoint; called again until it has."""
        return shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> object:
        """Called when the worker stops or the lease is handed over: the last chance to checkpoint."""


ProcessorFactory = Callable[[], RecordProcessor]


@dataclass(frozen=True, slots=True)
class ProcessorHandler(HandlerKind):
    """Shards go to objects that the factory makes, one a shard and holding."""

    make: ProcessorFactory

    def shard_consumer(self, shard: ServedShard) -> ShardConsumer:
        """One shard, to a new object."""
        return _ProcessorConsumer(shard, self.make)


class _ProcessorConsumer(ShardConsumer):
    def __init__(self, shard: ServedShard, make: ProcessorFactory) -> None:
        self._shard = shard
        self._held = shard.accounting.held
        self._make = make
        self._processor: RecordProcessor | None = None
        self._checkpointer = Checkpointer(shard.accounting)
        self._delivery = RetryingConsumer(shard, self._attempt)

    async def begin(self) -> None:
        """Until it succeeds, as in the KCL: no record is lost by waiting."""
        await self._until_it_works(self._try_to_begin)

    async def take(self, cut: PendingBatch) -> None:
        accounting = self._shard.accounting
        if not cut.records:
            await accounting.pass_over(cut)
            return
        portion = accounting.give(cut)
        if await self._delivery.deliver(cut, portion):
            await accounting.finish(portion)

    async def end(self, children: Sequence[ChildShard]) -> None:
        if not self._shard.accounting.checkpoints.progress.is_all_done:
            return
        self._checkpointer.deliver_end(children)
        await self._until_it_works(self._try_to_end)
        self._checkpointer.deliver_end(None)

    async def drained(self) -> None:
        if self._processor is None:
            return
        for method, argument in (
            ("shutdown_requested", ShutdownRequestedInput(self._checkpointer)),
            ("lease_lost", LeaseLostInput()),
        ):
            outcome = await self._call_method(method, argument)
            if isinstance(outcome, Raised):
                self._tell_failed(outcome, 1)

    def lost(self) -> None:
        if self._processor is not None:
            self._shard.runner.post(self._processor.lease_lost, LeaseLostInput())

    async def _attempt(self, batch: Batch) -> Outcome:
        assert self._processor is not None
        given = ProcessRecordsInput(batch.records, batch.millis_behind, self._checkpointer, batch)
        self._checkpointer.deliver_up_to(batch.end)
        outcome = await self._shard.runner.call(self._processor.process_records, given)
        # From here on "everything delivered" is what has returned: a failed batch must not be passed over.
        self._checkpointer.deliver_up_to(None)
        return outcome

    async def _try_to_begin(self) -> Outcome:
        if self._processor is None:
            made = await self._call(self._make)
            if isinstance(made, Raised):
                return made
            self._processor = cast("RecordProcessor", made.value)
        lease, pin = self._held.lease, self._shard.pin
        return await self._call_method(
            "initialize",
            InitializeInput(
                self._held.shard,
                lease.checkpoint.sequence_number,
                lease.checkpoint.sub_sequence_number,
                pin.end if pin else None,
                pin.state if pin else None,
                self._shard.context.stream,
            ),
        )

    async def _try_to_end(self) -> Outcome:
        outcome = await self._call_method("shard_ended", ShardEndedInput(self._checkpointer))
        if isinstance(outcome, Returned) and not self._held.ended:
            return Raised(
                CheckpointRejectedError(
                    f"shard_ended of {self._held.lease.key} returned without a checkpoint"
                )
            )
        return outcome

    async def _call_method(self, method: str, argument: object) -> Outcome:
        context = self._shard.context
        began_ms = context.clock.now_ms()
        outcome = await self._call(getattr(self._processor, method), argument)
        if isinstance(outcome, Returned):
            took_ms = context.clock.now_ms() - began_ms
            context.observe(ProcessorCalled(self._held.shard, method, took_ms))
        return outcome

    async def _call(self, function: Function, *arguments: object) -> Outcome:
        async with self._shard.context.handlers:
            self._held.note_progress()
            outcome = await self._shard.runner.call(function, *arguments)
        self._held.note_progress()
        return Raised(self._shard.failure_of(outcome)) if isinstance(outcome, Raised) else outcome

    async def _until_it_works(self, attempt_to: Callable[[], Awaitable[Outcome]]) -> None:
        """Try again and again, until the lease is wanted back."""
        context, attempt = self._shard.context, 1
        while isinstance(outcome := await attempt_to(), Raised):
            self._tell_failed(outcome, attempt)
            wait_ms = retry_wait_ms(attempt, context.settings.errors, context.rng.random())
            await first_of(context.clock.sleep_ms(wait_ms), self._held.draining.wait())
            if self._held.draining.is_set():
                return
            attempt += 1

    def _tell_failed(self, outcome: Raised, attempt: int) -> None:
        done = self._shard.accounting.checkpoints.progress.done
        self._shard.context.observe(
            HandlerFailed(self._held.shard, done, done, 0, attempt, type(outcome.error).__name__)
        )
