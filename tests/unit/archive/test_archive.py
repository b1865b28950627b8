"""The archive writes ranges as objects, each exactly once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.adapters.memory.faults import StoreFault
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive import ArchiveSettings, WriteReport
from leasehold.archive.columns import SLICE
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.object_keys import key_to_text
from leasehold.core.model import ShardId
from leasehold.errors import ArchiveConflictError, ConfigError, UnavailableError
from leasehold.ports import StoredObject
from tests.unit.archive.archive_world import (
    A,
    B,
    archive_on,
    keys_in,
    numbers_in,
    records,
    run,
    spans_in,
    table,
    with_faults,
    write_with_outdated_listing,
)


class CountingObjects(MemoryObjects):
    """Counts listings, and lets other tasks run during a listing."""

    def __init__(self) -> None:
        super().__init__()
        self.listings: list[str] = []

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        self.listings.append(offset)
        await asyncio.sleep(0)
        async for page in super().list_after(offset, prefix=prefix):
            yield page


def test_a_range_becomes_one_object_per_minute() -> None:
    """The records of a minute are in one object in order, even if arrival times alternate between two minutes."""
    store = MemoryObjects()
    rows = table(records([1, 2, 3, 4, 5], minute=lambda number: 11 if number in {3, 5} else 10))
    report = run(archive_on(store).write([PinnedRange(A, "one", rows)]))
    assert spans_in(store) == [(10, 1, 4), (11, 3, 5)]
    assert (report.objects, report.rows, report.already_there, report.dropped_rows) == (2, 5, 0, 0)
    assert report.bytes == sum(len(store.objects[key_to_text(key)]) for key in keys_in(store))


def test_an_object_holds_all_columns_except_slice() -> None:
    """Any Parquet reader can read all values back."""
    store = MemoryObjects()
    rows = table(records([1, 2]))
    run(archive_on(store).write([PinnedRange(A, "one", rows)]))
    (key,) = keys_in(store)
    stored = pq.read_table(pa.BufferReader(store.objects[key_to_text(key)]))
    assert stored.equals(rows.drop_columns([SLICE]))


def test_json_lines_hold_data_as_base64() -> None:
    """Each row is one JSON object. Bytes are base64, and times are ISO texts in UTC."""
    store = MemoryObjects()
    run(
        archive_on(store, format="jsonl", compression="none").write(
            [PinnedRange(A, "one", table(records([7])))]
        )
    )
    (key,) = keys_in(store)
    assert orjson.loads(store.objects[key_to_text(key)]) == {
        "partitionKey": "key-7",
        "data": "ZGF0YSA3",
        "stream": "orders",
        "shardId": A,
        "sequenceNumber": "7",
        "approximateArrivalTimestamp": "1970-01-01T00:10:00.007000+00:00",
        "subSequenceNumber": 0,
        "explicitHashKey": None,
    }


@pytest.mark.parametrize(
    ("format_", "compression"),
    [("parquet", "zstd"), ("parquet", "none"), ("jsonl", "zstd"), ("jsonl", "gzip"), ("jsonl", "none")],
)
def test_any_number_of_attempts_leave_the_same_objects(format_: str, compression: str) -> None:
    """Retries in the same process and in others write nothing."""
    store = MemoryObjects()
    rows = table(records(range(1, 9), minute=lambda number: 10 + number // 4))
    archive = archive_on(store, format=format_, compression=compression)
    run(archive.write([PinnedRange(A, "one", rows)]))
    before = dict(store.objects)
    again = run(archive.write([PinnedRange(A, "one", rows)]))
    assert (again.objects, again.already_there, again.already_there_rows) == (0, 3, 8)
    elsewhere = run(
        archive_on(store, format=format_, compression=compression).write([PinnedRange(A, "two", rows)])
    )
    assert elsewhere == WriteReport(dropped_rows=8)
    assert store.objects == before


def test_two_attempts_at_once_leave_the_same_objects() -> None:
    """Two processes write the same range concurrently. Each object is created once."""
    store = MemoryObjects()
    rows = table(records(range(1, 9), minute=lambda number: 10 + number // 4))

    async def write() -> WriteReport:
        both = await asyncio.gather(
            *(archive_on(store).write([PinnedRange(A, "one", rows)]) for _ in range(2))
        )
        return both[0] + both[1]

    report = run(write())
    assert report.rows == 8
    assert numbers_in(store) == list(range(1, 9))


def test_an_object_of_another_size_with_the_same_records_is_accepted() -> None:
    """Another version of pyarrow may write the same records as other bytes."""
    store = MemoryObjects()
    archive, rows = archive_on(store), table(records([1, 2]))
    run(archive.write([PinnedRange(A, "one", rows)]))
    (name,) = [key_to_text(key) for key in keys_in(store)]
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="none")
    store.objects[name] = bytes(sink.getvalue())
    assert run(archive.write([PinnedRange(A, "one", rows)])).already_there == 1


@pytest.mark.parametrize("foreign", [b"something else", b""])
def test_other_records_under_the_name_of_a_range_are_a_conflict(foreign: bytes) -> None:
    """The error names the object. No object is replaced."""
    store = MemoryObjects()
    archive, rows = archive_on(store), table(records([1, 2, 3]))
    run(archive.write([PinnedRange(A, "one", rows)]))
    (name,) = [key_to_text(key) for key in keys_in(store)]
    store.objects[name] = foreign
    with pytest.raises(ArchiveConflictError, match=name):
        run(archive.write([PinnedRange(A, "one", rows)]))
    other = MemoryObjects()
    run(archive_on(other).write([PinnedRange(A, "one", table(records([1, 3])))]))
    with pytest.raises(ArchiveConflictError, match=r"holds other records \(2, expected 3\)"):
        run(write_with_outdated_listing(other, A, "one", rows))
    assert numbers_in(other) == [1, 3]


def test_lost_requests_and_responses_are_retried() -> None:
    """An object whose creation succeeded without a response is recognized."""
    store = MemoryObjects()
    faults: dict[str, list[StoreFault | None]] = {
        "put": [
            StoreFault.RESPONSE_LOST,
            StoreFault.REQUEST_LOST,
            None,
            StoreFault.RESPONSE_LOST,
            StoreFault.THROTTLED,
            *[None] * 9,
        ],
        "size": [StoreFault.REQUEST_LOST, *[None] * 9],
        "list": [StoreFault.REQUEST_LOST, *[None] * 9],
        "get": [StoreFault.REQUEST_LOST, *[None] * 9],
    }
    report = run(
        archive_on(with_faults(store, faults)).write([PinnedRange(A, "one", table(records([1, 2])))])
    )
    assert numbers_in(store) == [1, 2]
    assert report.rows + report.already_there_rows == 2


def test_an_unavailable_store_is_an_error_and_the_range_can_be_written_again() -> None:
    """The archive does not remember a range that was not written."""
    store = MemoryObjects()
    unavailable: dict[str, list[StoreFault | None]] = {
        "put": [None, *[StoreFault.REQUEST_LOST] * 6, *[None] * 9]
    }
    archive = archive_on(with_faults(store, unavailable))
    with pytest.raises(UnavailableError):
        run(archive.write([PinnedRange(A, "one", table(records([1])))]))
    assert run(archive.write([PinnedRange(A, "one", table(records([1])))])).rows == 1


# -- after the loss of the lease table ----------------------------------------------------------------------------


def _minute(number: int) -> int:
    """Arrival minutes that are not monotonic at the change of a minute."""
    return 10 + number // 10 - (1 if number % 10 == 0 and number else 0)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 60), unique=True).map(sorted),
    st.lists(st.integers(1, 60), unique=True).map(sorted),
    st.integers(1, 60),
)
def test_a_stream_that_is_split_into_other_ranges_is_archived_once(
    first: list[int], second: list[int], until: int
) -> None:
    """Every record is archived once, in ranges that do not overlap, however the stream was split before and after."""
    store = MemoryObjects()

    async def write() -> None:
        await _archive_in_ranges(store, "before", first, until)
        await _archive_in_ranges(store, "after", second, 60)

    run(write())
    assert numbers_in(store) == list(range(1, 61))
    _require_no_overlap(store)


async def _archive_in_ranges(store: MemoryObjects, lease_session: str, cuts: list[int], until: int) -> None:
    archive = archive_on(store)
    ends = sorted({cut for cut in cuts if cut < until} | {until})
    for start, end in zip([0, *ends], ends, strict=False):
        for _ in range(2):  # every range is written again, as after a failed task
            await archive.write(
                [PinnedRange(A, lease_session, table(records(range(start + 1, end + 1), minute=_minute)))]
            )


def _require_no_overlap(store: MemoryObjects) -> None:
    spans = spans_in(store)
    for one, other in pairwise(spans):
        assert one[0] != other[0] or one[2] < other[1]


def test_the_archive_is_listed_once_per_lease_session() -> None:
    """A listing begins five minutes before the first record. Only the next owner lists again."""
    store = CountingObjects()
    archive = archive_on(store)

    async def write() -> None:
        for number in range(1, 5):
            await archive.write(
                [PinnedRange(A, "one", table(records([number], minute=lambda each: 10 + each)))]
            )
        await archive.write([PinnedRange(A, "two", table(records([5], minute=lambda each: 10 + each)))])

    run(write())
    assert store.listings == ["1970/01/01/00/06", "1970/01/01/00/10"]


def test_the_ranges_of_one_call_share_a_listing() -> None:
    """Keys begin with the minute, so one listing covers all shards."""
    store = CountingObjects()
    ranges = [PinnedRange(shard, "one", table(records([1, 2]), shard=shard)) for shard in (A, B)]
    run(archive_on(store).write(ranges))
    assert len(store.listings) == 1


def test_shards_that_begin_at_the_same_time_share_a_listing() -> None:
    """All callers that wait during a listing share the next one, from the earliest of their minutes."""
    store = CountingObjects()
    archive = archive_on(store)

    def range_in(minute: int) -> PinnedRange:
        shard = ShardId(f"shardId-{minute}")
        return PinnedRange(shard, "one", table(records([1], minute=lambda _: minute), shard=shard))

    async def write_all() -> None:
        await asyncio.gather(*(archive.write([range_in(minute)]) for minute in (40, 30, 20, 50)))

    run(write_all())
    assert len(store.listings) <= 2
    assert store.listings[-1] == "1970/01/01/00/15"


# -- refused input ------------------------------------------------------------------------------------------------


def test_an_archive_knows_its_stream_by_name_arn_and_identifier() -> None:
    """But two streams of one name, in two accounts or regions, are two streams."""
    store = MemoryObjects()
    arn = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
    for number, name in enumerate((arn, "orders", "123456789012:orders:17")):
        run(archive_on(store).write([PinnedRange(A, "one", table(records([number]), stream=name))]))
    assert numbers_in(store) == [0, 1, 2]
    others = (arn.replace("us-east", "us-west"), arn.replace("1234", "4321"), "1:orders:17")
    for name in others:
        with pytest.raises(ConfigError, match="holds stream"):
            run(archive_on(store).write([PinnedRange(A, "one", table(records([9]), stream=name))]))


def test_a_column_stream_that_is_not_text_names_no_stream() -> None:
    """A program may use the name for something else. The marker then has the layout alone."""
    store = MemoryObjects()
    rows = table(records([1]))
    place = rows.column_names.index("stream")
    run(archive_on(store).write([PinnedRange(A, "one", rows.set_column(place, "stream", pa.array([7])))]))
    assert numbers_in(store) == [1]


def test_an_archive_holds_one_stream() -> None:
    """The shards of another stream have the same ids, so their records would count as archived."""
    store = MemoryObjects()
    run(archive_on(store).write([PinnedRange(A, "one", table(records([1])))]))
    with pytest.raises(ConfigError, match="holds stream 'orders', not 'clicks'"):
        run(archive_on(store).write([PinnedRange(A, "one", table(records([2]), stream="clicks"))]))
    run(
        archive_on(store, prefix="clicks").write(
            [PinnedRange(A, "one", table(records([2]), stream="clicks"))]
        )
    )
    assert numbers_in(store, "clicks") == [2]


def test_rows_without_their_position_are_refused() -> None:
    """The error says how to read the stream."""
    rows = table(records([1])).drop_columns(["subSequenceNumber"])
    with pytest.raises(ConfigError, match=r'without subSequenceNumber .*option\("columns", "archive"\)'):
        run(archive_on(MemoryObjects()).write([PinnedRange(A, "one", rows)]))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"url": ""}, "url is missing"),
        ({"format": "csv"}, "format='csv': expected 'parquet' or 'jsonl'"),
        ({"format": "jsonl", "compression": "snappy"}, "expected 'zstd' or 'gzip' or 'none'"),
        ({"prefix": "../x"}, "prefix"),
        ({"max_concurrent_puts": 0}, "max_concurrent_puts=0"),
    ],
)
def test_invalid_settings_are_refused(setting: dict[str, object], message: str) -> None:
    """Each error names the setting, its value and the expected values."""
    with pytest.raises(ConfigError, match=message):
        ArchiveSettings(**{"url": "x", **setting})  # type: ignore[arg-type]


def test_an_empty_range_writes_nothing() -> None:
    """It causes neither an object nor a request."""
    store = MemoryObjects()
    assert run(archive_on(store).write([PinnedRange(A, "one", table([]))])) == WriteReport()
    assert not store.objects
