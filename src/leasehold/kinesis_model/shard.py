"""The state of one shard: open, closed, and finally removed with its last record."""

from __future__ import annotations

from dataclasses import dataclass, field

from leasehold.core.model import ChildShard, HashRange, Shard, ShardId
from leasehold.kinesis_model.limits import ShardLimits
from leasehold.kinesis_model.record_log import RecordLog
from leasehold.kinesis_model.sequence_numbers import SequenceNumberRange


def shard_id(index: int) -> ShardId:
    """Return the id of the shard that was created as number `index` of its stream.

    >>> shard_id(7)
    'shardId-000000000007'
    """
    return ShardId(f"shardId-{index:012d}")


@dataclass(slots=True, eq=False, kw_only=True)
class ShardState:
    """A shard with its records. It is open from `opened_ms` (included) to `closed_ms` (excluded).

    A reader's position in a shard is its *next number*: the lowest sequence number that it has not read. A record with
    exactly this number need not exist.
    """

    numbers: SequenceNumberRange
    hash_range: HashRange
    opened_ms: int
    parents: tuple[ShardId, ...] = ()
    closed_ms: int | None = None
    children: list[ShardId] = field(default_factory=list)
    counter: int = 0
    log: RecordLog = field(default_factory=RecordLog)
    limits: ShardLimits = field(default_factory=ShardLimits)
    id: ShardId = field(init=False)
    last_number: int = field(init=False)

    def __post_init__(self) -> None:
        self.id = shard_id(self.index)
        self.last_number = self.start_number

    @property
    def index(self) -> int:
        return self.numbers.shard_index

    @property
    def is_open(self) -> bool:
        return self.closed_ms is None

    @property
    def start_number(self) -> int:
        return self.numbers.start(self.opened_ms)

    @property
    def tip(self) -> int:
        """The next number of a reader that has read everything written so far."""
        return self.last_number + 1

    def was_open_at(self, at_ms: int) -> bool:
        return self.opened_ms <= at_ms and self.is_open_after(at_ms)

    def is_open_after(self, at_ms: int) -> bool:
        """True if the shard closed after this time or is still open. It may have opened later."""
        return self.closed_ms is None or at_ms < self.closed_ms

    def append(self, partition_key: str, data: bytes, size: int, now_ms: int) -> int:
        """Store a record and return its sequence number."""
        self.counter += 1
        self.last_number = self.numbers.at(self.counter, now_ms)
        self.log.append(self.last_number, now_ms, partition_key, data, size)
        return self.last_number

    def number_at_time(self, at_ms: int) -> int:
        """Return the number of the first record that arrived at this time or later, or the tip."""
        return self.log.number_at(self.log.first_index_from_time(at_ms)) or self.tip

    def to_shard(self) -> Shard:
        """The shard as ListShards returns it."""
        ending = None if self.closed_ms is None else str(self.numbers.end(self.closed_ms))
        return Shard(self.id, self.hash_range, str(self.start_number), ending, self.parents)

    def to_child_shard(self) -> ChildShard:
        """The shard as the last page of its parent names it."""
        return ChildShard(self.id, self.parents, self.hash_range)
