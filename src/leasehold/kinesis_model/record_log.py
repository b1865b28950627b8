"""The records of one shard: appended at the end, found by number or arrival time, trimmed at the front.

Records are found by bisection and appended in amortised constant time, so a poll at the tip costs the same for ten
records as for a million. Records are stored in columns, not as objects, so that the garbage collector does not visit
each of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, overload

# What a record takes in memory beyond its data and key: measured, 250 bytes.
_RECORD_OVERHEAD: Final = 256
# Trimmed records stay in the columns until there are this many, and until they are half of all.
_COMPACT_MIN: Final = 1024


def memory_bytes(partition_key: str, data: bytes) -> int:
    """About how much memory a record takes."""
    return len(partition_key) + len(data) + _RECORD_OVERHEAD


class StoredRecord(NamedTuple):
    """A record in a shard."""

    number: int
    arrival_ms: int
    partition_key: str
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordColumns(Sequence[StoredRecord]):
    """Consecutive records as columns. A `StoredRecord` is created when it is accessed.

    Ten thousand new objects at once would start a garbage collection over all records of the shard.
    """

    numbers: Sequence[int]
    arrivals_ms: Sequence[int]
    partition_keys: Sequence[str]
    data: Sequence[bytes]
    # The bytes that count towards the limits.
    size: int

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[StoredRecord]:
        return map(StoredRecord, self.numbers, self.arrivals_ms, self.partition_keys, self.data)

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[StoredRecord]: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | list[StoredRecord]:
        if isinstance(index, slice):
            return list(self)[index]
        return StoredRecord(
            self.numbers[index], self.arrivals_ms[index], self.partition_keys[index], self.data[index]
        )


class RecordLog:
    """Records in the order of their numbers. The writer guarantees that arrival times never go back."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._arrivals = array("q")
        self._keys: list[str] = []
        self._data: list[bytes] = []
        # The bytes of all records since the shard opened, up to and including each record. The end of a page of limited
        # size is then found by bisection.
        self._bytes_through = array("q")
        self._first = 0
        self._bytes_trimmed = 0

    def __len__(self) -> int:
        return len(self._numbers) - self._first

    def append(self, number: int, arrival_ms: int, partition_key: str, data: bytes, size: int) -> None:
        """Store a record. `size` is its number of bytes that counts towards the limits."""
        self._bytes_through.append(self._bytes_before(len(self._numbers)) + size)
        self._numbers.append(number)
        self._arrivals.append(arrival_ms)
        self._keys.append(partition_key)
        self._data.append(data)

    def first_index_from_number(self, number: int) -> int:
        """Return the index of the first record with this number or a higher one."""
        return bisect_left(self._numbers, number, lo=self._first)

    def first_index_from_time(self, arrival_ms: int) -> int:
        """Return the index of the first record that arrived at this time or later."""
        return bisect_left(self._arrivals, arrival_ms, lo=self._first)

    def number_at(self, index: int) -> int | None:
        """Return the number of the record at this index, or None beyond the tip."""
        return self._numbers[index] if index < len(self._numbers) else None

    def page(self, index: int, *, records_max: int, bytes_max: int) -> RecordColumns:
        """Return the records from this index on, within both limits but at least one record if there is one."""
        before = self._bytes_before(index)
        fitting = bisect_right(self._bytes_through, before + bytes_max, lo=index)
        end = min(max(fitting, index + 1), index + records_max, len(self._numbers))
        return self._slice(index, end)

    def all_records(self) -> RecordColumns:
        """Return a copy of all records that are not trimmed."""
        return self._slice(self._first, len(self._numbers))

    def is_beyond_tip(self, index: int) -> bool:
        return index >= len(self._numbers)

    def trim_before(self, horizon_ms: int) -> None:
        """Remove every record that arrived before the horizon."""
        if self._first < len(self._arrivals) and self._arrivals[self._first] < horizon_ms:
            self._first = self.first_index_from_time(horizon_ms)
            self._compact()

    def release_trimmed(self) -> int:
        """Free the memory of trimmed records, and return about how much the others take."""
        self._drop(self._first)
        count = len(self._numbers)
        return self._bytes_before(count) - self._bytes_trimmed + count * _RECORD_OVERHEAD

    def _bytes_before(self, index: int) -> int:
        return self._bytes_through[index - 1] if index else self._bytes_trimmed

    def _slice(self, index: int, end: int) -> RecordColumns:
        span = slice(index, end)
        size = self._bytes_before(end) - self._bytes_before(index)
        return RecordColumns(
            self._numbers[span], self._arrivals[span], self._keys[span], self._data[span], size
        )

    def _compact(self) -> None:
        cut = self._first
        if cut == len(self._numbers) or (cut >= _COMPACT_MIN and 2 * cut >= len(self._numbers)):
            self._drop(cut)

    def _drop(self, cut: int) -> None:
        """Remove the trimmed records from the columns."""
        if cut:
            self._bytes_trimmed = self._bytes_through[cut - 1]
            for column in (self._numbers, self._arrivals, self._keys, self._data, self._bytes_through):
                del column[:cut]
            self._first = 0
