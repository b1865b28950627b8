"""Batches end by records, bytes or time, never lose or double a record, and respect what a former owner pinned."""

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
    """Records of a shard: single ones, or the parts of one aggregate."""
    if subs:
        return tuple(UserRecord(b"x" * size, "", str(first), sub_sequence_number=sub) for sub in range(count))
    return tuple(UserRecord(b"x" * size, "", str(number)) for number in range(first, first + count))


def slice_of(
    users: tuple[UserRecord, ...],
    *,
    read_through: Position | None = None,
    children: tuple[ChildShard, ...] | None = None,
) -> ReadChunk:
    return ReadChunk(
        users, 100 * len(users) + 1, 0, read_through or (users[-1].position if users else None), children
    )


def cutter(pinned: Position | None = None, **limits: Any) -> BatchBuilder:
    return BatchBuilder(
        TRIM_HORIZON,
        BatchSettings(max_wait=timedelta(seconds=1), **limits),
        pinned_end=pinned,
        pinned_bytes_max=10**9,
    )


def numbers(cut: PendingBatch) -> list[str]:
    return [str(record.position) for record in cut.records]


def test_a_batch_is_due_when_it_is_full_or_its_first_record_has_waited() -> None:
    """Nothing there: never. Something there: max_wait after it came. Enough there: now."""
    batches = cutter(max_records=3)
    assert batches.due_ms() is None
    batches.add(slice_of(records(1, 2)), now_ms=5_000)
    assert batches.due_ms() == 6_000
    batches.add(slice_of(records(3, 2)), now_ms=5_500)
    assert batches.due_ms() == 0
    cut = batches.build()
    assert numbers(cut) == ["1", "2", "3"]
    assert batches.due_ms() == 6_500  # counted from the arrival of what is left


def test_the_range_of_a_batch_begins_where_the_last_one_ended() -> None:
    """`(start, end]` covers the shard without holes; the end of a whole slice is how far the shard was seen."""
    batches = cutter(max_records=2)
    batches.add(slice_of(records(1, 3), read_through=Position("9")), now_ms=0)
    first, second = batches.build(), batches.build()
    assert (first.start, first.end) == (TRIM_HORIZON, Position("2"))
    assert (second.start, second.end) == (Position("2"), Position("9"))


def test_bytes_end_a_batch_and_one_large_record_is_a_batch_of_its_own() -> None:
    """max_bytes counts data and keys; what does not fit at all still goes through."""
    batches = cutter(max_bytes=100)
    batches.add(slice_of(records(1, 5, size=40) + records(6, 1, size=500) + records(7, 1)), now_ms=0)
    sizes = [len(batches.build().records) for _ in range(5)]
    assert sizes == [2, 2, 1, 1, 1]


def test_an_aggregate_may_be_cut_anywhere() -> None:
    """The end of such a batch is a position inside of the aggregate."""
    batches = cutter(max_records=4)
    batches.add(slice_of(records(7, 10, subs=True)), now_ms=0)
    assert batches.build().end == Position("7", 3)
    assert batches.build().end == Position("7", 7)


def test_a_slice_without_records_moves_the_position_at_once() -> None:
    """An idle shard, or one whose aggregates were dropped, still gets on; no handler is needed for it."""
    batches = cutter()
    batches.add(slice_of((), read_through=Position("50")), now_ms=0)
    assert batches.due_ms() == 0
    cut = batches.build()
    assert (cut.records, cut.end) == ((), Position("50"))
    assert batches.due_ms() is None


def test_the_end_of_the_shard_needs_no_waiting_and_is_told_with_the_last_batch() -> None:
    """Only the batch after which nothing comes says that it ends the shard, even if it is empty."""
    batches = cutter(max_records=2)
    batches.add(slice_of(records(1, 3), children=()), now_ms=0)
    assert [(len(cut.records), cut.ends_shard) for cut in (batches.build(), batches.build())] == [
        (2, False),
        (1, True),
    ]
    assert batches.due_ms() is None
    empty = cutter()
    empty.add(slice_of((), children=()), now_ms=0)
    assert empty.due_ms() == 0
    assert empty.build().ends_shard


def test_buffered_bytes_are_freed_with_the_last_record_of_their_slice() -> None:
    """What was taken from the budget comes back exactly once."""
    batches = cutter(max_records=2)
    batches.add(slice_of(records(1, 3)), now_ms=0)
    batches.add(slice_of(records(4, 1)), now_ms=0)
    assert [batches.build().buffered_bytes for _ in range(2)] == [0, 301 + 101]


def test_a_pinned_batch_ends_exactly_at_the_pin_whatever_its_size() -> None:
    """The first batch waits for the whole range and takes no more; then the limits count again."""
    batches = cutter(Position("7"), max_records=2)
    batches.add(slice_of(()), now_ms=0)
    batches.add(slice_of(records(1, 4)), now_ms=0)
    assert batches.due_ms() is None
    batches.add(slice_of(records(5, 6)), now_ms=0)
    assert batches.due_ms() == 0
    pinned, following = batches.build(), batches.build()
    assert (numbers(pinned), pinned.end, pinned.is_pinned) == (list("1234567"), Position("7"), True)
    assert (numbers(following), following.is_pinned) == (["8", "9"], False)


def test_a_pin_that_was_never_reached_does_not_hold_the_shard() -> None:
    """The records before a pin may have been trimmed, or the shard may have ended: what is there is given."""
    trimmed = cutter(Position("7"))
    trimmed.add(slice_of(records(20, 2)), now_ms=0)
    assert trimmed.due_ms() == 0
    assert (trimmed.build().records, numbers(trimmed.build())) == ((), ["20", "21"])
    ended = cutter(Position("7"))
    ended.add(slice_of(records(1, 2), children=()), now_ms=0)
    cut = ended.build()
    assert (numbers(cut), cut.is_pinned, cut.ends_shard) == (["1", "2"], False, True)


def test_a_pinned_range_that_is_too_large_is_cut_as_usual() -> None:
    """More than the buffer may hold is not collected: memory goes before the exact range."""
    batches = BatchBuilder(
        TRIM_HORIZON, BatchSettings(max_records=3), pinned_end=Position("99"), pinned_bytes_max=50
    )
    batches.add(slice_of(records(1, 10, size=10)), now_ms=0)
    cut = batches.build()
    assert (len(cut.records), cut.is_pinned) == (3, False)


@given(
    st.lists(st.integers(0, 30), max_size=10),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 20),
)
def test_every_record_is_in_exactly_one_batch(
    slices: list[int], max_records: int, max_bytes: int, size: int
) -> None:
    """In order, within the limits, with ranges that join, and all bytes freed."""
    batches = cutter(max_records=max_records, max_bytes=max_bytes)
    first = 1
    for count in slices:
        batches.add(slice_of(records(first, count, size=size)), now_ms=0)
        first += count
    cuts = []
    while batches.due_ms() is not None:
        cuts.append(batches.build())
    assert [number for cut in cuts for number in numbers(cut)] == [str(number) for number in range(1, first)]
    assert all(cut.start == before.end for before, cut in pairwise(cuts))
    assert sum(cut.buffered_bytes for cut in cuts) == sum(100 * count + 1 for count in slices)
    for cut in cuts:
        assert len(cut.records) <= max_records
        assert len(cut.records) * size <= max_bytes or len(cut.records) == 1
