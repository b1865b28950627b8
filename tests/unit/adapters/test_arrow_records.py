"""The Arrow columns of the native decoder behave like the lists of the Python decoder. Skipped if it is not built."""

import base64
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from leasehold.adapters import native_decoder
from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.archive.columns import ALL_COLUMNS, BatchSize, record_batches, user_record_batch
from leasehold.core.model import HASH_KEY_MAX, HashRange, ShardId
from leasehold.core.position import Position
from leasehold.core.record import PutEntry, Record, UserRecord
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DeaggregationSettings, Unreadable, deaggregate_all
from leasehold.core.records.record_columns import UserRecordColumns, UserRecordSequence, join_user_records
from leasehold.ports import Page

if TYPE_CHECKING:
    from leasehold.adapters.arrow_records import ArrowRecords

SHARD = HashRange(HASH_KEY_MAX // 8, HASH_KEY_MAX)


@pytest.fixture(autouse=True)
def forget_the_decoder() -> Iterator[None]:
    """A test chooses the decoder by the environment variable."""
    native_decoder.native_decoder.cache_clear()
    yield
    native_decoder.native_decoder.cache_clear()


def body() -> bytes:
    data = [os.urandom(size) for size in range(200)]
    data += [
        aggregate([PutEntry(b"%d" % sub, f"ké{sub}", sub if sub % 2 else None) for sub in range(count)]).data
        for count in (1, 2, 5)
    ]
    records = [
        {"Data": base64.b64encode(each).decode(), "PartitionKey": "k", "SequenceNumber": str(95 + number)}
        | ({"ApproximateArrivalTimestamp": 1.7e9 + number, "EncryptionType": "KMS"} if number % 3 else {})
        for number, each in enumerate(data)
    ]
    return json.dumps({"Records": records, "NextShardIterator": "AAAA", "MillisBehindLatest": 7}).encode()


def decode_both(monkeypatch: pytest.MonkeyPatch) -> tuple[Page, Page]:
    response = body()
    monkeypatch.setenv(native_decoder.VARIABLE, "0")
    in_python = page_from_body(response)
    monkeypatch.delenv(native_decoder.VARIABLE)
    native_decoder.native_decoder.cache_clear()
    return in_python, page_from_body(response)


def users_of_both(monkeypatch: pytest.MonkeyPatch) -> tuple[UserRecordSequence, UserRecordSequence]:
    one, other = (deaggregate_all(page.records, SHARD) for page in decode_both(monkeypatch))
    assert one.incidents == other.incidents != ()
    return one.records, other.records


def test_the_variable_disables_the_native_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing of it is imported, and its version is not shown."""
    monkeypatch.setenv(native_decoder.VARIABLE, "0")
    assert native_decoder.native_decoder() is None
    assert native_decoder.native_version() is None
    assert page_from_body(body()).millis_behind == 7


def test_both_decoders_return_the_same_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence of equal records, in another representation."""
    pytest.importorskip("leasehold_native")
    in_python, native = decode_both(monkeypatch)
    assert type(in_python.records) is not type(native.records)
    assert native == in_python
    assert list(native.records) == list(in_python.records)


def test_both_cut_user_records_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """By index, by position, by size; and both join them."""
    pytest.importorskip("leasehold_native")
    one, other = users_of_both(monkeypatch)
    assert one == other
    assert one[5] == other[5]
    assert one[-1] == other[-1]
    for part in (slice(3, 150), slice(0, 0), slice(-7, None), slice(None, None, 3)):
        assert one[part] == other[part]
        assert one[part].payload_bytes == other[part].payload_bytes
    for index in (0, 7, len(one) - 1):
        assert other.position(index) == one.position(index)
        assert other.count_to(one.position(index)) == one.count_to(one.position(index))
    for size in (-1, 0, 10, 5_000, 10**9):
        assert other.count_within_bytes(size) == one.count_within_bytes(size)
    assert other.after_number(100) == one.after_number(100)
    assert join_user_records([other[:4], other[9:12]]) == join_user_records([one[:4], one[9:12]])
    assert other.arrivals_ms() == one.arrivals_ms()


def test_both_give_the_same_arrow_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the types that Spark expects."""
    pytest.importorskip("leasehold_native")
    made = [
        list(
            record_batches(
                each,
                stream="s",
                shard=ShardId("x"),
                columns=ALL_COLUMNS,
                session=1,
                size=BatchSize(50, 9_000),
            )
        )
        for each in users_of_both(monkeypatch)
    ]
    assert len(made[0]) > 1
    assert made[0] == made[1]
    one, other = (
        user_record_batch(each, stream="s", shard=ShardId("x")) for each in users_of_both(monkeypatch)
    )
    assert one.equals(other)


def test_joined_records_are_batches_that_share_memory_with_their_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copy would take as long as the decoding, and a column of one batch cannot have more than 2 GiB."""
    pytest.importorskip("leasehold_native")
    in_python, users = users_of_both(monkeypatch)
    joined = join_user_records([users[:7], users[7:8], users[8:]])
    assert joined == in_python
    assert joined.payload_bytes == users.payload_bytes
    assert [joined[index] for index in (0, 7, 8, -1)] == [users[index] for index in (0, 7, 8, -1)]
    assert joined[5:9] == in_python[5:9]
    assert joined.count_to(users.position(7)) == 8
    assert joined.take([9, 0]) == [users[9], users[0]]
    assert join_user_records([joined, users[:1]]) == [*users, users[0]]
    assert joined.arrow_batches is not None
    assert users.arrow_batches is not None
    assert [batch.num_rows for batch in joined.arrow_batches] == [7, 1, len(users) - 8]
    addresses = [
        each.column("data").buffers()[2].address for each in (*joined.arrow_batches, *users.arrow_batches)
    ]
    assert len(set(addresses)) == 1


def test_a_small_page_beside_large_ones_is_joined_as_arrow_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a small page are lists. The large ones beside it must not become objects."""
    pytest.importorskip("leasehold_native")
    in_python, users = users_of_both(monkeypatch)
    for parts in ([in_python[:60], users[60:]], [users[:60], in_python[60:]]):
        joined = join_user_records(parts)
        assert joined.arrow_batches is not None
        assert users.arrow_batches is not None
        assert {batch.schema for batch in joined.arrow_batches} == {users.arrow_batches[0].schema}
        assert joined == in_python
        assert joined.payload_bytes == in_python.payload_bytes
        assert list(joined) == list(in_python)
    assert join_user_records([in_python[:60], in_python[60:]]).arrow_batches is None
    assert join_user_records([list(in_python[:60]), users[60:]]) == in_python


def test_records_that_no_batch_can_hold_are_joined_as_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a number of more than 64 bits, or keys of more than 2 GiB in one part."""
    pytest.importorskip("leasehold_native")
    _, users = users_of_both(monkeypatch)
    large = UserRecordColumns.of([UserRecord(b"", "k", "1", arrival_ms=2**63)])
    assert list(join_user_records([users, large])) == [*users, *large]


def test_joined_records_become_batches_with_the_indexes_of_the_whole_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches of Arrow columns end where their parts end; the rows are the same."""
    pytest.importorskip("leasehold_native")
    in_python, users = users_of_both(monkeypatch)
    joined = join_user_records([users[:60], users[60:61], users[61:]])

    def rows(records: UserRecordSequence) -> list[pa.RecordBatch]:
        return list(
            record_batches(
                records,
                stream="s",
                shard=ShardId("x"),
                columns=ALL_COLUMNS,
                session=1,
                size=BatchSize(50, 9_000),
            )
        )

    assert all(batch.num_rows <= 50 for batch in rows(joined))
    assert [row for batch in rows(joined) for row in batch.to_pylist()] == [
        row for batch in rows(in_python) for row in batch.to_pylist()
    ]
    whole = user_record_batch(joined, stream="s", shard=ShardId("x"))
    assert whole.equals(user_record_batch(in_python, stream="s", shard=ShardId("x")))


def arrow_records(records: Sequence[Record]) -> "ArrowRecords":
    from leasehold.adapters.arrow_records import ArrowRecords

    fields = ("data", "partition_key", "sequence_number", "arrival_ms", "encryption_type")
    types = (pa.binary(), pa.string(), pa.string(), pa.int64(), pa.string())
    columns = map(pa.array, zip(*records, strict=True), types)
    return ArrowRecords(pa.record_batch(list(columns), names=list(fields)))


@pytest.mark.parametrize("unreadable", Unreadable)
@pytest.mark.parametrize("count", [1, 3])
def test_user_records_that_repeat_too_many_bytes_are_made_in_python(
    unreadable: Unreadable, count: int
) -> None:
    """They share their keys there: as Arrow columns, these would have more than 2 GiB."""
    pytest.importorskip("leasehold_native")
    data = aggregate([PutEntry(b"", "k") for _ in range(5_000)]).data
    records = [Record(data, "outer", str(number), None, "e" * 500_000) for number in range(count)]
    settings = DeaggregationSettings(unreadable=unreadable)
    found = deaggregate_all(arrow_records(records), None, settings)
    assert found.incidents == ()
    assert [user.position for user in found.records] == [
        Position(str(number), sub) for number in range(count) for sub in range(5_000)
    ]
    assert found.records[0].encryption_type is found.records[4_999].encryption_type


def test_limits_beyond_64_bits() -> None:
    """They are no reason to leave the native decoder."""
    pytest.importorskip("leasehold_native")
    settings = DeaggregationSettings(user_records_max=2**64, expanded_bytes_max=2**70)
    records = [Record(b"plain", "k", "1"), Record(aggregate([PutEntry(b"a", "b")]).data, "k", "2")]
    found = deaggregate_all(arrow_records(records), None, settings)
    assert found.records == deaggregate_all(records, None, settings).records
    assert found.records.arrow_batches is not None
