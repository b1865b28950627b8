"""Records as columns: one list for each field, instead of one object for each record.

A page of records passes through several steps that need a field or two of each record, or only their number and size.
A columnar consumer (Spark, the archive) never needs a record as an object. So the columns are sequences of records
that create a record only when one is requested. All values of a column are created by the decoder; to slice or to join
columns copies references only.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Any, Final, Self, TypeVar, cast, overload

from leasehold.core.position import Position
from leasehold.core.record import UNAGGREGATED, Record, UserRecord

R = TypeVar("R", Record, UserRecord)

# Columns of tuples, by the place of the field.
DATA: Final = 0
PARTITION_KEY: Final = 1
SEQUENCE_NUMBER: Final = 2
ARRIVAL_MS: Final = 3
SUB_SEQUENCE_NUMBER: Final = 5
EXPLICIT_HASH_KEY: Final = 6


class RecordSequence(Sequence[R]):
    """Records in order, in any representation. Two are equal if their records are equal."""

    __slots__ = ()

    @property
    @abstractmethod
    def payload_bytes(self) -> int:
        """The bytes that count for Kinesis's limits: data and partition keys."""

    @abstractmethod
    def payload_sizes(self) -> Sequence[int]:
        """The same for each record."""

    @abstractmethod
    def sequence_numbers(self) -> Sequence[str]:
        """The sequence number of each record."""

    @abstractmethod
    def take(self, indexes: Sequence[int]) -> Self:
        """The records at these indexes."""

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    @abstractmethod
    def __getitem__(self, index: int | slice) -> R | Self: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} records)"

    def after_number(self, number: int) -> Self:
        """The records with a higher sequence number."""
        text = str(number)
        # Numbers of equal length compare like their texts. To convert 56 digits takes four times as long.
        later = [
            index
            for index, each in enumerate(self.sequence_numbers())
            if (each > text if len(each) == len(text) else int(each) > number)
        ]
        count = len(later)
        is_tail = bool(count) and later[0] == len(self) - count
        return self[len(self) - count :] if is_tail or not count else self.take(later)


class UserRecordSequence(RecordSequence[UserRecord]):
    """User records in order, in any representation."""

    __slots__ = ()

    @property
    def arrow_batches(self) -> Sequence[Any] | None:
        """The records as Arrow batches, in order, if they are Arrow columns; None otherwise."""
        return None

    @classmethod
    @abstractmethod
    def join(cls, parts: Sequence[UserRecordSequence]) -> UserRecordSequence:
        """All records of the parts, which may have other representations, in this one."""

    @abstractmethod
    def arrivals_ms(self) -> Sequence[int | None]:
        """The arrival time of each record."""

    def position(self, index: int) -> Position:
        """The position of one record."""
        return self[index].position

    def count_to(self, end: Position) -> int:
        """The number of records up to and including `end`. The records must be in shard order."""
        if not len(self) or self.position(-1) <= end:
            return len(self)
        return bisect_right(range(len(self)), end, key=self.position)

    def count_within_bytes(self, size_bytes: int) -> int:
        """The number of records, from the first, whose payload together has at most `size_bytes`."""
        if self.payload_bytes <= size_bytes:
            return len(self)
        return bisect_right(list(accumulate(self.payload_sizes())), size_bytes)


class _Columns(RecordSequence[R]):
    """One list for each field of the record."""

    __slots__ = ("columns", "known_payload_bytes")

    _record: type[R]

    def __init__(self, columns: Sequence[list[Any]], payload_bytes: int | None = None) -> None:
        self.columns = columns
        self.known_payload_bytes = payload_bytes  # None: not computed yet

    @classmethod
    def of(cls, records: Iterable[R]) -> Self:
        """The columns of these records."""
        if isinstance(records, cls):
            return records
        columns = [list(column) for column in zip(*records, strict=True)]
        return cls(columns or [[] for _ in cls._record._fields])

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[R]:
        # Uses `tuple.__new__` instead of the class: see `core.record`.
        rows: Any = zip(*self.columns, strict=True)
        return map(tuple.__new__, repeat(self._record), rows)

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> R | Self:
        values = [column[index] for column in self.columns]
        if isinstance(index, slice):
            return self if len(values[0]) == len(self) and index.step is None else type(self)(values)
        return tuple.__new__(self._record, values)

    @property
    def payload_bytes(self) -> int:
        if self.known_payload_bytes is None:
            data, keys = self.columns[DATA], self.columns[PARTITION_KEY]
            self.known_payload_bytes = sum(map(len, data)) + sum(map(len, keys))
        return self.known_payload_bytes

    def payload_sizes(self) -> Sequence[int]:
        return list(map(add, map(len, self.columns[DATA]), map(len, self.columns[PARTITION_KEY])))

    def sequence_numbers(self) -> Sequence[str]:
        return self.columns[SEQUENCE_NUMBER]

    def take(self, indexes: Sequence[int]) -> Self:
        return type(self)([[column[index] for index in indexes] for column in self.columns])


class RecordColumns(_Columns[Record]):
    """Kinesis records as columns."""

    __slots__ = ()

    _record = Record


class UserRecordColumns(_Columns[UserRecord], UserRecordSequence):
    """User records as columns."""

    __slots__ = ()

    _record = UserRecord

    @classmethod
    def unaggregated(cls, records: RecordColumns) -> Self:
        """Each Kinesis record as a user record."""
        count = len(records)
        columns = [*records.columns, *([value] * count for value in UNAGGREGATED)]
        return cls(columns, records.known_payload_bytes)

    def extend(self, more: UserRecordColumns) -> None:
        """Append records to these, of which nobody else may have a slice."""
        for column, values in zip(self.columns, more.columns, strict=True):
            column.extend(values)
        self.known_payload_bytes = None

    def position(self, index: int) -> Position:
        numbers, subs = self.columns[SEQUENCE_NUMBER], self.columns[SUB_SEQUENCE_NUMBER]
        return Position(numbers[index], subs[index])

    def arrivals_ms(self) -> Sequence[int | None]:
        return self.columns[ARRIVAL_MS]

    @classmethod
    def join(cls, parts: Sequence[UserRecordSequence]) -> Self:
        lists = [cls.of(part) for part in parts]
        columns = [_join(column) for column in zip(*(part.columns for part in lists), strict=True)]
        known = [part.known_payload_bytes for part in lists]
        return cls(columns, None if None in known else sum(filter(None, known)))


def _join(lists: Sequence[list[Any]]) -> list[Any]:
    # A list that grows is copied many times.
    joined: list[Any] = [None] * sum(map(len, lists))
    at = 0
    for each in lists:
        joined[at : at + len(each)] = each
        at += len(each)
    return joined


def as_records(records: Sequence[Any]) -> RecordSequence[Record]:
    """The same records, with the methods of columns. The records of an archive are user records, and stay that."""
    if isinstance(records, RecordSequence):
        return records
    if records and isinstance(records[0], UserRecord):
        archived: Any = UserRecordColumns.of(records)
        return cast("RecordSequence[Record]", archived)
    return RecordColumns.of(records)


def as_user_records(records: Sequence[UserRecord]) -> UserRecordSequence:
    """The same records, with the methods of columns."""
    return records if isinstance(records, UserRecordSequence) else UserRecordColumns.of(records)


def join_user_records(parts: Sequence[Sequence[UserRecord]]) -> UserRecordSequence:
    """All records of the parts, in order. They are Arrow columns if one part is: only small pages are not."""
    whole = [as_user_records(part) for part in parts if len(part)]
    if not whole:
        return UserRecordColumns.of(())
    if len(whole) == 1:
        return whole[0]
    arrow = (part for part in whole if part.arrow_batches is not None)
    return next(arrow, whole[0]).join(whole)
