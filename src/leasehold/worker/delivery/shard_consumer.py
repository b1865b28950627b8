"""The interface between the engine and the kinds of handlers: functions, a processor class, an iteration."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from leasehold.core.model import ChildShard
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.delivery.served_shard import ServedShard


class ShardConsumer(Protocol):
    """Delivers one shard to user code during one lease session."""

    async def start(self) -> None:
        """Prepare for the first record."""
        ...

    def background(self) -> Coroutine[Any, Any, object] | None:
        """Return what runs beside the other methods during the lease session, if anything. Its errors end the session.

        It is cancelled at the end of the session.
        """
        return None

    @property
    def wants_idle_pages(self) -> bool:
        """Whether the consumer also gets batches without records that do not move the position."""
        return False

    async def handle(self, pending: PendingBatch) -> None:
        """Deliver one batch. Returns when the next one may come, or early if the lease must be released."""
        ...

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        """Store the end of the shard, if all of its records are done."""
        ...

    async def shut_down(self) -> None:
        """Finish before the lease is released. Everything that is done by then is stored afterwards."""
        ...

    def lease_lost(self) -> None:
        """Stop, because the lease is lost and nothing can be stored."""
        ...


class HandlerKind(Protocol):
    """One way to write a handler. Creates a consumer for each shard."""

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Create the consumer of one shard for one lease session."""
        ...

    async def close(self) -> None:
        """End what outlives a lease session. Called when the worker has released all leases."""
        return
