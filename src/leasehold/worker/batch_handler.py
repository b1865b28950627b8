"""Handlers that are functions: a batch is done when the function returns, and not done when it raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leasehold.core.model import ChildShard
from leasehold.errors import HandlerError
from leasehold.worker.batch import Batch
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer
from leasehold.worker.user_code.handler_runners import Function, Outcome, Raised, Returned, is_async


@dataclass(frozen=True, slots=True)
class BatchHandler(HandlerKind):
    """Delivers batches to one function, plain or async."""

    function: Function
    is_columnar: bool = False  # the function gets a `pyarrow.RecordBatch` instead of a `Batch`

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Create the consumer that calls the function for one shard."""
        function = _with_arrow(self.function) if self.is_columnar else self.function
        return _FunctionConsumer(shard, function)


def _with_arrow(function: Function) -> Function:
    """The function with its argument converted, on the thread or the loop that runs the function."""
    if not is_async(function):
        return lambda batch: function(batch.to_arrow())

    async def call(batch: Batch) -> object:
        result: Any = function(batch.to_arrow())
        return await result

    return call


class _FunctionConsumer(RetryingConsumer):
    def __init__(self, shard: ServedShard, function: Function) -> None:
        super().__init__(shard)
        self._function = function

    async def start(self) -> None:
        """A function needs no start."""

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        checkpoints = self._checkpoints
        if not checkpoints.progress.is_all_done:
            return  # the lease must be released before that
        if not checkpoints.is_automatic and checkpoints.progress.stored < checkpoints.progress.delivered:
            raise self._end_not_stored()
        await checkpoints.end_shard(children)

    async def shut_down(self) -> None:
        """All batches that returned are done already."""

    def lease_lost(self) -> None:
        """A running call ends by itself, and its result is ignored."""

    def _needs_handler(self, pending: PendingBatch) -> bool:
        """With manual checkpoints the function also gets an empty last batch, since it must checkpoint the end."""
        return bool(pending.records) or (pending.ends_shard and not self._checkpoints.is_automatic)

    def _handler_call(self, batch: Batch) -> tuple[Function, object]:
        return self._function, batch

    def _check_outcome(self, batch: Batch, outcome: Outcome) -> Outcome:
        checkpoints = self._checkpoints
        is_stored = checkpoints.is_automatic or checkpoints.progress.stored >= batch.end
        if isinstance(outcome, Returned) and batch.ends_shard and not is_stored:
            return Raised(self._end_not_stored())
        return outcome

    def _end_not_stored(self) -> HandlerError:
        return HandlerError(
            f"shard {self._held.lease.key}: with manual checkpoints a handler must call batch.checkpoint() when "
            "batch.ends_shard is true; until then the shard's children cannot start"
        )
