"""Compaction merges objects without losing, doubling or hiding a record, wherever it is interrupted."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.adapters.memory.faults import FaultyObjects, StoreFault
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive.compaction import CompactionReport, CompactionSettings, Compactor, compact
from leasehold.archive.compaction_lock import HELD_MS, LOCK_FOLDER, CompactionLock
from leasehold.archive.decoding import decode
from leasehold.archive.formats import encode
from leasehold.archive.merging import merge_rows
from leasehold.archive.rows import PinnedRange, to_archive_rows
from leasehold.archive.verification import ProblemKind, list_archive, verify_shard
from leasehold.cli.archive_compact import compact as compact_command
from leasehold.core.exactly_once.archive_reading import UNSETTLED_OBJECTS, parts_to_read
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, key_to_text
from leasehold.errors import CompactionLockedError, ConfigError, UnavailableError
from leasehold.ports import Clock, Created, Exists, ObjectStore
from tests.unit.archive.archive_world import A, B, archive_on, keys_in, records, run, table
from tests.unit.archive.test_verification import verify

RECORDS = 30
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Timer(Clock):
    """A clock that only sleeps advance, three days after the records arrived."""

    def __init__(self) -> None:
        self.ms = 3 * 24 * HOUR_MS

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.ms += duration_ms
        await asyncio.sleep(0)


class World:
    """An archive of one shard with small objects, and its compaction."""

    def __init__(self, **archive: Any) -> None:
        self.timer = Timer()
        self.store = MemoryObjects(now_ms=self.timer.wall_ms)
        self.archive = archive
        self.write([[number] for number in range(RECORDS)])

    def write(self, ranges: Sequence[Sequence[int]], session: str = "one") -> int:
        """Write pinned ranges, a day ago. Returns the number of rows that the archive had already."""
        pinned = [PinnedRange(A, session, table(records(each, minute=lambda n: n // 3))) for each in ranges]
        dropped = run(archive_on(self.store, **self.archive).write(pinned)).dropped_rows
        self.timer.ms += 2 * DAY_MS
        return dropped

    def compact(self, store: ObjectStore | None = None, **settings: Any) -> CompactionReport:
        chosen = CompactionSettings(**settings)
        lock = CompactionLock(store or self.store, chosen.prefix, self.timer, owner=str(random.random()))
        return run(compact(self._compactor(store, chosen), lock, on_plan=lambda _plan: lambda _objects: None))

    def compact_and_delete(self, store: ObjectStore | None = None) -> CompactionReport:
        """Compact, and an hour later delete the small objects."""
        report = self.compact(store)
        self.timer.ms += HOUR_MS
        report.add(self.compact(store))
        return report

    def _compactor(self, store: ObjectStore | None, chosen: CompactionSettings) -> Compactor:
        async def call(function: Any, *arguments: Any) -> Any:
            return function(*arguments)

        return Compactor(store or self.store, chosen, clock=self.timer, rng=random.Random(1), in_thread=call)

    def read(self) -> list[int]:
        """What a reader sees: the records of the objects that it chooses by name, in their order."""
        found: list[int] = []
        for part in parts_to_read(keys_in(self.store)):
            body = self.store.objects[key_to_text(part.key)]
            numbers = decode(body, part.key.extension)["sequenceNumber"].to_pylist()
            found += [int(each) for each in numbers if part.after is None or int(each) > part.after.number]
        return found

    def compacted(self) -> list[ObjectKey]:
        return [key for key in keys_in(self.store) if key.is_compacted]


FORMATS = [
    {"format": "parquet"},
    {"format": "jsonl", "compression": "zstd"},
    {"format": "jsonl", "compression": "none"},
    {"format": "avro"},
]


@pytest.mark.parametrize("archive", FORMATS)
def test_small_objects_become_one_and_are_deleted_after_a_while(archive: dict[str, str]) -> None:
    """The rows keep their columns and values. Small objects stay for an hour, and readers ignore them."""
    world = World(**archive)
    before = {key.range.first.number: world.store.objects[key_to_text(key)] for key in keys_in(world.store)}
    settled = RECORDS - UNSETTLED_OBJECTS
    report = world.compact()
    assert (report.merged, report.created, report.deleted, report.skipped) == (settled, 1, 0, [])
    assert world.read() == list(range(RECORDS))
    assert len(keys_in(world.store)) == RECORDS + 1
    assert verify(world.store)[0].problems == ()
    (large,) = world.compacted()
    assert (large.first_minute, large.minute) == (0, (settled - 1) // 3)
    if archive == {"format": "jsonl", "compression": "none"}:
        merged = world.store.objects[key_to_text(large)]
        assert merged == b"".join(before[number] for number in range(settled))
    world.timer.ms += HOUR_MS - 1_000
    assert world.compact().deleted == 0
    world.timer.ms += HOUR_MS
    assert world.compact().deleted == settled
    assert world.read() == list(range(RECORDS))
    assert len(keys_in(world.store)) == UNSETTLED_OBJECTS + 1
    assert verify(world.store)[0].problems == ()


OTHER_TYPES = [
    ({"amount": 1}, {"amount": "one"}),
    ({"amount": 2**60}, {"amount": 0.5}),
    ({}, {"data": {"a": 1}}),
    ({"amount": 1}, {"amount": None}),
]


@pytest.mark.parametrize(("first", "later"), OTHER_TYPES)
def test_json_lines_whose_values_fit_into_no_column_are_not_merged(
    first: dict[str, Any], later: dict[str, Any]
) -> None:
    """A program has changed the type of a column. Readers can read every object, before and after a compaction."""
    world = World(format="jsonl", compression="none")
    for key in keys_in(world.store):
        lines = world.store.objects[key_to_text(key)].splitlines()
        added = first if key.range.first.number < RECORDS // 3 else later
        changed = [orjson.dumps({**orjson.loads(line), **added}) for line in lines]
        world.store.objects[key_to_text(key)] = b"".join(each + b"\n" for each in changed)
    assert world.read() == list(range(RECORDS))
    report = world.compact_and_delete()
    assert report.created >= 1
    assert report.deleted >= RECORDS - 3 * UNSETTLED_OBJECTS
    assert world.read() == list(range(RECORDS))
    assert verify(world.store)[0].problems == ()


def test_small_objects_stay_if_the_payloads_of_the_large_one_cannot_be_read() -> None:
    """Positions and payloads are different parts of a Parquet object. A damage of either is found."""
    world = World(compression="none")
    world.compact()
    (large,) = world.compacted()
    name = key_to_text(large)
    _damage_payloads(world.store, name)
    (report,) = verify(world.store)
    assert (ProblemKind.DAMAGE, name) in {(each.kind, each.location) for each in report.problems}
    world.timer.ms += 2 * HOUR_MS
    result = world.compact()
    assert result.deleted == 0
    assert result.skipped == [f"{name}: unreadable: OSError; the objects that it replaces stay"]


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_a_changed_byte_of_a_payload_is_damage(compression: str) -> None:
    """Each page has a checksum. Compression alone does not show the change."""
    world = World(compression=compression)
    name = key_to_text(keys_in(world.store)[0])
    body = bytearray(world.store.objects[name])
    group = pq.ParquetFile(pa.BufferReader(bytes(body))).metadata.row_group(0)
    (column,) = (
        each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == "data"
    )
    body[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    world.store.objects[name] = bytes(body)
    (report,) = verify(world.store)
    assert [(each.kind, each.location) for each in report.problems] == [(ProblemKind.DAMAGE, name)]


def _damage_payloads(store: MemoryObjects, name: str) -> None:
    group = pq.ParquetFile(pa.BufferReader(store.objects[name])).metadata.row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    first = columns["data"].data_page_offset
    body = bytearray(store.objects[name])
    body[first : first + 4] = bytes(each ^ 0xFF for each in body[first : first + 4])
    store.objects[name] = bytes(body)


def test_rows_keep_their_columns_and_payloads() -> None:
    world = World()
    small = [key for key in keys_in(world.store) if key.range.last.number < RECORDS - UNSETTLED_OBJECTS]
    rows = pa.concat_tables(_rows(world.store, key) for key in small)
    world.compact()
    (large,) = world.compacted()
    assert _rows(world.store, large).equals(rows)


def _rows(store: MemoryObjects, key: ObjectKey) -> Any:
    return pq.read_table(pa.BufferReader(store.objects[key_to_text(key)]))


def test_compacted_records_count_as_archived_after_the_loss_of_the_lease_table() -> None:
    """A writer that reads the stream again, in other ranges, finds all records in the names, and adds what is new."""
    world = World()
    world.compact_and_delete()
    assert len(keys_in(world.store)) == UNSETTLED_OBJECTS + 1
    again = [range(number, number + 7) for number in range(0, RECORDS + 2, 7)]
    assert world.write(again, session="two") == RECORDS
    assert world.read() == list(range(35))
    assert verify(world.store)[0].problems == ()


def test_a_writer_that_repeats_an_old_range_does_not_double_its_records() -> None:
    """Its small object was deleted. It is created again, and readers ignore it, because its name lies within."""
    world = World()
    small = dict(world.store.objects)
    world.compact_and_delete()
    world.store.objects |= {name: body for name, body in small.items() if key_from_text(name)}
    assert world.read() == list(range(RECORDS))
    assert verify(world.store)[0].problems == ()
    assert world.compact().deleted == RECORDS - UNSETTLED_OBJECTS
    assert world.read() == list(range(RECORDS))


def test_every_interruption_leaves_a_complete_archive() -> None:
    """The run ends before or after any call to the store. Readers see each record once, and the next run continues."""
    world = World(format="jsonl", compression="none")
    saved = dict(world.store.objects)
    for fault in (StoreFault.RESPONSE_LOST, StoreFault.REQUEST_LOST):
        for calls in range(0, 100, 4):
            world.store.objects = dict(saved)
            left = iter(range(calls))
            faulty = FaultyObjects(world.store, lambda *_: fault if next(left, None) is None else None)  # noqa: B023
            try:
                world.compact_and_delete(faulty)
            except UnavailableError:
                assert world.read() == list(range(RECORDS))
            world.compact_and_delete()
            assert world.read() == list(range(RECORDS))
            assert len(keys_in(world.store)) == UNSETTLED_OBJECTS + 1
    assert verify(world.store)[0].problems == ()


def test_another_run_merges_compacted_objects_again() -> None:
    """As the archive grows, large objects are made from smaller ones, and shards do not mix."""
    world = World()
    world.compact_and_delete()
    other = [PinnedRange(B, "one", table(records([number]), shard=B)) for number in range(30)]
    run(archive_on(world.store).write(other))
    world.write([[number] for number in range(RECORDS, 3 * RECORDS)])
    world.compact_and_delete()
    spans = [(key.shard, key.range.first.number, key.range.last.number) for key in world.compacted()]
    assert sorted(spans) == [(A, 0, 3 * RECORDS - UNSETTLED_OBJECTS - 1), (B, 0, 30 - UNSETTLED_OBJECTS - 1)]
    assert [report.problems for report in verify(world.store)] == [(), ()]


def test_a_change_of_columns_begins_another_object() -> None:
    """Objects of one schema are merged. The others follow in an object of their own."""
    world = World()
    for key in keys_in(world.store):
        if key.range.first.number >= 10:
            rows = _rows(world.store, key)
            more = rows.append_column("more", pa.array(["x"] * rows.num_rows))
            world.store.objects[key_to_text(key)] = encode(more, "parquet", "zstd")
    assert world.compact_and_delete().skipped == []
    ends = [(key.range.first.number, key.range.last.number) for key in world.compacted()]
    assert sorted(ends) == [(0, 9), (10, RECORDS - UNSETTLED_OBJECTS - 1)]
    assert world.read() == list(range(RECORDS))


def test_a_damaged_object_is_neither_merged_nor_deleted() -> None:
    """The objects beside it stay too, and the report names it."""
    world = World()
    damaged = key_to_text(keys_in(world.store)[5])
    world.store.objects[damaged] = b"?"
    (sentence,) = world.compact().skipped
    assert sentence.startswith(f"{damaged}: unreadable")
    assert world.compacted() == []


def test_a_damaged_large_object_does_not_end_the_compaction() -> None:
    """The objects that it replaces stay, the report names it, and other shards are compacted."""
    world = World()
    world.compact()
    (large,) = world.compacted()
    world.store.objects[key_to_text(large)] = world.store.objects[key_to_text(large)][:-9]
    other = [PinnedRange(B, "one", table(records([number]), shard=B)) for number in range(30)]
    run(archive_on(world.store).write(other))
    world.timer.ms += 2 * DAY_MS
    world.compact()
    world.timer.ms += 2 * HOUR_MS
    report = world.compact()
    assert report.deleted == 30 - UNSETTLED_OBJECTS
    (sentence,) = report.skipped
    assert sentence == f"{key_to_text(large)}: unreadable: ArrowInvalid; the objects that it replaces stay"
    assert len([key for key in keys_in(world.store) if key.shard == A]) == RECORDS + 1


def test_a_gap_that_a_writer_is_about_to_fill_is_not_claimed() -> None:
    """It adds older records, and one is in flight. A compacted object around it would count as its record."""
    world = World()
    world.store.objects.clear()
    world.write([[number] for number in range(60, 100)])
    older = PinnedRange(A, "two", table(records(range(60), minute=lambda n: n // 3)))
    run(archive_on(world.store).write([older]))
    in_flight = next(key for key in keys_in(world.store) if key.range.first.number == 30)
    body = world.store.objects.pop(key_to_text(in_flight))
    assert world.compact().merged == 0
    world.store.objects[key_to_text(in_flight)] = body
    assert world.read() == list(range(100))
    world.timer.ms += 2 * DAY_MS
    assert world.compact().merged > 0
    assert world.read() == list(range(100))


def test_a_record_that_only_the_small_object_has_is_kept() -> None:
    """Another program may write under a name within a compacted object. Verification reports it."""
    world = World()
    world.compact_and_delete()
    key = ObjectKey(4, A, keys_in(world.store)[0].range, "parquet")
    foreign = records([3], minute=lambda _: 4)
    inside = ObjectKey(4, A, type(key.range)(foreign[0].position, foreign[0].position), "parquet")
    row = table([foreign[0]._replace(sub_sequence_number=7)])
    world.store.objects[key_to_text(inside)] = encode(row.drop_columns(["slice"]), "parquet", "zstd")
    problems = verify(world.store)[0].problems
    assert [each.kind for each in problems] == [ProblemKind.DAMAGE, ProblemKind.OMISSION]
    (sentence,) = world.compact().skipped
    assert "some of its records are not in the object that replaces it" in sentence
    assert key_to_text(inside) in world.store.objects


def test_every_attempt_at_a_change_requires_the_lock() -> None:
    """The store is away for longer than the lock is held, and another process may have planned meanwhile."""
    world = World()
    compactor = world._compactor(None, CompactionSettings())
    (group,) = run(compactor.plan(store_time_ms=world.timer.ms)).groups
    attempts = iter([StoreFault.REQUEST_LOST])
    faulty = FaultyObjects(
        world.store, lambda operation, _: next(attempts, None) if operation in {"put", "delete"} else None
    )
    interrupted = world._compactor(faulty, CompactionSettings())
    held = iter([None])

    def require_lock() -> None:
        if next(held, "lost") is not None:
            raise CompactionLockedError

    interrupted.require_lock = require_lock
    with pytest.raises(CompactionLockedError):
        run(interrupted.merge(group))
    assert world.compacted() == []
    run(compactor.merge(group))
    world.timer.ms += HOUR_MS
    deletions = run(compactor.plan(store_time_ms=world.timer.ms)).deletions[:1]
    attempts, held = iter([StoreFault.REQUEST_LOST]), iter([None])
    with pytest.raises(CompactionLockedError):
        run(interrupted.delete(deletions))
    assert deletions[0].object.name in world.store.objects


def test_small_objects_are_not_deleted_at_once() -> None:
    """A listing that passed the place of the large object before it was created would find none of them."""
    with pytest.raises(ConfigError, match="delete_after: expected at least one minute"):
        CompactionSettings(delete_after_ms=0)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_rows_of_overlapping_objects_are_merged_in_order(is_reversed: bool) -> None:
    """Each record once, in the order of the shard, whatever the order of the objects."""
    parts = [to_archive_rows(table(records(numbers))) for numbers in ([1, 4, 6], [2, 3, 4], [9, 10])]
    merged = merge_rows(parts[::-1] if is_reversed else parts)
    assert [int(each) for each in merged["sequenceNumber"].to_pylist()] == [1, 2, 3, 4, 6, 9, 10]


class _StoreClock:
    """The clock of the store, which differs from ours."""

    def __init__(self, timer: Timer, difference_ms: int) -> None:
        self._timer = timer
        self._difference_ms = difference_ms

    def __call__(self) -> int:
        return self._timer.ms - self._difference_ms


@pytest.mark.parametrize("ahead_ms", [-2 * HOUR_MS, 2 * HOUR_MS], ids=["behind", "ahead"])
def test_small_objects_are_deleted_by_the_clock_of_the_store(ahead_ms: int) -> None:
    """Our own clock may be hours off. Readers that list the archive now need the small objects for the whole time."""
    world = World()
    world.store._now_ms = _StoreClock(world.timer, ahead_ms)
    created = world.compact()
    assert (created.created, created.deleted) == (1, 0)
    world.timer.ms += HOUR_MS - 1_000
    assert world.compact().deleted == 0
    world.timer.ms += 1_000
    assert world.compact().deleted == created.merged


class _SlowPuts(MemoryObjects):
    """Creates an object at once. The response takes half a minute."""

    def __init__(self, timer: Timer) -> None:
        super().__init__(now_ms=timer.wall_ms)
        self._timer = timer

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        outcome = await super().put_if_absent(key, body)
        self._timer.ms += HELD_MS // 2
        return outcome


@pytest.mark.parametrize("is_renewed", [False, True])
def test_the_lock_is_held_from_before_it_was_written(is_renewed: bool) -> None:
    """Other processes count from when they see the number, which may be long before our response."""
    timer = Timer()
    lock = CompactionLock(_SlowPuts(timer), "", timer, owner="ours")

    async def hold() -> None:
        await lock.acquire()
        if is_renewed:
            await lock.renew()

    run(hold())
    lock.require_held()
    timer.ms += HELD_MS // 2
    lock.require_held()
    timer.ms += 1
    with pytest.raises(CompactionLockedError):
        lock.require_held()


def test_two_compactions_do_not_run_at_the_same_time() -> None:
    """A second one is refused while the first renews the lock, and takes over when the first was killed."""
    world = World()
    first = CompactionLock(world.store, "", world.timer, owner="first")
    second = CompactionLock(world.store, "", world.timer, owner="second")

    async def race() -> None:
        await first.acquire()
        renewal = asyncio.ensure_future(first.keep())
        with pytest.raises(CompactionLockedError):
            await second.acquire()
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        await second.acquire()  # nothing has renewed the lock for a minute
        with pytest.raises(CompactionLockedError):
            await first.keep()
        with pytest.raises(CompactionLockedError):
            first.require_held()
        second.require_held()
        await second.release()
        waits: list[str] = []
        await CompactionLock(world.store, "", world.timer, owner="third").acquire(waits.append)
        assert waits == []

    run(race())
    assert len([name for name in world.store.objects if name.startswith(LOCK_FOLDER)]) == 1


def test_processes_of_one_compaction_share_the_lock() -> None:
    """Each renews it for all. Nobody can renew it after the release, or after another compaction has taken it."""
    world = World()
    driver, task, late = (CompactionLock(world.store, "", world.timer, owner="first") for _ in range(3))
    other = CompactionLock(world.store, "", world.timer, owner="other")

    async def share() -> None:
        with pytest.raises(CompactionLockedError):
            await task.renew()  # nobody has it yet
        await driver.acquire()
        await asyncio.gather(task.renew(), driver.renew(), task.renew())
        world.timer.ms += 30_000
        await task.renew()
        world.timer.ms += 30_000
        task.require_held()
        with pytest.raises(CompactionLockedError):
            driver.require_held()  # it cannot know of the renewal
        await driver.renew()
        driver.require_held()
        await driver.release()
        for process in (task, late):
            with pytest.raises(CompactionLockedError):
                await process.renew()
        waits: list[str] = []
        await other.acquire(waits.append)
        assert waits == []
        with pytest.raises(CompactionLockedError):
            await late.renew()
        await driver.release()
        await other.renew()

    run(share())
    assert len([name for name in world.store.objects if name.startswith(LOCK_FOLDER)]) == 1


def test_a_paused_process_does_not_renew_the_lock_of_another_compaction() -> None:
    """It has seen the lock, is paused before its next request, and creates a number that was deleted meanwhile."""
    world = World()
    paused_at, resume = asyncio.Event(), asyncio.Event()

    class Pausing(FaultyObjects):
        async def put_if_absent(self, key: str, body: bytes) -> Any:
            paused_at.set()
            await resume.wait()
            return await super().put_if_absent(key, body)

    driver = CompactionLock(world.store, "", world.timer, owner="first")
    task = CompactionLock(Pausing(world.store, lambda *_: None), "", world.timer, owner="first")
    other = CompactionLock(world.store, "", world.timer, owner="other")

    async def pause() -> None:
        await driver.acquire()
        renewal = asyncio.ensure_future(task.renew())
        await paused_at.wait()
        await driver.release()
        await other.acquire()
        for _ in range(3):
            await other.renew()
        resume.set()
        with pytest.raises(CompactionLockedError):
            await renewal
        await other.renew()

    run(pause())


@pytest.mark.parametrize("has_listed_large_object", [True, False])
def test_objects_that_a_compaction_deletes_are_no_damage(has_listed_large_object: bool) -> None:
    """`verify` has listed them before. It finds their records in the large object, which it may have to list first."""
    world = World()
    if has_listed_large_object:
        world.compact()
    listed = run(list_archive(world.store, "")).shards[A]
    world.compact_and_delete()
    assert len(keys_in(world.store)) < len(listed)
    listings = 0

    async def list_again() -> Any:
        nonlocal listings
        listings += 1
        return (await list_archive(world.store, "")).shards[A]

    report = run(verify_shard(world.store, A, listed, lambda _: None, list_again=list_again))
    assert (report.problems, report.rows) == ((), RECORDS)
    assert listings == (0 if has_listed_large_object else 1)


def test_an_object_that_is_listed_and_never_found_is_damage() -> None:
    world = World()
    listed = run(list_archive(world.store, "")).shards[A]
    del world.store.objects[listed[0].name]

    async def list_again() -> Any:
        return listed

    report = run(verify_shard(world.store, A, listed, lambda _: None, list_again=list_again))
    assert [problem.kind for problem in report.problems] == [ProblemKind.DAMAGE]


@pytest.mark.parametrize("body", [b"", b"junk", b"[]", b"{}", b"null"])
def test_a_lock_that_cannot_be_read_is_taken_after_a_while(body: bytes) -> None:
    """It may be held. Files with other names are not of the lock."""
    world = World()
    world.store.objects[f"{LOCK_FOLDER}/0000000007.json"] = body
    for name in ("9.json", "99999999999999999999.json", "x.json", "0000000009.txt"):
        world.store.objects[f"{LOCK_FOLDER}/{name}"] = b""
    before_ms = world.timer.ms
    assert world.compact().created == 1
    assert world.timer.ms - before_ms >= 60_000
    assert f"{LOCK_FOLDER}/9.json" in world.store.objects


def test_the_defaults_are_those_of_the_command() -> None:
    """And of its documentation: memory is planned for objects of 128 MiB."""
    command = compact_command.make_context("compact", ["memory://"]).params
    settings = CompactionSettings()
    assert (
        command["target_size"],
        command["older_than"],
        command["delete_after"],
        command["compression"],
    ) == (
        settings.target_bytes,
        settings.older_than_ms,
        settings.delete_after_ms,
        settings.compression,
    )
    assert settings.target_bytes == 128 * 1024**2
