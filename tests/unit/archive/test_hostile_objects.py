"""Objects with a valid name and any content: an error names them, and memory stays bounded."""

import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.archive import decompression
from leasehold.archive.archive_index import ArchiveIndex
from leasehold.archive.columns import SLICE
from leasehold.archive.decoding import decode
from leasehold.archive.decompression import TooLargeError, read_parquet, read_text
from leasehold.archive.formats import count_payloads, decode_identity, encode
from leasehold.archive.history_pages import HistoryPages, PagePosition
from leasehold.archive.merging import decode_rows
from leasehold.archive.reading import ALL_TIME, list_objects, read_shard
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.archive.verification import ProblemKind
from leasehold.core.exactly_once.object_keys import key_to_text
from leasehold.errors import ConfigError, DamagedObjectError
from tests.unit.archive.archive_world import A, NoWaiting, keys_in, records, run, table
from tests.unit.archive.test_compaction import RECORDS, World
from tests.unit.archive.test_verification import verify

EXTENSIONS = ["parquet", "jsonl", "jsonl.zst", "avro"]
FORMATS: dict[str, dict[str, Any]] = {
    "parquet": {"format": "parquet"},
    "jsonl": {"format": "jsonl", "compression": "none"},
    "jsonl.zst": {"format": "jsonl"},
    "avro": {"format": "avro"},
}
DAMAGED = 3  # the number of the record whose object is replaced


def one_row(**columns: Any) -> Any:
    """The row of record 3, with other columns. None: without this column."""
    made = table(records([DAMAGED], minute=lambda number: number // 3)).drop_columns([SLICE])
    for name, values in columns.items():
        place = made.column_names.index(name)
        made = made.drop_columns([name]) if values is None else made.set_column(place, name, values)
    return made


def world_with(extension: str, body: bytes) -> tuple[World, str]:
    world = World(**FORMATS[extension])
    (key,) = (each for each in keys_in(world.store) if each.range.first.number == DAMAGED)
    name = key_to_text(key)
    world.store.objects[name] = body
    return world, name


async def read_all(store: ArchiveStore) -> int:
    rows = 0
    for shard, objects in (await list_objects(store, ALL_TIME)).items():
        async for each in read_shard(store, shard, ALL_TIME, objects=objects):
            rows += each.num_rows
    return rows


async def read_history(store: ArchiveStore) -> list[bytes]:
    index = ArchiveIndex(store)
    pages, shard, found = HistoryPages(index), await index.get(A), list[bytes]()
    assert shard is not None
    position = PagePosition(A, shard.first, to_end=True)
    while (page := await pages.next(shard, position, 5)) is not None:
        found += [record.data for record in page[0]]
        position = page[1]
    return found


def store_of(world: World) -> ArchiveStore:
    return ArchiveStore(world.store, "", NoWaiting(), random.Random(1))


HOSTILE: dict[str, Callable[[], Any]] = {
    "no position": lambda: one_row(sequenceNumber=None),
    "null as sequence number": lambda: one_row(sequenceNumber=pa.nulls(1, pa.string())),
    "a number as sequence number": lambda: one_row(sequenceNumber=pa.array([DAMAGED])),
    "a sentinel": lambda: one_row(sequenceNumber=pa.array(["TRIM_HORIZON"])),
    "hundreds of digits": lambda: one_row(sequenceNumber=pa.array(["9" * 200])),
    "null as sub-sequence number": lambda: one_row(subSequenceNumber=pa.nulls(1, pa.int64())),
    "a negative sub-sequence number": lambda: one_row(subSequenceNumber=pa.array([-1])),
    "text as sub-sequence number": lambda: one_row(subSequenceNumber=pa.array(["x"])),
    "text as arrival time": lambda: one_row(approximateArrivalTimestamp=pa.array(["x"])),
    "a structure as sequence number": lambda: one_row(sequenceNumber=pa.array([{"a": 1}])),
    "no rows": lambda: one_row().slice(0, 0),
}


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize("case", HOSTILE)
def test_rows_that_no_writer_stores_are_damage(extension: str, case: str) -> None:
    """Everything that reads an archive says so in a sentence, and goes on or ends."""
    try:
        body = encode(HOSTILE[case](), extension, FORMATS[extension].get("compression", "zstd"))
    except (KeyError, TypeError):
        assert extension == "avro"  # its encoder needs sequence numbers
        return
    world, name = world_with(extension, body)
    problems = [each for report in verify(world.store) for each in report.problems]
    assert [(each.kind, each.location) for each in problems] == [(ProblemKind.DAMAGE, name)]
    for read in (read_all, read_history):
        with pytest.raises(DamagedObjectError, match=name):
            run(read(store_of(world)))
    (sentence,) = world.compact().skipped
    assert sentence.startswith(name)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n",
        b"[1]\n",
        b'"text"\n',
        b"5\n",
        b"null\n",
        b"{}\n",
        b'{"sequenceNumber":%b%b}\n' % (b"[" * 900, b"]" * 900),
    ],
)
def test_lines_that_are_no_records_are_damage(body: bytes) -> None:
    world, name = world_with("jsonl", body)
    assert [each.location for report in verify(world.store) for each in report.problems] == [name]
    with pytest.raises(DamagedObjectError, match=name):
        run(read_all(store_of(world)))


# -- bombs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit with which a test is quick."""
    monkeypatch.setattr(decompression, "SMALL_BYTES_MAX", 4 * 1024 * 1024)
    return 4 * 1024 * 1024


def zstd(body: bytes) -> bytes:
    return bytes(pa.compress(body, codec="zstd", asbytes=True))


def avro_bomb(size: int, codec: str) -> bytes:
    """One block with a text of this size."""
    schema = fastavro.parse_schema(
        {"type": "record", "name": "R", "fields": [{"name": "sequenceNumber", "type": "string"}]}
    )
    body = BytesIO()
    fastavro.writer(body, schema, [{"sequenceNumber": "0" * size}], codec=codec)
    return body.getvalue()


def parquet_bomb(rows: int) -> bytes:
    """A value of 64 KiB that many rows share: it is stored once."""
    shared = pa.DictionaryArray.from_arrays(
        pa.repeat(pa.scalar(0, pa.int32()), rows), pa.array(["0" * 65_536])
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"sequenceNumber": shared}), sink, compression="zstd", store_schema=False)
    return bytes(sink.getvalue())


LINE = b'{"sequenceNumber":"0","a":"' + b"a" * 1000 + b'"}\n'
SIZE = 64 * 1024 * 1024
BOMBS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "zstd": lambda: ("jsonl.zst", zstd(LINE * (SIZE // len(LINE)))),
    "gzip": lambda: ("jsonl.gz", gzip.compress(LINE * (SIZE // len(LINE)))),
    "avro zstd": lambda: ("avro", avro_bomb(SIZE, "zstandard")),
    "avro deflate": lambda: ("avro", avro_bomb(SIZE, "deflate")),
    "parquet": lambda: ("parquet", parquet_bomb(20_000)),
}


@pytest.mark.parametrize("case", BOMBS)
def test_a_small_object_cannot_take_all_memory(case: str, small_limit: int) -> None:
    extension, body = BOMBS[case]()
    assert len(body) < SIZE // 100
    for read in (decode, decode_identity, decode_rows):
        tracemalloc.start()
        before = pa.total_allocated_bytes()
        try:
            with pytest.raises(TooLargeError, match="bytes decompressed"):
                read(body, extension)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * small_limit
        assert pa.total_allocated_bytes() - before < 4 * small_limit


@pytest.mark.parametrize(
    ("extension", "compress"), [("raw.zst", zstd), ("raw.gz", gzip.compress), ("txt.zst", zstd)]
)
def test_a_small_object_of_payloads_cannot_take_all_memory(
    extension: str, compress: Callable[[bytes], bytes], small_limit: int
) -> None:
    with pytest.raises(TooLargeError):
        count_payloads(compress(bytes(8 * small_limit)), extension)


def test_columns_that_each_row_adds_are_bounded(small_limit: int) -> None:
    """Every row has a value, or null, of every column."""
    lines = b"".join(orjson.dumps({"sequenceNumber": "0", f"column{row}": 0}) + b"\n" for row in range(5_000))
    with pytest.raises(TooLargeError):
        decode(lines, "jsonl")


def test_a_bomb_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    extension, body = BOMBS["zstd"]()
    world, name = world_with(extension, body)
    monkeypatch.setattr(decompression, "SMALL_BYTES_MAX", 4 * 1024 * 1024)
    with pytest.raises(DamagedObjectError, match=f"{name}.*more than 4,194,304 bytes decompressed"):
        run(read_all(store_of(world)))
    (problem,) = (each for report in verify(world.store) for each in report.problems)
    assert (problem.kind, problem.location) == (ProblemKind.DAMAGE, name)


def test_what_writers_store_is_below_the_limit() -> None:
    """Also payloads that compress well, in each format."""
    rows = table(records(range(2_000))).drop_columns([SLICE])
    rows = rows.set_column(rows.column_names.index("data"), "data", pa.array([bytes(5_000)] * 2_000))
    for extension in EXTENSIONS:
        body = encode(rows, extension, "zstd" if extension != "jsonl" else "none")
        assert decode(body, extension).num_rows == 2_000


def test_an_inflated_body_is_read_in_full() -> None:
    text = b"".join(b"%d\n" % number for number in range(500_000))
    assert read_text(gzip.compress(text), "txt.gz") == text
    assert read_text(zstd(text), "txt.zst") == text
    assert zlib.crc32(text) == zlib.crc32(read_text(text, "txt"))


def test_a_parquet_file_with_dictionaries_is_read_with_its_types(small_limit: int) -> None:
    """Rows that share values are counted before they are made, and come back as they were."""
    keys = pa.array([f"key-{row % 7}" * 20 for row in range(20_000)])
    made = pa.table(
        {"partitionKey": keys, "n": pa.array(range(20_000)), "s": pa.array([{"q": "x"}] * 20_000)}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink, row_group_size=5_000)
    assert read_parquet(bytes(sink.getvalue()), None).equals(made)
    assert read_parquet(bytes(sink.getvalue()), ["n", "other"]).equals(made.select(["n"]))
    assert read_parquet(bytes(sink.getvalue()), ["other"]).num_columns == 0


def test_a_compaction_creates_no_object_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is split, and every record is still in one object."""
    world = World(format="jsonl")
    monkeypatch.setattr(decompression, "SMALL_BYTES_MAX", 3_000)
    monkeypatch.setattr(decompression, "BYTES_PER_STORED_BYTE", 0)
    report = world.compact()
    assert (report.created > 1, report.skipped) == (True, [])
    assert world.read() == list(range(RECORDS))


# -- payloads that a program has changed -----------------------------------------------------------------------


TEXTS = ["plain", "eHg=", "QUJD", "", "äöü", '{"a": 1}', None]


def rows_with(column: Any) -> Any:
    made = table(records(range(len(column)))).drop_columns([SLICE])
    return made.set_column(made.column_names.index("data"), "data", column)


@pytest.mark.parametrize("extension", EXTENSIONS)
@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS, pa.string()),
        pa.array(TEXTS, pa.large_string()),
        pa.array([None if each is None else each.encode() for each in TEXTS], pa.binary()),
        pa.nulls(3, pa.binary()),
        pa.array([1, 2, None]),
        pa.array([{"a": 1, "b": "eHg="}, None]),
    ],
    ids=str,
)
def test_payloads_come_back_as_they_were_written(extension: str, column: Any) -> None:
    """A program may have made them text, which may look like base64, or a structure."""
    body = encode(rows_with(column), extension, "none" if extension == "jsonl" else "zstd")
    found = decode(body, extension)
    assert found["data"].to_pylist() == column.to_pylist()
    assert "_dataIsText" not in found.column_names


def test_text_that_is_neither_base64_nor_marked_is_refused() -> None:
    """It was not written by this package. To drop what is no base64 would be silent damage."""
    line = orjson.loads(encode(rows_with(pa.array([b"x"])), "jsonl", "none"))
    body = orjson.dumps(line | {"data": "not base64!"})
    with pytest.raises(ValueError, match="unreadable"):
        decode(body, "jsonl")


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_history_delivers_text_as_bytes(extension: str) -> None:
    """Only one of the objects has text. Pages have rows of several objects."""
    text = one_row(data=pa.array(["eHg="]))
    world, _ = world_with(extension, encode(text, extension, "none" if extension == "jsonl" else "zstd"))
    found = run(read_history(store_of(world)))
    assert found == [b"eHg=" if number == DAMAGED else b"data %d" % number for number in range(RECORDS)]


@pytest.mark.parametrize(
    "change",
    [
        {"data": pa.array([{"a": 1}])},
        {"data": pa.nulls(1, pa.binary())},
        {"explicitHashKey": pa.array(["x"])},
        {"partitionKey": pa.nulls(1, pa.string())},
    ],
)
def test_history_refuses_values_that_no_record_has(change: dict[str, Any]) -> None:
    (name,) = change
    world, _ = world_with("parquet", encode(one_row(**change), "parquet", "zstd"))
    with pytest.raises(ConfigError, match=f"in column {name} that no record of a stream has"):
        run(read_history(store_of(world)))


def test_text_that_is_not_utf8_is_named() -> None:
    """Spark's cast of bytes to text keeps such bytes. JSON has no text for them."""
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(ConfigError, match="not UTF-8"):
        encode(rows_with(broken), "jsonl", "none")
