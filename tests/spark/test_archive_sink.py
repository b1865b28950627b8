"""The archive sink in a real Spark session."""

import asyncio
import os
import time
from collections.abc import Iterator
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from leasehold.adapters.folder_objects import STAGING_FOLDER
from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.columns import ALL_COLUMNS, arrow_schema, spark_ddl
from leasehold.archive.compaction import CompactionSettings
from leasehold.archive.rows import PinnedRange
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.spark import compact_archive
from leasehold.spark.archive_sink import ArchiveSink
from leasehold.spark.decoding.avro_payloads import AvroPayloads
from leasehold.spark.decoding.decode_settings import Decode, DecodeFormat
from leasehold.spark.decoding.protobuf_payloads import ProtobufPayloads
from leasehold.spark.pipeline.run_pipeline import decode_payloads
from leasehold.worker.archive_handler import to_archive_table
from tests.spark.ranges_source import BATCHES, RANGE_ROWS, SHARDS, RangesSource
from tests.spark.shared_session import SharedSession, shared_session
from tests.unit.spark.payloads import DESCRIPTORS, ORDER_AVSC, to_avro, to_protobuf
from tests.unit.spark.test_payload_decoding import ORDER

ROOT = Path(__file__).parents[2]
ALL_ROWS = BATCHES * RANGE_ROWS * SHARDS
PATIENCE_S = 400


def prepare(session: Any) -> None:
    """Register the source and the sink in a new session."""
    session.dataSource.register(RangesSource)
    session.dataSource.register(ArchiveSink)


@pytest.fixture
def spark(sessions: SharedSession) -> Iterator[Any]:
    """The session, without queries of other tests."""
    yield sessions.get()
    sessions.stop_queries()


@pytest.fixture(scope="module")
def sessions() -> Iterator[SharedSession]:
    """One session for all tests of this module."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), before)))  # workers import the source
    try:
        with shared_session("archive-sink", {"spark.master": "local[2]"}, prepare) as shared:
            yield shared
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def ranges(spark: Any, session: int = 1, **options: str) -> Any:
    return spark.readStream.format("ranges").option("session", session).options(**options).load()


def archive_rows(rows: Any, folder: Path, checkpoint: Path, **options: str) -> None:
    """Run a query until its source has no more rows."""
    query = (
        rows.writeStream.format("leasehold-archive")
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start(str(folder))
    )
    assert query.awaitTermination(PATIENCE_S)


def test_a_stream_that_is_read_twice_is_archived_once(spark: Any, tmp_path: Path) -> None:
    """The second query has new leases and writes nothing. `spark.read.parquet` reads the objects, and no other file."""
    folder = tmp_path / "archive"
    archive_rows(ranges(spark), folder, tmp_path / "first")
    files = sorted(folder.rglob("*.parquet"))
    archive_rows(ranges(spark, session=2), folder, tmp_path / "second")
    assert sorted(folder.rglob("*.parquet")) == files
    (folder / STAGING_FOLDER / "left-by-a-killed-writer.tmp").write_bytes(b"PAR1 half of a file")
    stored = spark.read.option("recursiveFileLookup", "true").parquet(str(folder))
    assert stored.count() == stored.select("shardId", "sequenceNumber").distinct().count() == ALL_ROWS
    assert set(stored.columns) == set(ALL_COLUMNS) - {"slice"}
    # Objects are split by minute and by range. The rows span 4.5 minutes, and some ranges end within a minute.
    assert len({file.parent.parent for file in files}) >= 5


def test_an_archive_is_read_back_by_time_and_shard(spark: Any, tmp_path: Path) -> None:
    """Options and filters select objects by name. Filters of Spark need its setting and an option."""
    folder = tmp_path / "archive"
    archive_rows(ranges(spark), folder, tmp_path / "first")
    rows = spark.read.format("leasehold-archive").load(str(folder)).collect()
    assert len(rows) == len({(row.shardId, row.sequenceNumber) for row in rows}) == ALL_ROWS
    first, shard = min(row.approximateArrivalTimestamp for row in rows), rows[0].shardId
    start = (first + timedelta(seconds=70)).astimezone(UTC)  # Spark returns times of this machine's zone
    expected = [
        row
        for row in rows
        if row.shardId == shard and row.approximateArrivalTimestamp >= first + timedelta(seconds=70)
    ]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        some = spark.read.format("leasehold-archive").options(filterPushdown="true", shards=shard)
        later = some.load(str(folder)).where(f"approximateArrivalTimestamp >= '{start.isoformat()}'")
        assert 0 < len(expected) < ALL_ROWS
        assert sorted(later.collect()) == sorted(expected)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_shuffle_fails_the_query_with_cause_and_remedy(spark: Any, tmp_path: Path) -> None:
    """The sink writes no row of an incomplete range."""
    with pytest.raises(PySparkException, match="repartition, orderBy, join, filter, limit"):
        archive_rows(ranges(spark).repartition(2), tmp_path / "archive", tmp_path / "checkpoint")
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("data,shardId", {}, r'option\("columns", "archive"\)'),
        (",".join(ALL_COLUMNS), {"fileFromat": "jsonl"}, "did you mean fileFormat"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(
    spark: Any, tmp_path: Path, columns: str, options: dict[str, str], sentence: str
) -> None:
    """Examples are a missing column and a misspelt option."""
    with pytest.raises(PySparkException, match=sentence):
        archive_rows(ranges(spark, columns=columns), tmp_path / "archive", tmp_path / "checkpoint", **options)


def test_the_schema_for_spark_is_the_schema_of_the_batches(spark: Any) -> None:
    """Spark refuses batches of a Python source whose Arrow schema differs from that of its own schema."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    schema = StructType.fromDDL(spark_ddl(ALL_COLUMNS))
    assert isinstance(schema, StructType)
    assert to_arrow_schema(schema, timezone="UTC") == arrow_schema(ALL_COLUMNS)


def test_payloads_that_cannot_be_decoded_have_an_error(spark: Any) -> None:
    """The archive can write them below another prefix, by the column `decodeError`."""
    payloads = [b'{"customer":"a","amount":1.5}', b'{"customer":', b'{"amount":"x"}', b"", b'{"other":1}']
    frame = spark.createDataFrame([(bytearray(each),) for each in payloads], "data BINARY")
    rows = decode_payloads(
        frame, Decode(format=DecodeFormat.JSON, schema="customer STRING, amount DOUBLE")
    ).collect()
    assert [row.decodeError is None for row in rows] == [True, False, False, False, True]
    assert [None if row.record is None else tuple(row.record) for row in rows] == [
        ("a", 1.5),
        None,
        None,
        None,
        (None, None),
    ]


def test_a_payload_is_one_json_object_and_nothing_else(spark: Any) -> None:
    """Spark's `from_json` ignores what follows a value, and repairs text that is not UTF-8."""
    right = [b'{"a":1}', b' {"a":1}\n', b'{"a":1,"end":true,"record":{"a":2}}']
    wrong = [
        b'{"a":1} junk',
        b'{"a":1}{"a":2}',
        b'{"a":1},{"a":2}',
        b'{"a":1}}',
        b'{"a":1}} junk',
        b'{"a":1},"end":true} junk',
        b'{"a":1},"record":{"a":2}',
        b'{"a":1}],"b":[1',
        b'{"a":1},"b":0',
        b'{"a":1}\x00',
        b'[{"a":1}]',
        b'{"a":1,"text":"\xff"}',
        b"null",
        b"1",
        b'"{}"',
    ]
    frame = spark.createDataFrame([(bytearray(each),) for each in (*right, *wrong)], "data BINARY")
    rows = decode_payloads(frame, Decode(format=DecodeFormat.JSON, schema="a INT, text STRING")).collect()
    decoded = [None if row.record is None else row.record.a for row in rows]
    assert decoded == [*(1 for _ in right), *(None for _ in wrong)]
    assert [row.decodeError is None for row in rows] == [each is not None for each in decoded]


def test_payloads_are_decoded_in_python(spark: Any) -> None:
    """Avro and Protobuf, in all rows of a task, with types that Spark has."""
    both: list[tuple[Decode, list[bytes]]] = [
        (
            Decode(format=DecodeFormat.AVRO, payloads=AvroPayloads(ORDER_AVSC)),
            [to_avro(ORDER), to_avro(ORDER)[:-1], to_avro(ORDER)],
        ),
        (
            Decode(format=DecodeFormat.PROTOBUF, payloads=ProtobufPayloads(DESCRIPTORS, "shop.Order")),
            [to_protobuf(customer="Ä", at={"seconds": 1}), b"\xff", to_protobuf(customer="Ä")],
        ),
    ]
    for decode, payloads in both:
        frame = spark.createDataFrame([(bytearray(each),) for each in payloads], "data BINARY").coalesce(1)
        decoded = decode_payloads(frame, decode)
        rows = decoded.collect()
        assert decoded.columns == ["data", "record", "decodeError"]
        assert [row.decodeError is None for row in rows] == [True, False, True]
        assert (rows[1].record, rows[0].record.customer, rows[2].record.customer) == (None, "Ä", "Ä")
        assert rows[0].record.at is not None


def test_an_archive_is_compacted_by_tasks(spark: Any, tmp_path: Path) -> None:
    """Each task merges the objects of one group. The driver deletes them."""
    write_small_objects(tmp_path, 40)
    archive, settings = ArchiveSettings(url=str(tmp_path)), CompactionSettings(target_bytes=40_000)
    report = compact_archive(spark, archive, settings)
    assert (report.merged, report.deleted, report.skipped) == (24, 0, [])
    assert report.created > 1
    make_older(tmp_path, "*.since-*")
    assert compact_archive(spark, archive, settings).deleted == 24
    rows = spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path))
    assert sorted(int(row.sequenceNumber) for row in rows.collect()) == list(range(40))


def write_small_objects(folder: Path, count: int) -> None:
    shard, archive = ShardId("shardId-000000000000"), Archive.open(ArchiveSettings(url=str(folder)))
    pinned = [
        PinnedRange(shard, "one", to_archive_table((UserRecord(b"x", "k", str(n), 60_000),), "orders", shard))
        for n in range(count)
    ]
    asyncio.run(archive.write(pinned))
    make_older(folder, "*.parquet")  # compaction leaves new objects alone


def make_older(folder: Path, pattern: str) -> None:
    long_ago = time.time() - 2 * 86_400
    for path in folder.rglob(pattern):
        os.utime(path, (long_ago, long_ago))
