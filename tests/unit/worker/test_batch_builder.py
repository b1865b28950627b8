"""Batches end by records, bytes or time, contain each record once, and end at the pin of an earlier owner."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import ChildShard
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import UserRecord
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.worker.batching.batch_builder import BatchBuilder, PendingBatch
from leasehold.worker.settings import BatchSettings


def records(first: int, count: int, *, size: int = 1, subs: bool = False) -> tuple[UserRecord, ...]:
    """Return records of a shard: single ones, or the parts of one aggregate."""
    if subs:
        return tuple(UserRecord(b"x" * size, "", str(first), sub_sequence_number=sub) for sub in range(count))
    return tuple(UserRecord(b"x" * size, "", str(number)) for number in range(first, first + count))


def chunk_of(
    users: tuple[UserRecord, ...],
    *,
    read_through: Position | None = None,
    children: tuple[ChildShard, ...] | None = None,
) -> ReadChunk:
    return ReadChunk(
        users, 100 * len(users) + 1, 0, read_through or (users[-1].position if users else None), children
    )


def builder(pinned: Position | None = None, **limits: Any) -> BatchBuilder:
    return BatchBuilder(
        TRIM_HORIZON,
        BatchSettings(max_wait=timedelta(seconds=1), **limits),
        pinned_end=pinned,
        pinned_bytes_max=10**9,
    )


def numbers(batch: PendingBatch) -> list[str]:
    return [str(record.position) for record in batch.records]


def test_a_batch_is_due_when_it_is_full_or_its_first_record_has_waited() -> None:
    """Never without records, `max_wait` after the first record, and at once when it is full."""
    batch_builder = builder(max_records=3)
    assert batch_builder.due_ms() is None
    batch_builder.add(chunk_of(records(1, 2)), now_ms=5_000)
    assert batch_builder.due_ms() == 6_000
    batch_builder.add(chunk_of(records(3, 2)), now_ms=5_500)
    assert batch_builder.due_ms() == 0
    batch = batch_builder.build()
    assert numbers(batch) == ["1", "2", "3"]
    assert batch_builder.due_ms() == 6_500  # counted from the arrival of the remaining records


def test_the_range_of_a_batch_begins_where_the_last_one_ended() -> None:
    """The ranges `(start, end]` cover the shard without gaps, including positions without records."""
    batch_builder = builder(max_records=2)
    batch_builder.add(chunk_of(records(1, 3), read_through=Position("9")), now_ms=0)
    first, second = batch_builder.build(), batch_builder.build()
    assert (first.start, first.end) == (TRIM_HORIZON, Position("2"))
    assert (second.start, second.end) == (Position("2"), Position("9"))


def test_bytes_end_a_batch_and_one_large_record_is_a_batch_of_its_own() -> None:
    """max_bytes counts data and keys. A record larger than that is delivered alone."""
    batch_builder = builder(max_bytes=100)
    batch_builder.add(chunk_of(records(1, 5, size=40) + records(6, 1, size=500) + records(7, 1)), now_ms=0)
    sizes = [len(batch_builder.build().records) for _ in range(5)]
    assert sizes == [2, 2, 1, 1, 1]


def test_a_batch_may_end_inside_an_aggregate() -> None:
    """Its end is then a position inside the aggregate."""
    batch_builder = builder(max_records=4)
    batch_builder.add(chunk_of(records(7, 10, subs=True)), now_ms=0)
    assert batch_builder.build().end == Position("7", 3)
    assert batch_builder.build().end == Position("7", 7)


def test_a_chunk_without_records_moves_the_position_at_once() -> None:
    """An idle shard, or one whose aggregates were dropped, makes progress without a handler."""
    batch_builder = builder()
    batch_builder.add(chunk_of((), read_through=Position("50")), now_ms=0)
    assert batch_builder.due_ms() == 0
    batch = batch_builder.build()
    assert (batch.records, batch.end) == ((), Position("50"))
    assert batch_builder.due_ms() is None


def test_an_idle_page_has_nothing_that_a_batch_would_say() -> None:
    """No records, no end, no bytes to release, the position of the last batch, and no batch that waits for it."""
    idle = ReadChunk((), 0, 0, Position("50"), None)
    batch_builder = builder()
    assert batch_builder.is_idle_page(ReadChunk((), 0, 0, None, None))
    assert not batch_builder.is_idle_page(idle)
    batch_builder.add(idle, now_ms=0)
    assert not batch_builder.is_idle_page(idle)
    batch_builder.build()
    assert batch_builder.is_idle_page(idle)
    for changes in ({"children": ()}, {"size_bytes": 1}, {"read_through": Position("51")}):
        assert not batch_builder.is_idle_page(replace(idle, **changes))
    assert not builder(Position("50")).is_idle_page(ReadChunk((), 0, 0, None, None))


def test_only_the_last_batch_ends_the_shard() -> None:
    """At the end of the shard no batch waits, and the last batch ends the shard even if it is empty."""
    batch_builder = builder(max_records=2)
    batch_builder.add(chunk_of(records(1, 3), children=()), now_ms=0)
    assert [
        (len(batch.records), batch.ends_shard) for batch in (batch_builder.build(), batch_builder.build())
    ] == [
        (2, False),
        (1, True),
    ]
    assert batch_builder.due_ms() is None
    empty = builder()
    empty.add(chunk_of((), children=()), now_ms=0)
    assert empty.due_ms() == 0
    assert empty.build().ends_shard


def test_buffered_bytes_are_freed_with_the_last_record_of_their_chunk() -> None:
    """Each byte is released exactly once."""
    batch_builder = builder(max_records=2)
    batch_builder.add(chunk_of(records(1, 3)), now_ms=0)
    batch_builder.add(chunk_of(records(4, 1)), now_ms=0)
    assert [batch_builder.build().buffered_bytes for _ in range(2)] == [0, 301 + 101]


def test_a_pinned_range_uses_no_bytes_of_the_budget_and_frees_none() -> None:
    """It is buffered whole, so it must not wait for room. Bytes that it did not use are not released for it either:
    they would be those of chunks that are still in memory.
    """
    batch_builder = builder(Position("2"), max_records=3)
    budgeted = [batch_builder.add(chunk_of(records(1, 4)), now_ms=0)]
    freed = [batch_builder.build().buffered_bytes]
    budgeted.append(batch_builder.add(chunk_of(records(5, 4)), now_ms=0))
    freed += [batch_builder.build().buffered_bytes, batch_builder.build().buffered_bytes]
    assert (budgeted, freed) == ([0, 401], [0, 0, 401])


def test_a_pinned_batch_ends_exactly_at_the_pin_whatever_its_size() -> None:
    """The first batch waits for the whole range and takes no more. Afterwards the limits apply again."""
    batch_builder = builder(Position("7"), max_records=2)
    batch_builder.add(chunk_of(()), now_ms=0)
    batch_builder.add(chunk_of(records(1, 4)), now_ms=0)
    assert batch_builder.due_ms() is None
    batch_builder.add(chunk_of(records(5, 6)), now_ms=0)
    assert batch_builder.due_ms() == 0
    pinned, following = batch_builder.build(), batch_builder.build()
    assert (numbers(pinned), pinned.end, pinned.is_pinned) == (list("1234567"), Position("7"), True)
    assert (numbers(following), following.is_pinned) == (["8", "9"], False)


def test_a_pinned_batch_may_end_inside_an_aggregate() -> None:
    """The pin has a sub-sequence number: later user records of the aggregate belong to the next batch."""
    batch_builder = builder(Position("7", 3))
    batch_builder.add(chunk_of(records(6, 1)), now_ms=0)
    batch_builder.add(chunk_of(records(7, 10, subs=True)), now_ms=0)
    batch_builder.add(chunk_of(records(8, 1)), now_ms=0)
    pinned, following = batch_builder.build(), batch_builder.build()
    assert (len(pinned.records), pinned.end, pinned.is_pinned) == (5, Position("7", 3), True)
    assert (len(following.records), following.start) == (7, Position("7", 3))


def test_a_pin_that_is_not_reached_does_not_hold_the_shard() -> None:
    """The records before a pin may have been trimmed, or the shard may have ended."""
    trimmed = builder(Position("7"))
    trimmed.add(chunk_of(records(20, 2)), now_ms=0)
    assert trimmed.due_ms() == 0
    assert (trimmed.build().records, numbers(trimmed.build())) == ((), ["20", "21"])
    ended = builder(Position("7"))
    ended.add(chunk_of(records(1, 2), children=()), now_ms=0)
    batch = ended.build()
    assert (numbers(batch), batch.is_pinned, batch.ends_shard) == (["1", "2"], False, True)


def test_a_pinned_range_larger_than_the_buffer_is_delivered_in_several_batches() -> None:
    """The memory limit takes precedence over the exact range."""
    batch_builder = BatchBuilder(
        TRIM_HORIZON, BatchSettings(max_records=3), pinned_end=Position("99"), pinned_bytes_max=50
    )
    assert (
        batch_builder.add(chunk_of(records(1, 10, size=10)), now_ms=0) == 1_001
    )  # it counts against the budget
    batch = batch_builder.build()
    assert (len(batch.records), batch.is_pinned) == (3, False)


@given(
    st.lists(st.integers(0, 30), max_size=10),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 20),
)
def test_every_record_is_in_exactly_one_batch(
    chunks: list[int], max_records: int, max_bytes: int, size: int
) -> None:
    """Batches are in order and within the limits, their ranges are adjacent, and all bytes are released."""
    batch_builder = builder(max_records=max_records, max_bytes=max_bytes)
    first = 1
    for count in chunks:
        batch_builder.add(chunk_of(records(first, count, size=size)), now_ms=0)
        first += count
    built = []
    while batch_builder.due_ms() is not None:
        built.append(batch_builder.build())
    assert [number for batch in built for number in numbers(batch)] == [
        str(number) for number in range(1, first)
    ]
    assert all(batch.start == before.end for before, batch in pairwise(built))
    assert sum(batch.buffered_bytes for batch in built) == sum(100 * count + 1 for count in chunks)
    for batch in built:
        assert len(batch.records) <= max_records
        assert len(batch.records) * size <= max_bytes or len(batch.records) == 1
