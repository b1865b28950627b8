"""Delivers a shard to a record processor of the MultiLang kind: initialize, records, and one of three ends.

The processor alone moves the checkpoint. A processor that fails ends the lease session: the shard is released and
begins again from its checkpoint, here or at another member, with a new processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.core.events import HandlerFailed, ProcessorCalled
from leasehold.core.model import ChildShard
from leasehold.core.multilang.checkpoint_rules import (
    AlreadyStored,
    Refuse,
    StoreAt,
    StoreShardEnd,
    decide_checkpoint,
    error_name,
)
from leasehold.core.multilang.messages import (
    Action,
    ActionName,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
)
from leasehold.errors import LeaseholdError, LeaseLostError, ProcessorEndedError
from leasehold.multilang.processor_client import ProcessorClients
from leasehold.tasks import first_of
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.delivery.poison_search import retry_wait_ms
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLangHandler(HandlerKind):
    """Delivers each shard to a processor of its own."""

    clients: ProcessorClients
    with_empty_batches: bool = False  # also call the processor if a read returned no records
    stop_at_failure: bool = False  # a processor that fails stops the worker, as it stops the Java daemon

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Create the consumer that speaks with the processor of one shard."""
        return _MultiLangConsumer(shard, self)

    async def close(self) -> None:
        """Wait a while until all processors have ended."""
        await self.clients.close()


class _MultiLangConsumer(ShardConsumer):
    def __init__(self, shard: ServedShard, handler: MultiLangHandler) -> None:
        self._shard = shard
        self._held = shard.held
        self._checkpoints = shard.checkpoints
        self._context = shard.context
        self._handler = handler
        self._client = handler.clients(shard, self._execute)
        self._children: Sequence[ChildShard] = ()
        self._is_initialized = False
        # What the processor had got when the action began that it performs now.
        self._delivered_before = shard.checkpoints.progress.delivered

    async def start(self) -> None:
        try:
            await self._client.start()
        except ProcessorEndedError as error:
            self._stop_worker_if_asked(error)
            raise
        await self._perform(Initialize(self._held.shard, self._held.lease.checkpoint))
        self._is_initialized = True

    @property
    def wants_idle_pages(self) -> bool:
        return self._handler.with_empty_batches

    async def handle(self, pending: PendingBatch) -> None:
        is_call = bool(pending.records) or (self._handler.with_empty_batches and not pending.ends_shard)
        if not is_call:
            await self._checkpoints.pass_over(pending)
            return
        if not self._held.is_valid():
            raise LeaseLostError(
                f"lease {self._held.lease.key} may have another owner by now: its processor gets no more records"
            )
        self._delivered_before = self._checkpoints.progress.delivered
        in_flight = self._checkpoints.begin(pending)
        began_ms = self._context.clock.now_ms()
        await self._perform(ProcessRecords(pending.records, pending.millis_behind))
        if pending.records:
            self._shard.report_handled(pending.records, pending.end, pending.millis_behind, began_ms)
        await self._checkpoints.finish(in_flight)
        self._delivered_before = self._checkpoints.progress.delivered

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        """Send `shardEnded` until the processor has checkpointed: otherwise the children of the shard never start."""
        self._children = children
        attempt = 1
        while not self._held.draining.is_set():
            await self._perform(ShardEnded())
            if self._held.has_ended:
                self._client.end()
                return
            done = self._checkpoints.progress.done
            self._shard.observe(HandlerFailed(self._held.shard, done, done, 0, attempt, "NoCheckpoint"))
            wait_ms = retry_wait_ms(attempt, self._context.settings.errors, self._context.rng.random())
            await first_of(self._context.clock.sleep_ms(wait_ms), self._held.draining.wait())
            attempt += 1

    async def shut_down(self) -> None:
        if self._is_initialized:
            await self._perform(ShutdownRequested())
            await self._perform(LeaseLost())
        self._client.end()

    def lease_lost(self) -> None:
        self._client.lose()

    async def _perform(self, action: Action) -> None:
        self._held.note_progress()
        began_ms = self._context.clock.now_ms()
        try:
            await self._client.perform(action)
        except ProcessorEndedError as error:
            self._stop_worker_if_asked(error)
            raise
        self._held.note_progress()
        if not isinstance(action, ProcessRecords):
            took_ms = self._context.clock.now_ms() - began_ms
            self._shard.observe(ProcessorCalled(self._held.shard, action.name.name.lower(), took_ms))

    def _stop_worker_if_asked(self, error: ProcessorEndedError) -> None:
        if self._handler.stop_at_failure:
            self._context.stop_worker(error)

    async def _execute(self, request: CheckpointRequest, during: ActionName) -> str | None:
        """Execute a checkpoint. Returns the KCL's name of the error, or None."""
        self._held.note_progress()
        progress = self._checkpoints.progress
        # A request that was written before the action does not know its records: to store their end would lose them.
        delivered = self._delivered_before if request.is_early else progress.delivered
        decision = decide_checkpoint(request, during, stored=progress.stored, delivered=delivered)
        try:
            match decision:
                case StoreAt(position):
                    await self._checkpoints.store(position)
                case StoreShardEnd() if not self._held.has_ended:
                    await self._checkpoints.end_shard(self._children)
                case StoreShardEnd() | AlreadyStored():
                    pass
                case Refuse(error):
                    return error
        except LeaseholdError as error:
            return error_name(error)
        return None
