"""Records as Arrow columns, as the native decoder makes them. They have the methods of `core.records.record_columns`.

This module needs pyarrow and leasehold_native. `native_decoder` imports it only if both are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Self, TypeVar, overload

import leasehold_native
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.core.model import WHOLE_HASH_RANGE, HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DeaggregatedBatch,
    DeaggregationOutcome,
    DeaggregationSettings,
    Incident,
    SelfDeaggregating,
    Unreadable,
    deaggregate_all,
)
from leasehold.core.records.record_columns import (
    RecordSequence,
    UserRecordColumns,
    UserRecordSequence,
)
from leasehold.errors import MalformedAggregateError

R = TypeVar("R", Record, UserRecord)

_DATA: Final = "data"
_PARTITION_KEY: Final = "partition_key"
_SEQUENCE_NUMBER: Final = "sequence_number"
_ARRIVAL_MS: Final = "arrival_ms"
_SUB_SEQUENCE_NUMBER: Final = "sub_sequence_number"

# The native functions take 64 bits. No aggregate reaches a higher limit.
_LIMIT_MAX: Final = 2**64 - 1


class _ArrowColumns(RecordSequence[R]):
    """One Arrow column for each field of the record."""

    __slots__ = ("_payload_bytes", "batch")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self._payload_bytes: int | None = None

    def __len__(self) -> int:
        rows: int = self.batch.num_rows
        return rows

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> R | Self:
        if isinstance(index, int):
            at = range(len(self))[index]
            return next(iter(self[at : at + 1]))
        first, stop, step = index.indices(len(self))
        if step != 1:
            return self.take(range(first, stop, step))
        if first == 0 and stop == len(self):
            return self
        return type(self)(self.batch.slice(first, max(0, stop - first)))

    @property
    def payload_bytes(self) -> int:
        if self._payload_bytes is None:
            self._payload_bytes = pc.sum(self._sizes()).as_py() or 0
        return self._payload_bytes

    def payload_sizes(self) -> Sequence[int]:
        sizes: list[int] = self._sizes().to_pylist()
        return sizes

    def sequence_numbers(self) -> Sequence[str]:
        numbers: list[str] = self.batch.column(_SEQUENCE_NUMBER).to_pylist()
        return numbers

    def take(self, indexes: Sequence[int]) -> Self:
        return type(self)(self.batch.take(pa.array(indexes, pa.int64())))

    def _sizes(self) -> Any:
        # The limits count the characters of a key, not its bytes.
        keys = pc.utf8_length(self.batch.column(_PARTITION_KEY))
        return pc.add(pc.binary_length(self.batch.column(_DATA)), keys)


class ArrowRecords(_ArrowColumns[Record], SelfDeaggregating):
    """Kinesis records as Arrow columns."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Record]:
        return map(Record, *(column.to_pylist() for column in self.batch.columns))

    def deaggregate(self, shard: HashRange | None, settings: DeaggregationSettings) -> DeaggregatedBatch:
        """The user records of all records, in order."""
        is_checked = shard is not None and shard != WHOLE_HASH_RANGE
        try:
            users, incidents = leasehold_native.deaggregate(
                self.batch,
                shard.start if shard is not None and is_checked else None,
                shard.end if shard is not None and is_checked else None,
                out_of_range=settings.out_of_range.value,
                fail_unreadable=settings.unreadable is Unreadable.FAIL,
                user_records_max=min(settings.user_records_max, _LIMIT_MAX),
                expanded_bytes_max=min(settings.expanded_bytes_max, _LIMIT_MAX),
            )
        except leasehold_native.UnreadableAggregateError as error:
            sequence_number, problem = error.args
            raise MalformedAggregateError(sequence_number, problem) from None
        except OverflowError:
            # In Python, the user records of an aggregate share its keys, and a column may exceed 2 GiB.
            return deaggregate_all(list(self), shard, settings)
        return DeaggregatedBatch(
            ArrowUserRecords(pa.record_batch(users)),
            tuple(
                Incident(number, DeaggregationOutcome(outcome), dropped)
                for number, outcome, dropped in incidents
            ),
        )


class ArrowUserRecords(_ArrowColumns[UserRecord], UserRecordSequence):
    """User records as Arrow columns."""

    __slots__ = ()

    def __iter__(self) -> Iterator[UserRecord]:
        return iter(leasehold_native.to_records(self.batch, UserRecord))

    @property
    def arrow_batch(self) -> Any:
        return self.batch

    def position(self, index: int) -> Position:
        at = range(len(self))[index]
        numbers, subs = self.batch.column(_SEQUENCE_NUMBER), self.batch.column(_SUB_SEQUENCE_NUMBER)
        return Position(numbers[at].as_py(), subs[at].as_py())

    def arrivals_ms(self) -> Sequence[int | None]:
        arrivals: list[int | None] = self.batch.column(_ARRIVAL_MS).to_pylist()
        return arrivals

    def joined(self, others: Sequence[Self]) -> UserRecordSequence:
        if not others:
            return self
        table = pa.Table.from_batches([self.batch, *(other.batch for other in others)])
        return user_records_of(table.combine_chunks().to_batches())


def user_records_of(batches: Sequence[Any]) -> UserRecordSequence:
    """The rows of all batches. Arrow combines no batches to a column of more than 2 GiB; lists hold that too."""
    if len(batches) == 1:
        return ArrowUserRecords(batches[0])
    return UserRecordColumns.of(record for batch in batches for record in ArrowUserRecords(batch))
