"""Verification of an archive finds exactly its problems."""

from collections.abc import Sequence

import pytest

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.archive.rows import PinnedRange
from leasehold.archive.verification import ProblemKind, ShardReport, find_gap, list_archive, verify_shard
from leasehold.core.exactly_once.object_keys import ObjectKey, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import Shard, ShardId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.record import UserRecord
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from tests.unit.archive.archive_world import A, B, NoWaiting, archive_on, keys_in, records, run, table


def write_ranges(store: MemoryObjects, *ranges: Sequence[int], shard: ShardId = A) -> MemoryObjects:
    for numbers in ranges:
        run(archive_on(store).write([PinnedRange(shard, "one", table(records(numbers), shard=shard))]))
    return store


def verify(store: MemoryObjects, *, keep: bool = False) -> list[ShardReport]:
    async def verify_all() -> list[ShardReport]:
        listed = await list_archive(store, "")
        return [
            await verify_shard(store, shard, objects, lambda _: None, keep_positions=keep)
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
        service = KinesisModel()
        service.create_stream(0, "orders", shard_count=1)
        self.stream = MemoryStream(service, "orders", NoWaiting())
        (self.shard,) = run(self.stream.list_shards())
        self.numbers = [
            str(service.put_record(0, "orders", PutRequest("key", b"%d" % n, None)).number) for n in range(10)
        ]

    def gap(self, archived: Sequence[int], done: Position | None = None) -> tuple[str, str] | None:
        rows = [UserRecord(b"", "key", self.numbers[number], 1) for number in archived]
        store = MemoryObjects()
        for row in rows:
            run(
                archive_on(store).write(
                    [PinnedRange(self.shard.id, "one", table([row], shard=self.shard.id))]
                )
            )
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


def test_records_up_to_the_checkpoint_must_be_archived() -> None:
    """A checkpoint beyond the last archived record reveals lost records, even if nothing was archived."""
    world = StreamOfTen()
    assert world.gap([3, 4], world.at(4)) is None
    assert (world.gap([3, 4], world.at(6)) or ("",))[0] == world.numbers[5]
    assert (world.gap([], world.at(6)) or ("",))[0] == world.numbers[6]
    assert (world.gap([], SHARD_END) or ("",))[0] == world.numbers[0]
    assert world.gap([], TRIM_HORIZON) is None
    assert world.gap([], None) is None
