"""Chunks of user records: what is done is dropped, also if an aggregate lies in several chunks."""

from itertools import chain
from typing import Any, SupportsIndex

import pytest

from leasehold.core.model import HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DeaggregatedBatch,
    DeaggregationOutcome,
    DeaggregationSettings,
    Incident,
    SelfDeaggregating,
)
from leasehold.core.records.record_columns import RecordColumns, UserRecordColumns, as_records
from leasehold.fleet.reading.chunking import ShardDeaggregator, split_into_chunks, weight_of


def archived(number: str, sub_sequence_number: int) -> UserRecord:
    record = Record(b"0123456789", "key", number).as_user_record()
    return record._replace(sub_sequence_number=sub_sequence_number, aggregated=True)


def test_a_chunk_that_ends_before_the_checkpoint() -> None:
    """The pages of an archive are split inside an aggregate, so the checkpoint may lie in the second chunk."""
    page = as_records([*(archived("100", sub) for sub in range(4_800)), archived("101", 0)])
    chunks = split_into_chunks(page, weight_of(page))
    assert 0 < len(chunks[0]) < 3_000
    for done in (0, len(chunks[0]) - 1, len(chunks[0]), 3_000, 4_799):
        shard = ShardDeaggregator(Position("100", done), None, DeaggregationSettings())
        found = [user.position for chunk in chunks for user in shard.user_records(chunk).records]
        assert found == [*(Position("100", sub) for sub in range(done + 1, 4_800)), Position("101")]
        assert shard.read_through == Position("101")


class _SelfDeaggregating(RecordColumns, SelfDeaggregating):
    __slots__ = ()

    def deaggregate(self, shard: HashRange | None, settings: DeaggregationSettings) -> DeaggregatedBatch:
        raise NotImplementedError


def test_records_that_are_deaggregated_fast_have_larger_chunks() -> None:
    """The event loop is blocked for a short time in any case, and each chunk has a cost."""
    records = [Record(bytes(100_000), "key", str(number)) for number in range(100)]
    slow, fast = RecordColumns.of(records), _SelfDeaggregating.of(records)
    sizes = [[len(chunk) for chunk in split_into_chunks(page, weight_of(page))] for page in (slow, fast)]
    assert sizes == [[6] * 16 + [4], [25] * 4]


@pytest.mark.parametrize(
    ("count", "size", "chunks"),
    [
        (0, 0, [0]),
        (1, 0, [1]),
        (2_500, 0, [2_500]),
        (3_200, 0, [3_200]),
        (3_700, 0, [1_850, 1_850]),
        (7_001, 0, [2_334, 2_334, 2_333]),
        (20, 500_000, [1] * 20),
        (5, 2_000_000, [1] * 5),
    ],
)
def test_a_page_is_split_into_equal_chunks(count: int, size: int, chunks: list[int]) -> None:
    """A page a little larger than a chunk stays whole: a small rest would cost as much as a large one."""
    page = RecordColumns.of([Record(bytes(size), "k", str(number)) for number in range(count)])
    assert [len(chunk) for chunk in split_into_chunks(page, weight_of(page))] == chunks
    assert list(chain.from_iterable(split_into_chunks(page, weight_of(page)))) == list(page)


class _CountingColumns(UserRecordColumns):
    """Counts the records that are created one by one, which is slow for Arrow columns."""

    __slots__ = ("created",)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, SupportsIndex):
            self.created = getattr(self, "created", 0) + 1
        return super().__getitem__(index)


class _AggregateWithDrops(RecordColumns, SelfDeaggregating):
    """Kinesis records whose user records are given."""

    __slots__ = ("users",)

    users: UserRecordColumns

    def deaggregate(self, shard: HashRange | None, settings: DeaggregationSettings) -> DeaggregatedBatch:
        incident = Incident("100", DeaggregationOutcome.OUT_OF_RANGE, dropped=5)
        return DeaggregatedBatch(self.users, (incident,))


def test_the_end_of_an_aggregate_with_dropped_user_records() -> None:
    """It counts all of them, and creates no object for each one that was kept."""
    records = _AggregateWithDrops.of([Record(b"", "key", "99"), Record(b"", "key", "100")])
    records.users = _CountingColumns.of([archived("99", 0), *(archived("100", sub) for sub in range(50))])
    shard = ShardDeaggregator(Position("98"), None, DeaggregationSettings())
    shard.read_through = Position("98", 1)
    shard.user_records(records)
    assert shard.read_through == Position("100", 54)
    assert getattr(records.users, "created", 0) <= 1
