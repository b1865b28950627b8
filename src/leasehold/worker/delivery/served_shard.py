"""One shard while it is served: everything that the ways of giving it to user code have in common."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from leasehold.core.events import Observer
from leasehold.core.model import ChildShard, Pin
from leasehold.errors import HandlerError, LeaseLostError, MalformedRowError, ServiceError
from leasehold.ports import Clock
from leasehold.worker.batch import Batch, ShardAccounting
from leasehold.worker.dead_letters import DeadLetters
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.progress import InFlightBatch
from leasehold.worker.delivery.retry_policy import RetryRange
from leasehold.worker.settings import HandlingSettings
from leasehold.worker.user_code.handler_runners import HandlerRunner, Raised


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all shards of a worker share; `stream` and `observe` are those of the shard's stream."""

    stream: str
    application: str
    settings: HandlingSettings
    dead_letters: DeadLetters | None
    handlers: asyncio.Semaphore
    clock: Clock
    rng: random.Random
    observe: Observer
    stop_worker: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class ServedShard:
    """A shard, its lease, and the lane in which its user code runs."""

    accounting: ShardAccounting
    runner: HandlerRunner
    context: WorkerContext
    pin: Pin | None  # that a former owner left

    def failure_of(self, outcome: Raised) -> Exception:
        """What user code raised, if the shard can live with it.

        That the lease is lost, or that its row cannot be written, came through a checkpoint by hand. It says nothing
        about the records: put aside, they would be sound ones.
        """
        error = outcome.error
        if isinstance(error, LeaseLostError | MalformedRowError | ServiceError):
            raise error
        if isinstance(error, Exception):
            return error
        # SystemExit and its like: the program wants to end.
        self.context.stop_worker(error)
        raise HandlerError(
            f"user code of shard {self.accounting.held.lease.key} raised {type(error).__name__}"
        ) from error

    def close(self) -> None:
        """The shard is served no longer: nothing can be stored, nothing is buffered, no call will come."""
        self.accounting.checkpoints.close()
        self.accounting.allowance.settle()
        self.runner.close()

    def batch(self, cut: PendingBatch, portion: InFlightBatch, piece: RetryRange | None = None) -> Batch:
        """What user code is given: a whole batch, or a piece of it."""
        piece = piece or RetryRange(0, len(cut.records))
        held = self.accounting.held
        is_end = piece.stop == len(cut.records)
        is_start = piece.first == 0
        return Batch(
            self.context.stream,
            held.shard,
            cut.records[piece.first : piece.stop],
            cut.start if is_start else cut.records[piece.first - 1].position,
            cut.end if is_end else cut.records[piece.stop - 1].position,
            held.fencing_token,
            cut.millis_behind,
            piece.attempt,
            cut.ends_shard and is_end,
            self.pin if cut.is_pinned and is_start and is_end else None,
            _desk=self.accounting,
            _portion=portion,
        )


class ShardConsumer(Protocol):
    """A way of giving one shard to user code, from the first record to the end of this holding."""

    async def begin(self) -> None:
        """Before the first record."""
        ...

    async def take(self, cut: PendingBatch) -> None:
        """One batch. Returns when the next one may come; the end of the lease may cut it short."""
        ...

    async def end(self, children: Sequence[ChildShard]) -> None:
        """Everything in the shard is done: store that."""
        ...

    async def drained(self) -> None:
        """The lease goes back in good order. What is done will be stored after this."""
        ...

    def lost(self) -> None:
        """The lease is gone. Nothing can be stored."""
        ...


class HandlerKind(Protocol):
    """What the user's program looks like: a handler, a class, a loop over shards."""

    def shard_consumer(self, shard: ServedShard) -> ShardConsumer:
        """Begin to serve one shard."""
        ...
