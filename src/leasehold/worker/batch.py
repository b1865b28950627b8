"""`Batch`: some records of one shard, in order, and the methods by which a handler reports how far they are done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from leasehold.core.model import LeaseSessionId, Pin, ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.core.records.record_columns import UserRecordSequence
from leasehold.errors import CheckpointRejectedError
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.checkpointing.progress import InFlightBatch
from leasehold.worker.user_code.engine_calls import EngineCalls


class PreparedCheckpoint:
    """A two-phase checkpoint after its first half: the lease row holds the end of the batch.

    In async code, await this object before the effect, and await `commit()` after it. In plain code both calls return
    when the write is done.
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
        """Store that everything up to the end of the batch is done. Call it after the effect."""
        return self._engine.run(self._second_half())


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Batch:
    """Records of one shard, in shard order: those after `start`, up to and including `end`.

    Iterate over it, take its `len`, or use `records`. In a plain handler `checkpoint`, `prepare` and `done` return when
    the position is stored; in an async handler, await their results.

    It has more than 12 attributes because it has everything that a handler may need, and four private attributes
    account for the batch.
    """

    stream: str
    shard: ShardId
    columns: UserRecordSequence  # the records, without an object for each of them
    start: Position
    end: Position
    # A fencing token for this lease session: the shard, a colon, and `fencing_number`.
    fencing_token: str
    # How far behind the tip of the shard the records were when they were read; None if Kinesis did not say.
    millis_behind: int | None = None
    # 1 for the first delivery of these records.
    attempt: int = 1
    # True if this is the shard's last batch. With manual checkpoints such a batch may be empty.
    ends_shard: bool = False
    # The checkpoint that an earlier attempt, here or of another owner, prepared for exactly these records and did not
    # commit.
    pending: Pin | None = None
    _checkpoints: Checkpoints = field(kw_only=True)
    _in_flight: InFlightBatch = field(kw_only=True)
    _engine: EngineCalls = field(kw_only=True)
    _objects: list[tuple[UserRecord, ...]] = field(default_factory=list, init=False)

    @property
    def records(self) -> tuple[UserRecord, ...]:
        """The records. They are made when they are first requested."""
        if not self._objects:
            self._objects.append(tuple(self.columns))
        return self._objects[0]

    def to_arrow(self) -> Any:
        """The records as a `pyarrow.RecordBatch`, with the columns of the archive. Makes no object for a record.

        Needs pyarrow: pip install 'leasehold[archive]'.
        """
        # Imported late, because pyarrow is optional.
        from leasehold.archive.columns import user_record_batch  # noqa: PLC0415

        return user_record_batch(self.columns, stream=self.stream, shard=self.shard)

    @property
    def fencing_number(self) -> int:
        """A number that rises with every change of owner. A sink can refuse writes with a lower number."""
        return int(self.fencing_token.rpartition(":")[2])

    @property
    def session(self) -> LeaseSessionId:
        """A unique id of this lease session. Unlike `fencing_token`, it stays unique if the lease table is deleted."""
        session = self._checkpoints.held.lease.session
        assert session is not None, "a shard is served only after its lease was taken"
        return session

    def __iter__(self) -> Iterator[UserRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.columns)

    def __repr__(self) -> str:
        return f"Batch({self.stream}, {self.shard}, {len(self)} records, {self.start} to {self.end})"

    def checkpoint(self, at: UserRecord | Position | None = None) -> Awaitable[None]:
        """Store that everything up to `at`, or up to the end of this batch, is done, including all earlier batches.

        Raises LeaseLostError if this worker no longer owns the shard, and CheckpointRejectedError if the position is
        not in this batch.
        """
        position = at.position if isinstance(at, UserRecord) else at or self.end
        if position > self.end:
            raise CheckpointRejectedError(
                f"shard {self.shard}: {position} is beyond {self.end}, the end of this batch"
            )
        return self._engine.run(self._checkpoints.store(position))

    def prepare(self, state: bytes | None = None) -> PreparedCheckpoint:
        """Write the first half of a two-phase checkpoint.

        Until `commit()` is called on the result, every further attempt, here or of the next owner of the shard, gets
        exactly this batch again, with `state` in `pending`.
        """
        checkpoints = self._checkpoints
        return PreparedCheckpoint(
            self._engine,
            checkpoints.prepare(self.start, self.end, state),
            lambda: checkpoints.store(self.end),
        )

    def done(self) -> Awaitable[None]:
        """Mark these records as done. The checkpoint follows once all earlier batches are done.

        A handler need not call this: returning from it has the same effect.
        """
        return self._engine.run(self._checkpoints.finish(self._in_flight))

    def still_working(self) -> None:
        """Report progress of a long effect. The worker releases a shard without progress for `stalled_after`."""
        self._engine.call_soon(self._checkpoints.held.note_progress)
