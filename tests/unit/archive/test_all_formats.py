"""What holds for every format of the archive, with payloads of any kind; and other readers read the formats."""

import gzip
import random
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.avro_objects import from_avro, to_avro
from leasehold.archive.columns import SLICE
from leasehold.archive.formats import decode_identity, decode_payloads, encode
from leasehold.archive.raw_objects import from_frames, from_lines
from leasehold.archive.reading import ALL_TIME, list_objects, read_shard
from leasehold.archive.routing import open_writer
from leasehold.archive.rows import PinnedRange
from leasehold.archive.settings import FORMATS, RAW_FORMATS
from leasehold.archive.shard_rows import ArchiveStore
from leasehold.archive.verification import ProblemKind
from leasehold.core.exactly_once.object_keys import key_to_text
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.errors import ArchiveConflictError, ConfigError
from tests.unit.archive.archive_world import (
    MINUTE_MS,
    A,
    NoWaiting,
    archive_on,
    keys_in,
    records,
    run,
    spans_in,
    table,
)
from tests.unit.archive.test_compaction import World
from tests.unit.archive.test_verification import StreamOfTen, verify

EVERY = [(name, compression) for name, compressions in FORMATS.items() for compression in compressions]
LARGE = random.Random(7).randbytes(1024 * 1024)
PAYLOADS = [
    b"",
    b"plain",
    b"\x00\xff\xfe binary \r",
    b"\r\n",
    "Zeile 1\nZeile 2 äöü".encode(),
    LARGE,
    b"\n",
    b"",
]


def payloads_for(format_: str) -> list[bytes]:
    """Lines hold everything but line breaks."""
    return [each.replace(b"\n", b"") if format_ == "raw-lines" else each for each in PAYLOADS]


def rows_of(payloads: Sequence[bytes]) -> Any:
    return table(
        [
            UserRecord(data, f"key-{number}", str(number), 10 * MINUTE_MS + number)
            for number, data in enumerate(payloads)
        ]
    )


def bodies_in(store: MemoryObjects, prefix: str = "") -> list[tuple[str, bytes]]:
    """The extension and the body of each object, in the order of the names."""
    return [(key.extension, store.objects[key_to_text(key, prefix)]) for key in keys_in(store, prefix)]


async def read_all(store: MemoryObjects) -> list[bytes]:
    opened = ArchiveStore(store, "", NoWaiting(), random.Random(1))
    objects = (await list_objects(opened, ALL_TIME))[A]
    tables = [each async for each in read_shard(opened, A, ALL_TIME, ["data"], objects=objects)]
    return [data for each in tables for data in each["data"].to_pylist()]


@pytest.mark.parametrize(("format_", "compression"), EVERY)
def test_every_payload_is_stored_once_and_comes_back(format_: str, compression: str) -> None:
    """Attempts are repeated, and after the loss of the lease table ranges are cut differently. Names have them."""
    store, payloads = MemoryObjects(), payloads_for(format_)
    rows = rows_of(payloads)

    def write(session: str, *cuts: int) -> Any:
        bounds = zip((0, *cuts), (*cuts, len(payloads)), strict=True)
        ranges = [PinnedRange(A, session, rows.slice(first, end - first)) for first, end in bounds]
        return run(archive_on(store, format=format_, compression=compression).write(ranges))

    assert write("one", 5).rows == len(payloads)
    before = dict(store.objects)
    assert (write("one", 5).rows, write("two", 3, 6).rows) == (0, 0)
    assert store.objects == before
    assert spans_in(store) == [(10, 0, 4), (10, 5, 7)]
    (report,) = verify(store)
    assert (report.rows, report.problems, report.first, report.last) == (8, (), Position("0"), Position("7"))
    if format_ in RAW_FORMATS:
        found = [each for extension, body in bodies_in(store) for each in decode_payloads(body, extension)]
        assert found == payloads
        with pytest.raises(ConfigError, match="payloads without their positions"):
            run(read_all(store))
    else:
        assert run(read_all(store)) == payloads


@pytest.mark.parametrize(("format_", "compression"), EVERY)
def test_an_object_of_other_records_or_cut_off_is_noticed(format_: str, compression: str) -> None:
    """A writer that finds an object with its name and another size compares; verification reads each object."""
    store = MemoryObjects()
    archive = archive_on(store, format=format_, compression=compression)
    run(archive.write([PinnedRange(A, "one", table(records([1, 2, 3])))]))
    (key,) = keys_in(store)
    name = key_to_text(key)
    whole = store.objects[name]
    store.objects[name] = encode(table(records([1, 3])), key.extension, compression)
    with pytest.raises(ArchiveConflictError, match=r"holds other records \(2, expected 3\)"):
        run(archive.write([PinnedRange(A, "one", table(records([1, 2, 3])))]))
    store.objects[name] = whole[:-3]
    (report,) = verify(store)
    assert [each.kind for each in report.problems] == [ProblemKind.DAMAGE]
    with pytest.raises(ArchiveConflictError):
        run(archive.write([PinnedRange(A, "one", table(records([1, 2, 3])))]))


# -- Avro -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "deflate", "zstd"])
def test_fastavro_reads_avro_objects(compression: str) -> None:
    """The values are those of the columns. The same rows are always the same bytes."""
    rows = rows_of(PAYLOADS).drop_columns([SLICE])
    body = to_avro(rows, compression)
    assert body == to_avro(rows, compression)
    reader = fastavro.reader(BytesIO(body))
    assert reader.codec == {"none": "null", "deflate": "deflate", "zstd": "zstandard"}[compression]
    found: list[Any] = list(reader)
    assert [each["data"] for each in found] == PAYLOADS
    assert found[1] == {
        "partitionKey": "key-1",
        "data": b"plain",
        "stream": "orders",
        "shardId": A,
        "sequenceNumber": "1",
        "approximateArrivalTimestamp": datetime(1970, 1, 1, 0, 10, 0, 1_000, UTC),
        "subSequenceNumber": 0,
        "explicitHashKey": None,
    }


def test_columns_of_a_program_are_kept_in_avro() -> None:
    rows = table(records([1, 2])).drop_columns([SLICE])
    added: dict[str, Any] = {
        "nested": pa.array([{"list": [1, None], "inner": {"bytes": b"x"}}, None]),
        "price": pa.array([Decimal("1.50"), None]),
        "day": pa.array([date(2026, 11, 16), None]),
        "local": pa.array([datetime(2026, 11, 16, 1, 2, 3), None], pa.timestamp("us")),  # noqa: DTZ001 - on purpose
        "ratio": pa.array([0.5, None]),
        "small": pa.array([1, None], pa.int32()),
        "flag": pa.array([True, None]),
        "nothing": pa.nulls(2),
    }
    for name, values in added.items():
        rows = rows.append_column(name, values)
    assert from_avro(to_avro(rows, "zstd")).equals(rows.combine_chunks())
    shorter = rows.append_column("byte", pa.array([1, None], pa.int8())).append_column(
        "text", pa.array(["a", None], pa.large_string())
    )
    decoded = from_avro(to_avro(shorter, "zstd"), ["byte", "text", "other"])
    assert decoded.to_pydict() == {"byte": [1, None], "text": ["a", None]}


FAR_US = 1_763_400_000_000 * 1_000_000  # milliseconds that were taken for seconds: the year 57,850
UTC_US = pa.timestamp("us", tz="UTC")
WRITTEN: dict[str, Any] = {
    "a time after the year 9999": pa.array([FAR_US, None], UTC_US),
    "a time before the year 1": pa.array([-FAR_US, None], pa.timestamp("us")),
    "a date after the year 9999": pa.array([10_000_000, None], pa.date32()),
    "times in lists and structs": pa.array(
        [{"list": [FAR_US, None], "inner": {"day": 10_000_000}}, None],
        pa.struct([("list", pa.list_(UTC_US)), ("inner", pa.struct([("day", pa.date32())]))]),
    ),
    "a list of nothing": pa.array([[None], []], pa.list_(pa.null())),
    "lists of nothing": pa.array([[[None], None], None], pa.list_(pa.list_(pa.null()))),
    "a struct of nothing": pa.array([{"a": None}, None], pa.struct([("a", pa.null())])),
    "a struct without fields": pa.array([{}, None], pa.struct([])),
    "a list of empty structs": pa.array([[{}, None], []], pa.list_(pa.struct([]))),
    "the largest decimal": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38)], pa.decimal128(38, 0)),
    "a decimal of digits after the point": pa.array([Decimal("-0.05"), None], pa.decimal128(2, 2)),
    "a struct with the names of types": pa.array(
        [{"int": {"null": 1}}, None], pa.struct([("int", pa.struct([("null", pa.int64())]))])
    ),
}


@pytest.mark.parametrize("values", WRITTEN.values(), ids=WRITTEN)
def test_every_column_that_is_written_as_avro_is_read(values: Any) -> None:
    """Otherwise a range is stored in an object that no reader, check or compaction can use."""
    rows = table(records([1, 2])).drop_columns([SLICE]).append_column("int", values)
    body = to_avro(rows, "none")
    assert from_avro(body).equals(rows.combine_chunks())
    assert from_avro(body, ["shardId"]).to_pydict() == {"shardId": [A, A]}
    assert from_avro(to_avro(from_avro(body), "none")).equals(rows.combine_chunks())


def test_columns_that_are_not_wanted_are_not_held() -> None:
    """A check of positions does not hold the payloads of an object, of which it reads several at once."""
    body = to_avro(rows_of([bytes(1024 * 1024)] * 16), "zstd")
    assert len(body) < 1024 * 1024
    tracemalloc.start()
    try:
        assert decode_identity(body, "avro").num_rows == 16
        assert tracemalloc.get_traced_memory()[1] < 6 * 1024 * 1024
    finally:
        tracemalloc.stop()


EMPTY: Any = {"type": "record", "name": "E", "fields": []}
ENDLESS: dict[str, Any] = {
    "no fields": [],
    "null fields": [{"name": "shardId", "type": "null"}],
    "empty records": [{"name": "shardId", "type": EMPTY}],
    "fixed of no bytes": [{"name": "shardId", "type": {"type": "fixed", "name": "F", "size": 0}}],
    "fixed of fewer bytes": [{"name": "shardId", "type": {"type": "fixed", "name": "F", "size": -1}}],
    "names of names": [
        {"name": "f0", "type": EMPTY},
        *(
            {
                "name": f"f{number}",
                "type": {
                    "type": "record",
                    "name": f"R{number}",
                    "fields": [
                        {"name": side, "type": f"R{number - 1}" if number > 1 else "E"} for side in "ab"
                    ],
                },
            }
            for number in range(1, 40)
        ),
    ],
}


@pytest.mark.parametrize("fields", ENDLESS.values(), ids=ENDLESS)
def test_a_few_bytes_cannot_claim_endless_rows(fields: Any) -> None:
    """A block says how many rows it has, and these rows take no bytes. Or a name stands for endless types."""
    marker, schema = bytes(16), {"type": "record", "name": "R", "fields": fields}
    header = {"avro.schema": orjson.dumps(schema), "avro.codec": b"null"}
    body = BytesIO()
    meta: Any = {"type": "map", "values": "bytes"}
    body.write(b"Obj\x01")
    fastavro.schemaless_writer(body, meta, header)
    body.write(marker)
    fastavro.schemaless_writer(body, "long", 2**40)
    fastavro.schemaless_writer(body, "long", 0)
    body.write(marker)
    for columns in (None, ["shardId"]):
        with pytest.raises(ValueError, match="unreadable"):
            from_avro(body.getvalue(), columns)


@pytest.mark.parametrize(
    ("name", "values", "sentence"),
    [
        ("d", pa.array([None], pa.decimal128(5, -2)), "column 'd' of type decimal"),
        ("d", pa.array([None], pa.decimal128(2, 5)), "column 'd' of type decimal"),
        ("t", pa.array([2**60], pa.timestamp("s")), "column 't' has a value that Avro cannot hold"),
        ("data", pa.array([1]), "two columns with the same name"),
        ("a b", pa.array([1]), "column 'a b' cannot be stored as Avro: .* rename it"),
        ("m", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), "column 'm' of type map"),
        ("u", pa.array([1], pa.uint64()), "column 'u' of type uint64"),
    ],
)
def test_a_column_that_avro_cannot_hold_is_refused(name: str, values: Any, sentence: str) -> None:
    rows = table(records([1])).append_column(name, values)
    with pytest.raises(ConfigError, match=sentence):
        run(archive_on(MemoryObjects(), format="avro").write([PinnedRange(A, "one", rows)]))


# -- payloads only ----------------------------------------------------------------------------------------------


def test_ten_lines_read_payloads_with_lengths() -> None:
    """The reader shares no code with the package."""
    body, found = encode(rows_of(PAYLOADS), "raw", "none"), []
    file = BytesIO(body)
    while head := file.read(4):
        found.append(file.read(int.from_bytes(head, "big")))
    assert found == PAYLOADS


def test_any_program_reads_lines() -> None:
    body = gzip.decompress(encode(rows_of([b"a", b"", b"b\r"]), "txt.gz", "gzip"))
    assert body == b"a\n\nb\r\n"


def test_a_payload_with_a_line_break_is_refused_without_an_error_prefix() -> None:
    """The error names the record and the remedies, and never the payload. Nothing is stored."""
    store = MemoryObjects()
    rows = rows_of([b"one", b"secret\nsecret"])
    with pytest.raises(ConfigError, match=r"record 1 has a line break.*format='raw'.*error_prefix") as caught:
        run(archive_on(store, format="raw-lines").write([PinnedRange(A, "one", rows)]))
    assert "secret" not in str(caught.value)
    assert not keys_in(store)


def lines_writer(store: MemoryObjects, **more: Any) -> Any:
    chosen = ArchiveSettings(
        url="memory://",
        format="raw-lines",
        compression="none",
        prefix="orders",
        error_prefix="failed",
        **more,
    )

    def open_archive(settings: ArchiveSettings) -> Archive:
        return archive_on(store, prefix=settings.prefix, format=settings.format, compression="none")

    return open_writer(chosen, open_archive)


def test_payloads_with_a_line_break_go_to_the_error_prefix_once() -> None:
    """They are JSON lines there, with position, payload and reason. Attempts are repeated."""
    store = MemoryObjects()
    rows = rows_of([b"one", b"a\nb", b"two", b"\n"])
    for session in ("one", "one", "two"):
        run(lines_writer(store).write([PinnedRange(A, session, rows)]))
    (good,) = bodies_in(store, "orders")
    assert good == ("txt", b"one\ntwo\n")
    (failed,) = bodies_in(store, "failed")
    assert failed[0] == "jsonl"
    found = [orjson.loads(line) for line in failed[1].splitlines()]
    assert [(each["sequenceNumber"], each["data"], each["error"]) for each in found] == [
        ("1", "YQpi", "the payload has a line break"),
        ("3", "Cg==", "the payload has a line break"),
    ]


def test_the_reason_of_a_failed_record_stays() -> None:
    """A record that a program has marked keeps its reason; one with a line break gets one."""
    store = MemoryObjects()
    rows = rows_of([b"one", b"a\nb", b"x\n"]).append_column("problem", pa.array([None, None, "not JSON"]))
    run(lines_writer(store, error_column="problem").write([PinnedRange(A, "one", rows)]))
    (failed,) = bodies_in(store, "failed")
    found = [orjson.loads(line)["problem"] for line in failed[1].splitlines()]
    assert found == ["the payload has a line break", "not JSON"]


@pytest.mark.parametrize("has_column", [True, False])
def test_a_failed_record_needs_no_payload(has_column: bool) -> None:
    """A program that cannot decrypt a record marks it, and has no payload for it. The other records are stored."""
    store = MemoryObjects()
    rows = rows_of([b"one", b"a\nb", b"x"]).append_column("problem", pa.array([None, None, "no key"]))
    place = rows.column_names.index("data")
    rows = rows.set_column(place, "data", pa.array([b"one", b"a\nb", None], pa.binary()))
    if not has_column:
        rows = rows.slice(2).drop_columns(["data"])
    run(lines_writer(store, error_column="problem").write([PinnedRange(A, "one", rows)]))
    assert bodies_in(store, "orders") == ([("txt", b"one\n")] if has_column else [])
    (failed,) = bodies_in(store, "failed")
    found = [orjson.loads(line)["problem"] for line in failed[1].splitlines()]
    assert found == ["the payload has a line break", "no key"][not has_column :]


class OtherSizes(MemoryObjects):
    """Objects as another version of a library would have written them: with the same records, and larger."""

    async def size(self, key: str) -> int | None:
        size = await super().size(key)
        return None if size is None else size + 1


@pytest.mark.parametrize(("format_", "compression"), EVERY)
def test_another_attempt_compares_values_and_not_their_types(format_: str, compression: str) -> None:
    """A program may change the types of columns. A format does not keep all of them."""
    store, rows = OtherSizes(), table(records([1, 2]))
    types = {
        "data": pa.string(),
        "shardId": pa.large_string(),
        "sequenceNumber": pa.large_string(),
        "subSequenceNumber": pa.int32(),
    }
    for name, kind in types.items():
        rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(kind))
    archive = archive_on(store, format=format_, compression=compression)
    run(archive.write([PinnedRange(A, "one", rows)]))
    assert run(archive.write([PinnedRange(A, "one", rows)])).already_there == 1


def test_payloads_of_another_type_are_refused() -> None:
    rows = rows_of([b"1"])
    rows = rows.set_column(rows.column_names.index("data"), "data", pa.array([1]))
    with pytest.raises(ConfigError, match="column 'data' is of type int64, not bytes or text: cast it"):
        encode(rows, "raw", "none")


MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize("kind", [MAP, pa.list_(MAP), pa.struct([("a", MAP)]), pa.uint64()], ids=str)
def test_a_column_that_json_lines_cannot_return_is_refused(kind: Any) -> None:
    rows = pa.table({"data": [b"x"], "amounts": pa.nulls(1, kind)})
    with pytest.raises(
        ConfigError, match=r"column 'amounts' .* cannot be read back from JSON lines: .*parquet"
    ):
        encode(rows, "jsonl", "none")


def test_json_lines_name_a_time_that_they_cannot_hold() -> None:
    rows = rows_of([b"1"]).append_column("time", pa.array([FAR_US], UTC_US))
    with pytest.raises(ConfigError, match="a time outside of the years 1 to 9999"):
        encode(rows, "jsonl", "none")


def test_only_lines_may_have_an_error_prefix_without_a_column() -> None:
    with pytest.raises(ConfigError, match="belong together"):
        ArchiveSettings(url="x", format="raw", error_prefix="failed")


def test_rows_without_payloads_cannot_be_stored_raw() -> None:
    rows = rows_of([b"a"]).drop_columns(["data"])
    with pytest.raises(ConfigError, match="stores the column 'data'"):
        run(archive_on(MemoryObjects(), format="raw").write([PinnedRange(A, "one", rows)]))


def test_raw_objects_are_not_compacted_and_the_report_says_why() -> None:
    world = World(format="raw")
    report = world.compact()
    assert (report.merged, report.created, report.deleted) == (0, 0, 0)
    (sentence,) = report.skipped
    assert sentence.startswith("30 objects stay as they are: they have payloads without positions")


def test_gaps_between_raw_objects_are_found_by_their_names() -> None:
    """A record between the first and the last one of an object counts as archived: nothing shows more."""
    world = StreamOfTen()
    assert world.gap([range(4), range(4, 10)], format="raw") is None
    assert world.gap([[2, 3, 6]], format="raw") is None
    first, detail = world.gap([[2, 3], [6, 8]], format="raw") or ("", "")
    assert (first, detail) == (world.numbers[4], f"2 records that the stream holds, to {world.numbers[5]}")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    """Nothing but ValueError, and what is read results in the same bytes again."""
    for decode in (from_frames, from_lines):
        try:
            payloads = decode(body)
        except ValueError:
            continue
        assert encode(rows_of(payloads), "raw" if decode is from_frames else "txt", "none") == body
    with pytest.raises(ValueError, match="unreadable"):
        from_avro(body)
