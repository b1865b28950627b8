"""Every record that was produced, and whether it is done: the truth that the checkers compare everything with.

The records of a shard have indexes in shard order. Each user record of an aggregate has an index of its own.
A record is done once a handler has handled it or it was stored as a dead letter. A record is open if it is neither done
nor trimmed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from leasehold.core.model import LeaseKey, StreamIdentifier, parse_lease_key
from leasehold.core.position import Position
from leasehold.core.record import UserRecord

RecordKey = tuple[int, int]  # sequence number and sub-sequence number


@dataclass(slots=True)
class ShardLedger:
    """The records of one shard. `first_open` is the index of the first open record."""

    keys: list[RecordKey] = field(default_factory=list)
    index_of: dict[RecordKey, int] = field(default_factory=dict)
    done: list[bool] = field(default_factory=list)
    lost_to_trim: set[int] = field(
        default_factory=set
    )  # trimmed, or deleted with their stream, before they were done
    trimmed_before: int = 0  # all records before this index have left the stream, done or not
    starts_at: int = 0  # the fleet began to read with this index
    poison: set[int] = field(default_factory=set)
    partition_keys: list[str] = field(default_factory=list)
    first_open: int = 0
    open_records: int = 0

    def add(self, key: RecordKey, *, is_poison: bool = False, partition_key: str = "k") -> None:
        """Append a record."""
        index = len(self.keys)
        self.index_of[key] = index
        self.keys.append(key)
        self.done.append(False)
        self.partition_keys.append(partition_key)
        self.open_records += 1
        if is_poison:
            self.poison.add(index)

    def mark_done(self, indexes: Iterable[int]) -> None:
        """Mark records as handled, or stored as dead letters."""
        for index in indexes:
            if not self.done[index]:
                self.done[index] = True
                self.open_records -= index not in self.lost_to_trim
        self._advance_first_open()

    def trim(self) -> None:
        """Remove all records so far from the stream. The open ones among them may never be done."""
        self.trimmed_before = len(self.keys)
        self.lose_open()

    def lose_open(self) -> None:
        """The open records may never be done: they were trimmed, or their stream was deleted."""
        open_indexes = range(self.first_open, len(self.keys))
        self.lost_to_trim.update(index for index in open_indexes if not self.done[index])
        self.open_records = 0
        self._advance_first_open()

    def start_here(self) -> None:
        """The fleet begins to read after the records so far, which are still in the stream."""
        self.trim()
        self.starts_at = len(self.keys)

    def index_after(self, position: Position) -> int:
        """Return the index of the first record after a checkpoint."""
        if position.is_shard_end:
            return len(self.keys)
        if position.is_sentinel:
            return 0
        return bisect_right(self.keys, (position.number, position.sub_sequence_number))

    def _advance_first_open(self) -> None:
        while self.first_open < len(self.keys) and (
            self.done[self.first_open] or self.first_open in self.lost_to_trim
        ):
            self.first_open += 1


class Ledger:
    """The records of all shards."""

    def __init__(self) -> None:
        self.shards: dict[LeaseKey, ShardLedger] = {}

    def shard(self, shard: LeaseKey) -> ShardLedger:
        """Return the ledger of one shard, which the key of its lease names."""
        return self.shards.setdefault(shard, ShardLedger())

    def of_stream(self, stream: StreamIdentifier | None) -> list[ShardLedger]:
        """Return the ledgers of all shards of a stream."""
        return [each for key, each in self.shards.items() if parse_lease_key(key)[0] == stream]

    def indexes(self, shard: LeaseKey, records: Sequence[UserRecord]) -> list[int | None]:
        """Return the index of each record; None for a record that was never produced."""
        index_of = self.shard(shard).index_of
        return [index_of.get((int(record.sequence_number), record.sub_sequence_number)) for record in records]

    @property
    def produced(self) -> int:
        """The number of records produced so far."""
        return sum(len(each.keys) for each in self.shards.values())

    @property
    def open_records(self) -> int:
        """The number of records that are neither done nor trimmed."""
        return sum(each.open_records for each in self.shards.values())
