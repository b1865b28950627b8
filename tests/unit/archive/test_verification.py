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


def written(store: MemoryObjects, *ranges: Sequence[int], shard: ShardId = A) -> MemoryObjects:
    for numbers in ranges:
        run(archive_on(store).write([PinnedRange(shard, "one", table(records(numbers), shard=shard))]))
    return store


def verdicts(store: MemoryObjects, *, keep: bool = False) -> list[ShardReport]:
    async def story() -> list[ShardReport]:
        listed = await list_archive(store, "")
        return [
            await verify_shard(store, shard, objects, lambda _: None, keep_positions=keep)
            for shard, objects in listed.shards.items()
        ]

    return run(story())


def wrongs(store: MemoryObjects) -> list[ProblemKind]:
    return [problem.kind for verdict in verdicts(store) for problem in verdict.problems]


def test_a_sound_archive_has_nothing_wrong() -> None:
    """Rows are counted by shard, and other people's objects are no concern."""
    store = written(MemoryObjects(), range(1, 5), range(5, 9))
    written(store, range(1, 4), shard=B)
    store.objects["notes.txt"] = b""
    assert run(list_archive(store, "")).others == 1
    first, second = verdicts(store)
    assert (first.shard, first.rows, first.first, first.last) == (A, 8, Position("1"), Position("8"))
    assert (second.shard, second.rows) == (B, 3)
    assert wrongs(store) == []


def test_an_overlap_and_its_duplicates_are_found() -> None:
    """Two objects that claim the same positions are told, and how many records are doubled."""
    store = written(MemoryObjects(), range(1, 9))
    other = written(MemoryObjects(), range(6, 12))
    store.objects |= other.objects
    (verdict,) = verdicts(store)
    overlap, duplicate = verdict.problems
    assert (overlap.kind, duplicate.kind, duplicate.detail) == (
        ProblemKind.OVERLAP,
        ProblemKind.DUPLICATE,
        "3 of 6 records",
    )


def test_a_long_object_is_compared_with_all_that_it_reaches() -> None:
    """A duplicate is found although another object lies between the two."""
    store = written(MemoryObjects(), range(1, 30))
    for numbers in (range(3, 5), range(20, 22)):
        store.objects |= written(MemoryObjects(), numbers).objects
    assert sorted(wrong.value for wrong in wrongs(store)) == ["duplicate"] * 2 + ["overlap"] * 2


@pytest.mark.parametrize(
    ("key", "detail"),
    [
        (ObjectKey(10, A, Range(Position("1"), Position("9")), "parquet"), "begins at 1 and ends at 4"),
        (ObjectKey(11, A, Range(Position("1"), Position("4")), "parquet"), "another minute"),
        (ObjectKey(10, B, Range(Position("1"), Position("4")), "parquet"), "another shard"),
        (ObjectKey(10, A, Range(Position("1"), Position("4")), "jsonl"), "unreadable"),
    ],
)
def test_an_object_that_breaks_the_promise_of_its_name_is_damaged(key: ObjectKey, detail: str) -> None:
    """Ends, minute, shard and format are compared."""
    store = written(MemoryObjects(), range(1, 5))
    (original,) = keys_in(store)
    store.objects[key_to_text(key)] = store.objects.pop(key_to_text(original))
    ((problem,),) = [verdict.problems for verdict in verdicts(store)]
    assert problem.kind is ProblemKind.DAMAGE
    assert detail in problem.detail


# -- gaps, beside the stream ---------------------------------------------------------------------------------------


class StreamOfTen:
    """Ten records in one shard, and any of them in the archive."""

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
        found = verdicts(store, keep=True)
        verdict = found[0] if found else ShardReport(self.shard.id, 0, (), None, None, frozenset())
        shard: Shard = self.shard
        problem = run(find_gap(self.stream, shard, verdict, done, clock=NoWaiting()))
        return (problem.location, problem.detail) if problem else None

    def at(self, number: int) -> Position:
        return Position(self.numbers[number])


def test_records_missing_between_archived_ones_are_a_gap() -> None:
    """The first and the last of them are named; what came before the archive began, or is still to come, is none."""
    world = StreamOfTen()
    assert world.gap(range(10)) is None
    assert world.gap([3, 4, 5]) is None
    first, detail = world.gap([2, 3, 6, 8]) or ("", "")
    assert first == world.numbers[4]
    assert detail == f"3 records that the stream holds, to {world.numbers[7]}"


def test_what_the_lease_calls_done_must_be_there() -> None:
    """A checkpoint beyond the last archived record shows what was lost, even if nothing was archived at all."""
    world = StreamOfTen()
    assert world.gap([3, 4], world.at(4)) is None
    assert (world.gap([3, 4], world.at(6)) or ("",))[0] == world.numbers[5]
    assert (world.gap([], world.at(6)) or ("",))[0] == world.numbers[6]
    assert (world.gap([], SHARD_END) or ("",))[0] == world.numbers[0]
    assert world.gap([], TRIM_HORIZON) is None
    assert world.gap([], None) is None
