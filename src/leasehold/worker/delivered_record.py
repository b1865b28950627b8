"""`DeliveredRecord`: one record of a shard, as a record handler gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DeliveredRecord:
    """One record, and where it comes from. It is done when the handler returns, and not done when it raises."""

    stream: str
    shard: ShardId
    record: UserRecord
    # A fencing token for this lease session: the shard, a colon, and a number that rises with every change of owner.
    fencing_token: str
    # How far behind the tip of the shard the record was when it was read; None if Kinesis did not say.
    millis_behind: int | None = None
    # 1 for the first delivery of this record.
    attempt: int = 1
    _note_progress: Callable[[], None] = field(kw_only=True)

    def __repr__(self) -> str:
        return f"DeliveredRecord({self.stream}, {self.shard}, {self.record!r})"

    @property
    def data(self) -> bytes:
        """The payload."""
        return self.record.data

    @property
    def partition_key(self) -> str:
        """The partition key. Records with the same key are handled in the order of the shard."""
        return self.record.partition_key

    @property
    def sequence_number(self) -> str:
        """The sequence number of the Kinesis record."""
        return self.record.sequence_number

    @property
    def arrival_ms(self) -> int | None:
        """When Kinesis received the record."""
        return self.record.arrival_ms

    @property
    def position(self) -> Position:
        """The position of the record in its shard."""
        return self.record.position

    @property
    def fencing_number(self) -> int:
        """A number that rises with every change of owner. A sink can refuse writes with a lower number."""
        return int(self.fencing_token.rpartition(":")[2])

    def still_working(self) -> None:
        """Report progress of a long effect. The worker releases a shard without progress for `stalled_after`."""
        self._note_progress()
