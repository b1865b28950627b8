"""What was produced, and what became of it: the truth that the checkers compare everything with.

Records of a shard have an index, in shard order; user records of an aggregate count one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord

RecordKey = tuple[int, int]  # sequence number and sub-sequence number


@dataclass(slots=True)
class ShardLedger:
    """The records of one shard. Everything before `settled` is done, or was trimmed."""

    places: list[RecordKey] = field(default_factory=list)
    index_of: dict[RecordKey, int] = field(default_factory=dict)
    done: list[bool] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)  # and not done before
    gone: int = 0  # everything before this index has left the stream, done or not
    poison: set[int] = field(default_factory=set)
    first_open: int = 0
    open_records: int = 0  # and not trimmed

    def add(self, place: RecordKey, *, is_poison: bool = False) -> None:
        """One more record."""
        index = len(self.places)
        self.index_of[place] = index
        self.places.append(place)
        self.done.append(False)
        self.open_records += 1
        if is_poison:
            self.poison.add(index)

    def mark_done(self, indexes: Iterable[int]) -> None:
        """Handled, or put aside."""
        for index in indexes:
            if not self.done[index]:
                self.done[index] = True
                self.open_records -= index not in self.trimmed
        self._settle()

    def trim(self) -> None:
        """Everything so far is gone from the stream; what was not done by now may never be."""
        self.gone = len(self.places)
        self.trimmed.update(index for index in range(self.first_open, self.gone) if not self.done[index])
        self.open_records = 0
        self._settle()

    def first_after(self, position: Position) -> int:
        """The index of the first record that a checkpoint leaves to be done."""
        if position.is_shard_end:
            return len(self.places)
        if position.is_sentinel:
            return 0
        return bisect_right(self.places, (position.number, position.sub_sequence_number))

    def first_open_index(self) -> int:
        """The index of the first record that nobody has done."""
        return self.first_open

    def _settle(self) -> None:
        while self.first_open < len(self.places) and (
            self.done[self.first_open] or self.first_open in self.trimmed
        ):
            self.first_open += 1


class Ledger:
    """The records of all shards."""

    def __init__(self) -> None:
        self.shards: dict[ShardId, ShardLedger] = {}

    def shard(self, shard: ShardId) -> ShardLedger:
        """The book of one shard."""
        return self.shards.setdefault(shard, ShardLedger())

    def indexes(self, shard: ShardId, records: Sequence[UserRecord]) -> list[int | None]:
        """Where records stand; None for one that nobody produced."""
        known = self.shard(shard).index_of
        return [known.get((int(record.sequence_number), record.sub_sequence_number)) for record in records]

    @property
    def produced(self) -> int:
        """How many records there are."""
        return sum(len(book.places) for book in self.shards.values())

    @property
    def open_records(self) -> int:
        """How many of them nobody has done, and could have."""
        return sum(book.open_records for book in self.shards.values())
