"""What a handler is given: some records of one shard, in order, and the means to say how far they are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from leasehold.core.model import LeaseSessionId, Pin, ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.errors import CheckpointRejectedError
from leasehold.fleet.held_lease import HeldLease
from leasehold.worker.delivery.batch_builder import PendingBatch
from leasehold.worker.delivery.batcher import BufferedBytes
from leasehold.worker.delivery.checkpoints import Checkpoints
from leasehold.worker.delivery.progress import InFlightBatch
from leasehold.worker.user_code.engine_calls import EngineCalls


@dataclass(frozen=True, slots=True)
class ShardAccounting:
    """Where a batch is accounted for. Its coroutines run on the engine's loop."""

    held: HeldLease
    checkpoints: Checkpoints
    allowance: BufferedBytes
    engine: EngineCalls

    def give(self, cut: PendingBatch) -> InFlightBatch:
        """A batch goes out to user code."""
        self.held.note_progress()
        return self.checkpoints.give(cut.end, len(cut.records), cut.buffered_bytes)

    async def finish(self, portion: InFlightBatch) -> None:
        """A batch is done."""
        self.held.note_progress()
        await self.checkpoints.finish(portion)

    async def pass_over(self, cut: PendingBatch) -> None:
        """Nothing in this cut is for user code; only the position moves."""
        await self.finish(self.give(cut))


class PreparedCheckpoint:
    """A two-phase checkpoint after its first half: the lease says where the effect will end.

    In async code, await it before the effect and await `commit()` after it; in plain code both have happened when the
    call returns.
    """

    def __init__(
        self,
        engine: EngineCalls,
        first_half: Coroutine[Any, Any, None],
        second_half: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._engine = engine
        self._written = engine.run(first_half)
        self._second_half = second_half

    def __await__(self) -> Generator[Any, None, PreparedCheckpoint]:
        yield from self._written.__await__()
        return self

    def commit(self) -> Awaitable[None]:
        """The effect has happened: store that everything up to the end of the batch is done."""
        return self._engine.run(self._second_half())


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Batch:
    """Records of one shard, in shard order: those after `start`, up to and including `end`.

    Iterate over it, ask for its `len`, or take `records`. In a plain handler `checkpoint`, `prepare` and `done` return
    when the position is stored; in an async one, await what they return.
    """

    stream: str
    shard: ShardId
    records: tuple[UserRecord, ...]
    start: Position
    end: Position
    # Names this holding of the lease: the shard, a colon, and `fencing_number`.
    fencing_token: str
    # How far behind the tip of the shard it was when it was read; None where Kinesis did not say.
    millis_behind: int | None = None
    # 1 when these records are given for the first time.
    attempt: int = 1
    # Nothing comes after it. Such a batch may be empty, if checkpoints are manual.
    ends_shard: bool = False
    # What an earlier owner prepared for exactly these records and did not commit.
    pending: Pin | None = None
    _desk: ShardAccounting = field(kw_only=True)
    _portion: InFlightBatch = field(kw_only=True)

    @property
    def fencing_number(self) -> int:
        """Rises with every change of owner: a sink can refuse the older of two. Compare it, not the texts."""
        return int(self.fencing_token.rpartition(":")[2])

    @property
    def session(self) -> LeaseSessionId:
        """Names this holding of the lease, as `token` does, but stays unique when the lease table was lost."""
        session = self._desk.held.lease.session
        assert session is not None, "a shard is served only after its lease was taken"
        return session

    def __iter__(self) -> Iterator[UserRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        return f"Batch({self.stream}, {self.shard}, {len(self.records)} records, {self.start} to {self.end})"

    def checkpoint(self, at: UserRecord | Position | None = None) -> Awaitable[None]:
        """Store that everything up to `at`, or up to the end of this batch, is done; all batches before it included.

        Raises LeaseLostError when another member has the shard by now, CheckpointRejectedError for a position that is
        not in this batch.
        """
        position = at.position if isinstance(at, UserRecord) else at or self.end
        if position > self.end:
            raise CheckpointRejectedError(
                f"shard {self.shard}: {position} is beyond {self.end}, the end of this batch"
            )
        return self._desk.engine.run(self._desk.checkpoints.store(position))

    def prepare(self, state: bytes | None = None) -> PreparedCheckpoint:
        """The first half of a two-phase checkpoint: whoever serves the shard next is given exactly this batch again,
        with `state` in `pending`, unless `commit()` was called on the result.
        """
        checkpoints = self._desk.checkpoints
        return PreparedCheckpoint(
            self._desk.engine,
            checkpoints.prepare(self.start, self.end, state),
            lambda: checkpoints.store(self.end),
        )

    def done(self) -> Awaitable[None]:
        """These records are done; the checkpoint follows once all before them are. Returning from a handler says it."""
        return self._desk.engine.run(self._desk.finish(self._portion))

    def still_working(self) -> None:
        """Say that a long effect makes progress: a shard that is silent for `stalled_after` is given up."""
        self._desk.engine.tell(self._desk.held.note_progress)
