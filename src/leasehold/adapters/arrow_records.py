"""Records as Arrow columns, as the native decoder makes them. They have the methods of `core.records.record_columns`.

This module needs pyarrow and leasehold_native. `native_decoder` imports it only if both are installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
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
from leasehold.core.records.record_columns import RecordSequence, UserRecordColumns, UserRecordSequence
from leasehold.errors import MalformedAggregateError

R = TypeVar("R", Record, UserRecord)

_DATA: Final = "data"
_PARTITION_KEY: Final = "partition_key"
_SEQUENCE_NUMBER: Final = "sequence_number"
_ARRIVAL_MS: Final = "arrival_ms"
_SUB_SEQUENCE_NUMBER: Final = "sub_sequence_number"
_EXPLICIT_HASH_KEY: Final = "explicit_hash_key"

# The native functions take 64 bits. No aggregate reaches a higher limit.
_LIMIT_MAX: Final = 2**64 - 1


class _ArrowColumns(RecordSequence[R]):
    """One Arrow column for each field of the record, in a record batch, or in a table of several."""

    __slots__ = ("known_payload_bytes", "rows")

    def __init__(self, rows: Any, payload_bytes: int | None = None) -> None:
        self.rows = rows
        self.known_payload_bytes = payload_bytes  # None: not computed yet

    def __len__(self) -> int:
        count: int = self.rows.num_rows
        return count

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
        return type(self)(self.rows.slice(first, max(0, stop - first)))

    @property
    def payload_bytes(self) -> int:
        if self.known_payload_bytes is None:
            self.known_payload_bytes = pc.sum(self._sizes()).as_py() or 0
        return self.known_payload_bytes

    def payload_sizes(self) -> Sequence[int]:
        sizes: list[int] = self._sizes().to_pylist()
        return sizes

    def sequence_numbers(self) -> Sequence[str]:
        numbers: list[str] = self.rows.column(_SEQUENCE_NUMBER).to_pylist()
        return numbers

    def take(self, indexes: Sequence[int]) -> Self:
        return type(self)(self.rows.take(pa.array(indexes, pa.int64())))

    def _sizes(self) -> Any:
        # The limits count the characters of a key, not its bytes.
        keys = pc.utf8_length(self.rows.column(_PARTITION_KEY))
        return pc.add(pc.binary_length(self.rows.column(_DATA)), keys)


class ArrowRecords(_ArrowColumns[Record], SelfDeaggregating):
    """Kinesis records as Arrow columns."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Record]:
        return map(Record, *(column.to_pylist() for column in self.rows.columns))

    def deaggregate(self, shard: HashRange | None, settings: DeaggregationSettings) -> DeaggregatedBatch:
        """The user records of all records, in order."""
        is_checked = shard is not None and shard != WHOLE_HASH_RANGE
        try:
            users, incidents = leasehold_native.deaggregate(
                self.rows,
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
        return chain.from_iterable(
            leasehold_native.to_records(batch, UserRecord) for batch in self.arrow_batches
        )

    @property
    def arrow_batches(self) -> Sequence[Any]:
        return [self.rows] if isinstance(self.rows, pa.RecordBatch) else self.rows.to_batches()

    def position(self, index: int) -> Position:
        at = range(len(self))[index]
        numbers, subs = self.rows.column(_SEQUENCE_NUMBER), self.rows.column(_SUB_SEQUENCE_NUMBER)
        return Position(numbers[at].as_py(), subs[at].as_py())

    def arrivals_ms(self) -> Sequence[int | None]:
        arrivals: list[int | None] = self.rows.column(_ARRIVAL_MS).to_pylist()
        return arrivals

    @classmethod
    def join(cls, parts: Sequence[UserRecordSequence]) -> UserRecordSequence:
        # A table of batches copies nothing, and its columns may have more than 2 GiB.
        try:
            arrow = [part if isinstance(part, cls) else cls(_to_batch(part)) for part in parts]
        except (TypeError, OverflowError, pa.ArrowException):
            # Lists may hold what one batch cannot, for example keys of more than 2 GiB.
            return UserRecordColumns.join(parts)
        known = [part.known_payload_bytes for part in arrow]
        return cls(
            pa.Table.from_batches([batch for part in arrow for batch in part.arrow_batches]),
            None if None in known else sum(filter(None, known)),
        )


# As the native decoder makes them. A hash key has more than 64 bits, so it is text.
_USER_SCHEMA: Final = pa.schema(
    [
        pa.field(_DATA, pa.binary(), nullable=False),
        pa.field(_PARTITION_KEY, pa.string(), nullable=False),
        pa.field(_SEQUENCE_NUMBER, pa.string(), nullable=False),
        pa.field(_ARRIVAL_MS, pa.int64()),
        pa.field("encryption_type", pa.string()),
        pa.field(_SUB_SEQUENCE_NUMBER, pa.int64(), nullable=False),
        pa.field(_EXPLICIT_HASH_KEY, pa.string()),
        pa.field("aggregated", pa.bool_(), nullable=False),
    ]
)


def _to_batch(records: UserRecordSequence) -> Any:
    """The records of a small page, which are lists, as a batch."""
    columns = dict(zip(UserRecord._fields, UserRecordColumns.of(records).columns, strict=True))
    columns[_EXPLICIT_HASH_KEY] = [None if key is None else str(key) for key in columns[_EXPLICIT_HASH_KEY]]
    return pa.RecordBatch.from_pydict(columns, schema=_USER_SCHEMA)
