"""A function as the handler of batches: returning means done, raising means not done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from leasehold.core.model import ChildShard
from leasehold.errors import HandlerError
from leasehold.worker.batch import Batch
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.delivery.served_shard import HandlerKind, ServedShard, ShardConsumer
from leasehold.worker.user_code.handler_runners import Function, Outcome, Raised, Returned


@dataclass(frozen=True, slots=True)
class BatchHandler(HandlerKind):
    """Batches go to one function, plain or async."""

    function: Function

    def shard_consumer(self, shard: ServedShard) -> ShardConsumer:
        """One shard's batches, to that function."""
        return _FunctionConsumer(shard, self.function)


class _FunctionConsumer(ShardConsumer):
    def __init__(self, shard: ServedShard, function: Function) -> None:
        self._shard = shard
        self._function = function
        self._delivery = RetryingConsumer(shard, self._attempt)

    async def begin(self) -> None:
        """A function has no beginning."""

    async def take(self, cut: PendingBatch) -> None:
        accounting = self._shard.accounting
        if not cut.records and (accounting.checkpoints.is_automatic or not cut.ends_shard):
            await accounting.pass_over(cut)
            return
        portion = accounting.give(cut)
        if await self._delivery.deliver(cut, portion):
            await accounting.finish(portion)

    async def end(self, children: Sequence[ChildShard]) -> None:
        checkpoints = self._shard.accounting.checkpoints
        if not checkpoints.progress.is_all_done:
            return  # the lease is wanted back
        if not checkpoints.is_automatic and not self._has_stored_all():
            raise _end_not_stored(self._shard)
        await checkpoints.end_shard(children)

    async def drained(self) -> None:
        """What has returned is done; there is nobody to tell."""

    def lost(self) -> None:
        """Its thread, if it runs, ends by itself; what it returns is of no interest."""

    async def _attempt(self, batch: Batch) -> Outcome:
        outcome = await self._shard.runner.call(self._function, batch)
        if isinstance(outcome, Returned) and batch.ends_shard and not self._may_return(batch):
            return Raised(_end_not_stored(self._shard))
        return outcome

    def _may_return(self, batch: Batch) -> bool:
        checkpoints = self._shard.accounting.checkpoints
        return checkpoints.is_automatic or checkpoints.progress.stored >= batch.end

    def _has_stored_all(self) -> bool:
        progress = self._shard.accounting.checkpoints.progress
        return progress.stored >= progress.given


def _end_not_stored(shard: ServedShard) -> HandlerError:
    return HandlerError(
        f"shard {shard.accounting.held.lease.key}: with manual checkpoints a handler must call batch.checkpoint() when "
        "batch.ends_shard is true; until then the shard's children cannot begin"
    )
