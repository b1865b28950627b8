"""Verification of an archive finds exactly its problems."""

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.archive.formats import encode
from leasehold.archive.rows import PinnedRange
from leasehold.archive.verification import (
    MAX_CONCURRENT_READS,
    ProblemKind,
    ShardReport,
    find_gap,
    list_archive,
    stored_stream,
    verify_shard,
)
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.record import UserRecord
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import Page
from tests.unit.archive.archive_world import A, B, NoWaiting, archive_on, keys_in, records, run, table


def write_ranges(store: MemoryObjects, *ranges: Sequence[int], shard: ShardId = A) -> MemoryObjects:
    for numbers in ranges:
        run(archive_on(store).write([PinnedRange(shard, "one", table(records(numbers), shard=shard))]))
    return store


def verify(store: MemoryObjects, *, keep: bool = False, stream: str | None = None) -> list[ShardReport]:
    async def verify_all() -> list[ShardReport]:
        listed = await list_archive(store, "")
        return [
            await verify_shard(store, shard, objects, lambda _: None, keep_positions=keep, stream=stream)
            for shard, objects in listed.shards.items()
        ]

    return run(verify_all())


def problem_kinds(store: MemoryObjects) -> list[ProblemKind]:
    return [problem.kind for report in verify(store) for problem in report.problems]


def test_a_correct_archive_has_no_problems() -> None:
    """Rows are counted by shard, and foreign objects are ignored."""
    store = write_ranges(MemoryObjects(), range(1, 5), range(5, 9))
    write_ranges(store, range(1, 4), shard=B)
    store.objects["notes.txt"] = b""
    assert run(list_archive(store, "")).others == 1
    first, second = verify(store)
    assert (first.shard, first.rows, first.first, first.last) == (A, 8, Position("1"), Position("8"))
    assert (second.shard, second.rows) == (B, 3)
    assert problem_kinds(store) == []


def test_positions_are_only_kept_if_they_are_wanted() -> None:
    """Those of a large archive do not fit into memory."""
    store = write_ranges(MemoryObjects(), range(1, 5))
    objects = run(list_archive(store, "")).shards[A]
    assert run(verify_shard(store, A, objects, lambda _: None)).positions == frozenset()
    kept = run(verify_shard(store, A, objects, lambda _: None, keep_positions=True))
    assert {each.number for each in kept.positions} == {1, 2, 3, 4}


def test_an_overlap_and_its_duplicates_are_found() -> None:
    """Verification reports two objects with overlapping ranges, and the number of duplicates."""
    store = write_ranges(MemoryObjects(), range(1, 9))
    other = write_ranges(MemoryObjects(), range(6, 12))
    store.objects |= other.objects
    (report,) = verify(store)
    overlap, duplicate = report.problems
    assert (overlap.kind, duplicate.kind, duplicate.detail) == (
        ProblemKind.OVERLAP,
        ProblemKind.DUPLICATE,
        "3 of 6 records",
    )


@settings(max_examples=60)
@given(st.sets(st.integers(2, 40)), st.integers(1, 40), st.integers(0, 5))
def test_every_overlap_is_found_down_to_one_record(cuts: set[int], first: int, more: int) -> None:
    """Any part of a correct archive that is written again is reported, with the number of its records."""
    ends = [1, *sorted(cuts), 41]
    store = write_ranges(MemoryObjects(page_size=3), *(range(*each) for each in pairwise(ends)))
    assert problem_kinds(store) == []
    again = range(first, min(first + more, 40) + 1)
    copies = write_ranges(MemoryObjects(), again).objects
    if copies.keys() <= store.objects.keys():
        return  # the same object
    store.objects |= copies
    for keep in (False, True):
        (report,) = verify(store, keep=keep)
        kinds = {problem.kind for problem in report.problems}
        assert kinds == {ProblemKind.OVERLAP, ProblemKind.DUPLICATE}
        repeated = [each.detail for each in report.problems if each.kind is ProblemKind.DUPLICATE]
        assert sum(int(detail.split()[0]) for detail in repeated) == len(again)


def test_objects_of_other_minutes_may_interleave_but_not_repeat_a_record() -> None:
    """Ranges are compared within a minute, records with all objects of the shard."""
    store = MemoryObjects()
    rows = records([1, 2, 3, 4], minute=lambda number: 10 + number % 2)
    run(archive_on(store).write([PinnedRange(A, "one", table(rows))]))
    assert problem_kinds(store) == []
    other = MemoryObjects()
    run(archive_on(other).write([PinnedRange(A, "one", table(records([3], minute=lambda _: 9)))]))
    store.objects |= other.objects
    (report,) = verify(store)
    assert [(each.kind, each.detail) for each in report.problems] == [
        (ProblemKind.DUPLICATE, "1 of 1 records")
    ]
    assert (report.rows, report.first, report.last) == (5, Position("1"), Position("4"))


def test_every_object_is_read() -> None:
    """Objects are read in groups. The last group may be smaller."""
    store = write_ranges(
        MemoryObjects(page_size=7), *([number] for number in range(1, MAX_CONCURRENT_READS + 4))
    )
    (report,) = verify(store)
    assert (report.rows, report.problems) == (MAX_CONCURRENT_READS + 3, ())
    store.objects[max(each for each in store.objects if key_from_text(each))] = b"?"
    (report,) = verify(store)
    assert [problem.kind for problem in report.problems] == [ProblemKind.DAMAGE]


def object_with(
    rows: Sequence[UserRecord], first: str, last: str, *, minute: int = 10, shard: ShardId = A
) -> MemoryObjects:
    """An archive with one object, which another program wrote."""
    key = ObjectKey(minute, A, Range(Position(first), Position(last)), "parquet")
    store = MemoryObjects()
    store.objects[key_to_text(key)] = encode(table(rows, shard=shard), "parquet", "zstd")
    return store


def test_a_record_that_is_twice_in_an_object_is_a_duplicate() -> None:
    """The records of an object must be in order, without repetition."""
    store = object_with(records([1, 2, 2, 3]), "1", "3")
    (report,) = verify(store)
    assert [(each.kind, each.detail) for each in report.problems] == [
        (ProblemKind.DAMAGE, "its records are out of order"),
        (ProblemKind.DUPLICATE, "1 of 4 records"),
    ]
    assert problem_kinds(object_with(records([1, 3, 2, 4]), "1", "4")) == [ProblemKind.DAMAGE]


@pytest.mark.parametrize(
    ("rows", "ends", "detail"),
    [
        (records([1, 2, 3], minute=lambda number: 11 if number == 2 else 10), "13", "another minute"),
        (records([1, 2, 3], minute=lambda number: 11 if number == 3 else 10), "13", "another minute"),
        (records([1, 2, 3]), "12", "ends at 3"),
        (records([1, 2, 3]), "14", "ends at 3"),
        (records([1, 2, 3]), "03", "begins at 1"),
        (records([1, 2, 3]), "23", "begins at 1"),
        ([], "13", "it holds no records"),
    ],
)
def test_one_record_that_does_not_match_the_key_is_damage(
    rows: list[UserRecord], ends: str, detail: str
) -> None:
    """Every record is compared, not only the first."""
    ((problem,),) = [report.problems for report in verify(object_with(rows, *ends))]
    assert problem.kind is ProblemKind.DAMAGE
    assert detail in problem.detail


def test_a_row_of_another_shard_is_damage() -> None:
    """Its object is complete otherwise."""
    mixed = pa.concat_tables([table(records([1])), table(records([2]), shard=B)])
    store = object_with([], "1", "2")
    (name,) = store.objects
    store.objects[name] = encode(mixed, "parquet", "zstd")
    ((problem,),) = [report.problems for report in verify(store)]
    assert problem.detail == "it holds records of another shard"


ORDERS_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "avro"])
@pytest.mark.parametrize(
    ("streams", "marker", "is_damage"),
    [
        (["clicks", "clicks"], "orders", True),
        (["orders", "clicks"], "orders", True),
        (["clicks", "clicks"], ORDERS_ARN, True),
        (["orders", "orders"], "orders", False),
        (["orders", ORDERS_ARN], "orders", False),
        (["orders", None], ORDERS_ARN, False),
        ([1, 2], "orders", False),
        (None, "orders", False),
        (["clicks", "clicks"], None, False),
    ],
)
def test_a_row_of_another_stream_is_damage(
    extension: str, streams: list[str] | None, marker: str | None, is_damage: bool
) -> None:
    """The rows of an object may lack the column, or a program may have put something else into it."""
    rows = table(records([1, 2])).drop_columns(["slice", "stream"])
    if streams is not None:
        rows = rows.append_column("stream", pa.array(streams))
    store = MemoryObjects()
    key = ObjectKey(10, A, Range(Position("1"), Position("2")), extension)
    store.objects[key_to_text(key)] = encode(rows, extension, "zstd")
    (report,) = verify(store, stream=marker)
    details = [(each.kind, each.detail) for each in report.problems]
    assert details == ([(ProblemKind.DAMAGE, "it holds records of another stream")] if is_damage else [])
    assert report.rows == 2


def test_the_stream_of_an_archive_is_in_its_marker() -> None:
    store = write_ranges(MemoryObjects(), range(1, 5))
    assert run(stored_stream(store, "")) == "orders"
    assert run(stored_stream(store, "other")) is None


def test_a_long_object_is_compared_with_all_objects_in_its_range() -> None:
    """A duplicate is found although another object lies between the two."""
    store = write_ranges(MemoryObjects(), range(1, 30))
    for numbers in (range(3, 5), range(20, 22)):
        store.objects |= write_ranges(MemoryObjects(), numbers).objects
    assert sorted(kind.value for kind in problem_kinds(store)) == ["duplicate"] * 2 + ["overlap"] * 2


@pytest.mark.parametrize(
    ("key", "detail"),
    [
        (ObjectKey(10, A, Range(Position("1"), Position("9")), "parquet"), "begins at 1 and ends at 4"),
        (ObjectKey(11, A, Range(Position("1"), Position("4")), "parquet"), "another minute"),
        (ObjectKey(10, B, Range(Position("1"), Position("4")), "parquet"), "another shard"),
        (ObjectKey(10, A, Range(Position("1"), Position("4")), "jsonl"), "unreadable"),
    ],
)
def test_an_object_that_does_not_match_its_key_is_damaged(key: ObjectKey, detail: str) -> None:
    """Verification compares the range, the minute, the shard and the format."""
    store = write_ranges(MemoryObjects(), range(1, 5))
    (original,) = keys_in(store)
    store.objects[key_to_text(key)] = store.objects.pop(key_to_text(original))
    ((problem,),) = [report.problems for report in verify(store)]
    assert problem.kind is ProblemKind.DAMAGE
    assert detail in problem.detail


def test_a_file_that_an_interrupted_writer_left_is_a_stray() -> None:
    """Readers do not ignore a file with the name of an object and a number. They ignore names with an underscore."""
    store = write_ranges(MemoryObjects(), range(1, 5))
    (name,) = [key_to_text(key) for key in keys_in(store)]
    for left in (f"{name}#1", f"{name}#27", f"{name}#", f"{name}#x", "notes#1", "_leasehold_staging/0f.tmp"):
        store.objects[left] = b""
    contents = run(list_archive(store, ""))
    assert [(each.kind, each.shard, each.location) for each in contents.strays] == [
        (ProblemKind.STRAY, A, f"{name}#1"),
        (ProblemKind.STRAY, A, f"{name}#27"),
    ]
    assert contents.others == 4
    assert [len(objects) for objects in contents.shards.values()] == [1]


# -- gaps, beside the stream ---------------------------------------------------------------------------------------


class StreamOfTen:
    """A shard with ten records, and an archive with some of them."""

    def __init__(self) -> None:
        self.service = service = KinesisModel()
        service.create_stream(0, "orders", shard_count=1)
        self.stream = MemoryStream(service, "orders", NoWaiting())
        (self.shard,) = run(self.stream.list_shards())
        self.numbers = [
            str(service.put_record(0, "orders", PutRequest("key", b"%d" % n, None)).number) for n in range(10)
        ]

    def gap(
        self, archived: Sequence[int | Sequence[int]], done: Position | None = None, **archive: str
    ) -> tuple[str, str] | None:
        """The gap of an archive with an object for each number, or for several numbers."""
        store = MemoryObjects()
        for each in archived:
            rows = [
                UserRecord(b"", "key", self.numbers[number], 1)
                for number in ([each] if isinstance(each, int) else each)
            ]
            pinned = PinnedRange(self.shard.id, "one", table(rows, shard=self.shard.id))
            run(archive_on(store, **archive).write([pinned]))
        found = verify(store, keep=True)
        report = found[0] if found else ShardReport(self.shard.id, 0, (), None, None, frozenset())
        shard: Shard = self.shard
        problem = run(find_gap(self.stream, shard, report, done, clock=NoWaiting()))
        return (problem.location, problem.detail) if problem else None

    def at(self, number: int) -> Position:
        return Position(self.numbers[number])


def test_records_missing_between_archived_ones_are_a_gap() -> None:
    """The problem names the first and the last missing record. Records outside the archived ones do not count."""
    world = StreamOfTen()
    assert world.gap(range(10)) is None
    assert world.gap([3, 4, 5]) is None
    first, detail = world.gap([2, 3, 6, 8]) or ("", "")
    assert first == world.numbers[4]
    assert detail == f"3 records that the stream holds, to {world.numbers[7]}"


def test_the_stream_is_compared_to_the_last_archived_record() -> None:
    """Both ends are included: the first and the last archived record, and the checkpoint."""
    world = StreamOfTen()
    assert world.gap([0, 2, 3]) == (
        world.numbers[1],
        f"1 records that the stream holds, to {world.numbers[1]}",
    )
    assert world.gap([0], world.at(1)) == (
        world.numbers[1],
        f"1 records that the stream holds, to {world.numbers[1]}",
    )
    assert world.gap([], world.at(0)) == (
        world.numbers[0],
        f"1 records that the stream holds, to {world.numbers[0]}",
    )


def test_an_empty_page_before_the_tip_is_not_the_end_of_the_stream() -> None:
    """Kinesis returns pages without records although more records follow."""

    class SparseStream(MemoryStream):
        """Returns an empty page before every page with records."""

        is_empty_next = True

        async def get_records(self, iterator: str, *, limit: int) -> Page:
            self.is_empty_next = not self.is_empty_next
            if not self.is_empty_next:
                return Page((), iterator, millis_behind=1_000)
            return await super().get_records(iterator, limit=1)

    world = StreamOfTen()
    world.stream = SparseStream(world.service, "orders", NoWaiting())
    assert world.gap([0, 1, 2, 9]) == (
        world.numbers[3],
        f"6 records that the stream holds, to {world.numbers[8]}",
    )


def test_records_up_to_the_checkpoint_must_be_archived() -> None:
    """A checkpoint beyond the last archived record reveals lost records, even if nothing was archived."""
    world = StreamOfTen()
    assert world.gap([3, 4], world.at(4)) is None
    assert (world.gap([3, 4], world.at(6)) or ("",))[0] == world.numbers[5]
    assert world.gap([], world.at(6)) == (
        world.numbers[0],
        f"7 records that the stream holds, to {world.numbers[6]}",
    )
    assert (world.gap([], SHARD_END) or ("",))[0] == world.numbers[0]
    assert world.gap([], TRIM_HORIZON) is None
    assert world.gap([], None) is None
