"""An archive is read back: each record once, in order, and without opening other objects."""

import gc
import random
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings, read
from leasehold.archive.decoding import decode
from leasehold.archive.formats import encode
from leasehold.archive.reading import ALL_TIME, TimeSpan, list_objects, read_shard, read_store
from leasehold.archive.rows import PinnedRange, to_archive_rows
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.core.exactly_once.archive_reading import plan_sections
from leasehold.core.exactly_once.object_keys import key_from_text, key_to_text
from leasehold.core.model import ShardId
from leasehold.errors import ConfigError, DamagedObjectError
from leasehold.ports import StoredObject
from tests.unit.archive.archive_world import (
    MINUTE_MS,
    A,
    B,
    NoWaiting,
    archive_on,
    keys_in,
    records,
    run,
    table,
)


class CountingObjects(MemoryObjects):
    """Counts the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.pages = 0

    async def get(self, key: str) -> bytes | None:
        self.opened.append(key)
        return await super().get(key)

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        self.pages += 1
        async for page in super().list_after(offset, prefix=prefix):
            yield page


def store_of(objects: MemoryObjects) -> ArchiveStore:
    return ArchiveStore(objects, "", NoWaiting(), random.Random(1))


def archived(
    store: MemoryObjects, numbers: Sequence[int], minutes: dict[int, int], shard: ShardId = A
) -> None:
    rows = table(records(numbers, minute=lambda number: minutes.get(number, 10)), shard=shard)
    run(archive_on(store).write([PinnedRange(shard, "one", rows)]))


async def numbers_read(store: MemoryObjects, span: TimeSpan = ALL_TIME, shard: ShardId = A) -> list[int]:
    opened = store_of(store)
    objects = (await list_objects(opened, span)).get(shard, {})
    tables = [each async for each in read_shard(opened, shard, span, ["sequenceNumber"], objects=objects)]
    return [int(number) for each in tables for number in each["sequenceNumber"].to_pylist()]


def test_records_of_interleaved_minutes_are_read_in_order() -> None:
    store = MemoryObjects()
    archived(store, range(1, 9), {1: 10, 2: 11, 3: 10, 4: 11, 5: 12, 6: 11, 7: 13, 8: 12})
    archived(store, range(9, 30), {9: 12, 10: 13})
    assert run(numbers_read(store)) == list(range(1, 30))


def test_only_objects_of_the_time_and_the_shard_are_opened() -> None:
    store = CountingObjects()
    minutes = {minute + 1: minute for minute in range(0, 4_000, 10)}
    for shard in (A, B):
        archived(store, list(minutes), minutes, shard=shard)
    store.opened, store.pages = [], 0
    hour = TimeSpan(1_500 * MINUTE_MS, 1_560 * MINUTE_MS)
    assert run(numbers_read(store, hour)) == [1_501, 1_511, 1_521, 1_531, 1_541, 1_551]
    assert len(store.opened) == 6
    assert store.pages == 2  # of the day, with folders of either kind


def test_the_ends_of_a_time_are_exact() -> None:
    """The names of objects select whole minutes. A record has its own millisecond."""
    store = MemoryObjects()
    archived(store, range(1, 60), {})
    assert run(numbers_read(store, TimeSpan(10 * MINUTE_MS + 20, 10 * MINUTE_MS + 30))) == list(range(20, 30))


def test_a_merged_object_is_read_instead_of_the_small_ones() -> None:
    store = MemoryObjects()
    archived(store, range(1, 4), {})
    archived(store, range(4, 9), {})
    merged = to_archive_rows(table(records(range(1, 9))))
    first, last = keys_in(store)
    both = type(first)(first.minute, A, type(first.range)(first.range.first, last.range.last), "parquet")
    run(store.put_if_absent(key_to_text(both), encode(merged, "parquet", "zstd")))
    assert run(numbers_read(store)) == list(range(1, 9))


def test_objects_that_are_deleted_while_they_are_read_are_listed_again() -> None:
    """Compaction has replaced them. Reading continues after the last row that was returned."""
    store = MemoryObjects()
    for first in range(1, 200, 10):
        archived(store, range(first, first + 10), dict.fromkeys(range(first, first + 10), first))

    async def read_and_compact() -> list[int]:
        opened, found = store_of(store), list[int]()
        objects = (await list_objects(opened, ALL_TIME))[A]
        async for each in read_shard(opened, A, ALL_TIME, ["sequenceNumber"], objects=objects):
            found += map(int, each["sequenceNumber"].to_pylist())
            if len(found) == 10:
                _replace_extensions(store)
        return found

    assert run(read_and_compact()) == list(range(1, 201))


def test_a_reader_that_stops_early_leaves_no_task_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The library asyncio logs an error for a task that still waits when its loop is gone."""
    store = MemoryObjects()
    for first in range(1, 200, 10):
        archived(store, range(first, first + 10), dict.fromkeys(range(first, first + 10), first))
    for _ in range(50):
        batches = read_store(store_of(store), ALL_TIME)
        assert next(batches).num_rows
        batches.close()
        gc.collect()
    assert not [each for each in caplog.records if each.name == "asyncio"]


def _replace_extensions(store: MemoryObjects) -> None:
    """Replace every object by one with the same records and another name."""
    for name in list(store.objects):
        key = key_from_text(name)
        if key is not None:
            rows = decode(store.objects.pop(name), key.extension)
            other = type(key)(key.minute, key.shard, key.range, "jsonl")
            store.objects[key_to_text(other)] = encode(rows, "jsonl", "none")


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "jsonl.gz", "jsonl.zst"])
def test_every_format_gives_the_same_rows(extension: str) -> None:
    rows = to_archive_rows(table(records(range(1, 5)))).append_column("size", pa.array([1, 2, None, 4]))
    assert decode(encode(rows, extension, "zstd"), extension).equals(rows)
    only = decode(encode(rows, extension, "zstd"), extension, ["data", "size", "unknown"])
    assert only.equals(rows.select(["data", "size"]))


def test_a_damaged_object_is_named() -> None:
    store = MemoryObjects()
    archived(store, [1], {})
    name = next(name for name in store.objects if key_from_text(name))
    store.objects[name] = b"PAR1"
    with pytest.raises(DamagedObjectError, match=r"0001\.0000000000\.parquet of the archive is damaged"):
        run(numbers_read(store))


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "jsonl.gz", "jsonl.zst", "avro"])
@pytest.mark.parametrize("left", [slice(0), slice(2), slice(1, None)])
def test_an_object_that_lacks_records_of_its_name_is_damaged(extension: str, left: slice) -> None:
    """JSON lines and Avro can be read without an error if they end between two records."""
    store = MemoryObjects()
    archived(store, range(1, 5), {})
    (name,) = (name for name in store.objects if key_from_text(name))
    key, body = key_from_text(name), store.objects.pop(name)
    assert key is not None
    rows = decode(body, key.extension)[left]
    body = encode(rows, extension, "zstd") if rows.num_rows or extension == "parquet" else b""
    store.objects[key_to_text(replace(key, extension=extension))] = body
    with pytest.raises(DamagedObjectError):
        run(numbers_read(store))
    with pytest.raises(DamagedObjectError):  # also if the record that is missing is not wanted
        run(numbers_read(store, TimeSpan(10 * MINUTE_MS + 2, 10 * MINUTE_MS + 3)))


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "jsonl.zst", "avro"])
@pytest.mark.parametrize("columns", [None, ["data"]])
def test_an_object_of_another_shard_is_damaged(extension: str, columns: list[str] | None) -> None:
    """Its records would be returned twice, or instead of records of this shard. All rows are compared."""
    store = MemoryObjects()
    archived(store, range(1, 4), {})
    (name,) = (name for name in store.objects if key_from_text(name))
    key = key_from_text(name)
    assert key is not None
    del store.objects[name]
    mixed = to_archive_rows(
        pa.concat_tables([table(records([1])), table(records([2]), shard=B), table(records([3]))])
    )
    name = key_to_text(replace(key, extension=extension))
    store.objects[name] = encode(mixed, extension, "zstd")

    async def read_all() -> list[Any]:
        opened = store_of(store)
        objects = (await list_objects(opened, ALL_TIME))[A]
        return [each async for each in read_shard(opened, A, ALL_TIME, columns, objects=objects)]

    with pytest.raises(DamagedObjectError, match=f"{name}.*it holds records of another shard"):
        run(read_all())
    store.objects[name] = encode(to_archive_rows(table(records([1, 2, 3]))), extension, "zstd")
    (read,) = run(read_all())
    assert (read.num_rows, "shardId" in read.column_names) == (3, columns is None)


def test_an_object_without_shard_ids_is_read() -> None:
    """A program may have written objects without this column."""
    store = MemoryObjects()
    archived(store, range(1, 4), {})
    (name,) = (name for name in store.objects if key_from_text(name))
    rows = to_archive_rows(table(records([1, 2, 3]))).drop_columns(["shardId"])
    store.objects[name] = encode(rows, "parquet", "zstd")
    assert run(numbers_read(store)) == [1, 2, 3]


def test_sections_divide_a_shard() -> None:
    """Each record is in one section, also if objects interleave at the border."""
    store = MemoryObjects()
    archived(store, range(1, 60), {number: 10 + (number + number % 3) // 10 for number in range(1, 60)})

    async def read_sections() -> list[list[int]]:
        opened = store_of(store)
        objects = (await list_objects(opened, ALL_TIME))[A]
        found = []
        for section in plan_sections(objects, bytes_max=1):
            some = {key: size for key, size in objects.items() if section.has(key)}
            rows = read_shard(opened, A, ALL_TIME, ["sequenceNumber"], objects=some, section=section)
            found.append([int(n) async for each in rows for n in each["sequenceNumber"].to_pylist()])
        return found

    sections = run(read_sections())
    assert len(sections) == len(keys_in(store))
    assert [number for section in sections for number in section] == list(range(1, 60))


def test_the_public_function_reads_a_folder(tmp_path: Path) -> None:
    """Batches have all columns. A loop that stops early leaves no thread behind."""
    settings = ArchiveSettings(url=str(tmp_path), prefix="orders", format="jsonl")
    for shard in (A, B):
        run(
            Archive.open(settings).write(
                [PinnedRange(shard, "one", table(records(range(1, 30)), shard=shard))]
            )
        )
    batches = list(read(settings))
    assert [each["shardId"][0].as_py() for each in batches] == [A, B]
    rows = pa.Table.from_batches(batches)
    assert rows["data"][3].as_py() == b"data 4"
    assert "approximateArrivalTimestamp" in rows.column_names
    start = datetime(1970, 1, 1, 0, 10, 0, 20_000, tzinfo=UTC)
    some: Any = next(read(settings, start=start, shards=[B], columns=["sequenceNumber", "shardId"]))
    assert some.to_pylist()[0] == {"sequenceNumber": "20", "shardId": B}
    assert list(read(settings, start="2026-01-01T00:00:00Z")) == []


def test_a_batch_has_ten_thousand_rows_at_most(tmp_path: Path) -> None:
    """A program that handles one batch at a time needs memory for so many, however large an object is."""
    settings = ArchiveSettings(url=str(tmp_path))
    rows = table(records(range(1, 20_002)))
    run(Archive.open(settings).write([PinnedRange(A, "one", rows)]))
    assert [batch.num_rows for batch in read(settings)] == [10_000, 10_000, 1]


def test_a_time_without_a_zone_and_an_empty_time_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="start="):
        read(str(tmp_path), start="2026-01-01T00:00:00")
    with pytest.raises(ConfigError, match="end is not after start"):
        read(str(tmp_path), start="2026-01-02T00:00:00Z", end="2026-01-01T00:00:00Z")
    with pytest.raises(ConfigError, match="end is not after start"):  # the end is not included
        read(str(tmp_path), start="2026-01-01T00:00:00Z", end="2026-01-01T00:00:00Z")


def test_a_text_names_shards_and_columns_and_an_unknown_column_is_refused(tmp_path: Path) -> None:
    """A text is not a list of letters, and rows without columns serve nobody."""
    settings = ArchiveSettings(url=str(tmp_path))
    for shard in (A, B):
        rows = table(records(range(1, 4)), shard=shard)
        run(Archive.open(settings).write([PinnedRange(shard, "one", rows)]))

    def rows_of(**chosen: Any) -> list[dict[str, Any]]:
        return [row for batch in read(settings, **chosen) for row in batch.to_pylist()]

    assert rows_of(shards=A, columns="shardId") == 3 * [{"shardId": A}]
    assert len(rows_of(shards=f"{A}, {B}", columns="data, sequenceNumber")[5]) == 2
    for columns in ("nope", ["nope"], ["data", "nope"]):
        with pytest.raises(
            ConfigError, match=r"the records have no column nope; every archive has partitionKey, data, "
        ):
            rows_of(columns=columns)
