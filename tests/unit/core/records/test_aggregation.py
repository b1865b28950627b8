"""Building aggregates, and splitting batches of them. The files in scenarios/aggregation cover the splitting of a
single Kinesis record.
"""

import os
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from leasehold.core.model import HASH_KEY_MAX, HashRange
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.record import PutEntry, Record, UserRecord, hash_key_of
from leasehold.core.records.aggregation import (
    PARTITION_KEY_CHARACTERS_MAX,
    RECORD_BYTES_MAX,
    Aggregator,
    aggregate,
)
from leasehold.core.records.deaggregation import (
    DeaggregationOutcome,
    DeaggregationSettings,
    Incident,
    Unreadable,
    deaggregate,
    deaggregate_all,
    records_after,
)
from leasehold.errors import ConfigError, InvalidRecordError, MalformedAggregateError
from tests.kpl_encoder import add_frame, delimited, hash_key, partition_key, user_record, varint

GOLDEN = bytes.fromhex(
    "f3899ac2 0a03706b31 0a03706b32 1203313233 1a0908001a0568656c6c6f 1a0c080110001a06776f726c6421 1a0408001a00"
    "da98f181d4711227aaa8dea63a984604"
)
GOLDEN_ENTRIES = [PutEntry(b"hello", "pk1"), PutEntry(b"world!", "pk2", 123), PutEntry(b"", "pk1")]


def test_an_aggregate_equals_that_of_the_kpl() -> None:
    """Byte by byte, with its outer keys."""
    assert aggregate(GOLDEN_ENTRIES) == PutEntry(GOLDEN, "a", hash_key_of("pk1"))


def test_the_outer_hash_key_is_that_of_the_first_record() -> None:
    """The aggregate goes to the shard of its first record, by explicit hash key or by partition key."""
    assert aggregate([PutEntry(b"x", "pk1", 7), PutEntry(b"y", "pk2")]).explicit_hash_key == 7


def test_a_key_is_written_once() -> None:
    """A thousand records with the same key contain it once."""
    entry = aggregate(PutEntry(b"", "k" * 256, 2**127) for _ in range(1000))
    assert entry.data.count(b"k" * 256) == 1
    assert entry.data.count(str(2**127).encode()) == 1


def test_an_aggregator_fills_a_record_exactly() -> None:
    """The largest aggregate and its outer key fill a Kinesis record; one more record is refused."""
    aggregator = Aggregator()
    assert aggregator.add(PutEntry(b"", "k"))
    room = RECORD_BYTES_MAX - len("a") - aggregator.size
    header = 2 + 2 * (1 + 3)  # an index, and two lengths of three bytes each
    assert not aggregator.add(PutEntry(bytes(room - header + 1), "k"))
    assert aggregator.add(PutEntry(bytes(room - header), "k"))
    assert not aggregator.add(PutEntry(b"", "k"))
    entry = aggregator.flush()
    assert len(entry.data) + len(entry.partition_key) == RECORD_BYTES_MAX


def test_an_aggregator_is_empty_after_a_flush() -> None:
    """The next aggregate contains neither records nor keys of the previous one."""
    aggregator = Aggregator()
    for entry in [PutEntry(b"other", "pk9", 5), PutEntry(b"other", "pk8", 6)]:
        aggregator.add(entry)
    aggregator.flush()
    assert (len(aggregator), aggregator.size) == (0, 20)
    for entry in GOLDEN_ENTRIES:
        aggregator.add(entry)
    assert aggregator.flush() == PutEntry(GOLDEN, "a", hash_key_of("pk1"))


def test_the_size_of_an_aggregate_can_be_limited() -> None:
    """The KPL's own default is 51,200 bytes."""
    aggregator = Aggregator(size_max=200)
    while aggregator.add(PutEntry(b"0123456789", "k")):
        pass
    assert len(aggregator.flush().data) <= 200


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (PutEntry(b"", ""), "a partition key of 0 characters"),
        (PutEntry(b"", "k" * (PARTITION_KEY_CHARACTERS_MAX + 1)), "a partition key of 257 characters"),
        (PutEntry(b"", "\ud800"), "lone surrogate"),
        (PutEntry(b"", "k", -1), "explicit hash key -1 is outside"),
        (PutEntry(b"", "k", HASH_KEY_MAX + 1), "is outside 0..2"),
        (PutEntry(bytes(RECORD_BYTES_MAX - 20), "k"), "put it without aggregation, or split it"),
    ],
)
def test_an_invalid_record_is_refused_when_added(entry: PutEntry, message: str) -> None:
    """A bad key or size raises in `add` and does not change the aggregator."""
    aggregator = Aggregator()
    with pytest.raises(InvalidRecordError, match=message):
        aggregator.add(entry)
    assert (len(aggregator), aggregator.size) == (0, 20)


@pytest.mark.parametrize("key", ["k", "k" * PARTITION_KEY_CHARACTERS_MAX, "ß" * PARTITION_KEY_CHARACTERS_MAX])
def test_keys_up_to_the_limit_are_accepted(key: str) -> None:
    """Kinesis counts characters, not bytes; the range of hash keys includes both ends."""
    entries = [PutEntry(b"x", key, 0), PutEntry(b"y", key, HASH_KEY_MAX)]
    users = deaggregate(Record(aggregate(entries).data, "a", "7")).records
    assert [PutEntry(user.data, user.partition_key, user.explicit_hash_key) for user in users] == entries


def test_aggregate_reports_records_that_do_not_fit() -> None:
    """The error says how many records fit."""
    with pytest.raises(InvalidRecordError, match="only 3 of the records fit"):
        aggregate(PutEntry(bytes(300_000), "k") for _ in range(5))


def test_aggregate_refuses_an_empty_list() -> None:
    """Consumers would receive nothing."""
    with pytest.raises(InvalidRecordError, match="no records"):
        aggregate([])


def test_a_batch_keeps_order_and_reports_incidents() -> None:
    """Plain, aggregated, damaged and out-of-range records come out in shard order, with one incident per problem."""
    plain, whole = Record(b"plain", "k", "10"), Record(GOLDEN, "a", "11")
    damaged = Record(GOLDEN[:-1] + b"?", "a", "12")
    stray = Record(aggregate([PutEntry(b"x", "k", 4), PutEntry(b"y", "k", 5)]).data, "a", "13")
    shard = HashRange(5, HASH_KEY_MAX)
    result = deaggregate_all([plain, whole, damaged, stray, plain], shard)
    assert list(result.records) == [
        plain.as_user_record(),
        *deaggregate(whole).records,
        damaged.as_user_record(),
        plain.as_user_record(),
    ]
    assert result.incidents == (
        Incident("12", DeaggregationOutcome.RAW_BAD_CHECKSUM),
        Incident("13", DeaggregationOutcome.OUT_OF_RANGE, 2),
    )


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The parser's lists of such aggregates are as long as those of sound ones, but not aligned.
        (user_record(0, 0, b"x", more=varint(2 << 3) + varint(1)), user_record(1, None, b"y"), [20, None]),
        (user_record(0, None, b"x"), user_record(1, 0, b"y", more=varint(2 << 3) + varint(1)), [None, 20]),
        (user_record(0, 0, b"x"), user_record(1, 1, b"y"), [10, 20]),
        (user_record(0, None, b"x"), user_record(1, 1, b"y"), [None, 20]),
    ],
)
def test_explicit_hash_keys_stay_with_their_user_records(
    first: bytes, second: bytes, expected: list[int | None]
) -> None:
    """Also if one user record has two of them, of which the last counts, and another has none."""
    keys = partition_key(b"a") + partition_key(b"b") + hash_key(b"10") + hash_key(b"20")
    result = deaggregate(Record(add_frame(keys + first + second), "a", "11"))
    assert [user.explicit_hash_key for user in result.records] == expected
    assert [(user.data, user.partition_key) for user in result.records] == [(b"x", "a"), (b"y", "b")]


def test_a_field_that_a_user_record_repeats_counts_once() -> None:
    """The last value counts, as for Java. The user record after it is not shifted."""
    repeated = user_record(0, None, b"old", more=delimited(3, b"new") + varint(1 << 3) + varint(1))
    keys = partition_key(b"a") + partition_key(b"b")
    result = deaggregate(Record(add_frame(keys + repeated + user_record(0, None, b"y")), "a", "11"))
    assert [(user.data, user.partition_key) for user in result.records] == [(b"new", "b"), (b"y", "a")]


UPPER_HALF = HashRange(2**127, HASH_KEY_MAX)


@pytest.mark.parametrize(
    "payload",
    [
        partition_key(b"pk1") + partition_key(b"a") + user_record(0, None, b"x"),
        partition_key(b"pk1") + partition_key(b"a") + user_record(0, None, b"x") * 3,
        partition_key(b"a") + hash_key(b"7") + hash_key(b"%d" % 2**127) + user_record(0, 1, b"x"),
        # Beside an invalid key, and with a key that is absent by its number.
        partition_key(b"a") + hash_key(b"") + hash_key(b"%d" % 2**127) + user_record(0, 1, b"x"),
        partition_key(b"pk1") + hash_key(b"7") + user_record(0, 2**64 - 1, b"x"),
    ],
)
def test_keys_that_no_user_record_refers_to_are_not_checked(payload: bytes) -> None:
    """`pk1` belongs to the upper half of the hash keys, and so does 2^127; `a` and 7 do not."""
    assert hash_key_of("pk1") >= 2**127 > hash_key_of("a")
    record = Record(add_frame(payload), "k", "1")
    assert deaggregate(record, UPPER_HALF).outcome is DeaggregationOutcome.AGGREGATED
    lower = HashRange(0, 2**127 - 1)
    assert deaggregate(record, lower).outcome is DeaggregationOutcome.OUT_OF_RANGE


def test_the_error_of_an_aggregate_contains_no_payload() -> None:
    """It names the record and the remedy, and may appear in a log."""
    data = add_frame(partition_key(b"secret-key") + user_record(0, 3, b"secret-data"))
    settings = DeaggregationSettings(unreadable=Unreadable.FAIL)
    with pytest.raises(MalformedAggregateError) as error:
        deaggregate_all([Record(data, "secret-outer", "4711")], settings=settings)
    assert error.value.sequence_number == "4711"
    assert "4711" in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("limits", [(0, 1), (1, 0), (-1, 1)])
def test_a_limit_of_zero_is_refused(limits: tuple[int, int]) -> None:
    """It would deliver every aggregate raw, probably by mistake."""
    records, size = limits
    with pytest.raises(ConfigError, match=f"user_records_max={records}, expanded_bytes_max={size}"):
        DeaggregationSettings(user_records_max=records, expanded_bytes_max=size)


def users(*places: tuple[str, int]) -> tuple[UserRecord, ...]:
    return tuple(UserRecord(b"", "k", number, sub_sequence_number=sub) for number, sub in places)


@pytest.mark.parametrize(
    ("checkpoint", "left"),
    [
        (TRIM_HORIZON, 5),
        (LATEST, 5),
        (AT_TIMESTAMP, 5),
        (Position("8"), 5),
        (Position("9"), 4),
        (Position("10"), 3),
        (Position("10", 1), 2),
        (Position("10", 2), 1),
        (Position("10", 7), 1),
        (Position("11"), 0),
        (SHARD_END, 0),
    ],
)
def test_resuming_drops_done_records(checkpoint: Position, left: int) -> None:
    """After (S, k) the parts 0 to k of aggregate S are done, k+1 and all after it are not."""
    records = users(("9", 0), ("10", 0), ("10", 1), ("10", 2), ("11", 0))
    assert records_after(records, checkpoint) == records[5 - left :]


def test_a_raw_record_is_delivered_after_a_checkpoint_within_it() -> None:
    """A member without our limits got as far as part 1 of 3. Here the aggregate is delivered raw and complete."""
    record = Record(GOLDEN, "a", "11")
    result = deaggregate(record, settings=DeaggregationSettings(user_records_max=2))
    assert len(records_after(result.records, Position("11", 1))) == 1
    assert deaggregate(record).records[-1].position == result.records[0].position


def test_the_pure_python_backend_of_protobuf_is_refused() -> None:
    """Malicious records can crash it, so the import fails and says what to change."""
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    command = [sys.executable, "-c", "import leasehold.core.records.deaggregation"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "ConfigError: protobuf runs on its pure-Python backend" in result.stderr
    assert "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in result.stderr


def test_another_librarys_schema_may_have_the_same_names() -> None:
    """Our message has its own descriptor pool, so a program may also use the KPL's generated classes."""
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    file.message_type.add(name="AggregatedRecord").field.add(name="other", number=9, type="TYPE_BOOL")
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
    assert len(deaggregate(Record(GOLDEN, "a", "11")).records) == 3


@pytest.mark.parametrize("more", [b"\x0a\x01\x80", b"\x12\x01\x80", b"\x0a\x01\x00", b"\x12\x00"])
def test_an_index_that_is_written_as_a_list_is_an_unknown_field(more: bytes) -> None:
    """Also if the list is invalid. A raw record in place of the user records would lose those after a checkpoint."""
    one = user_record(0, None, b"x")
    message = partition_key(b"k") + one + user_record(0, None, b"y", more) + one
    found = deaggregate(Record(add_frame(message), "outer", "123"))
    assert found.outcome is DeaggregationOutcome.AGGREGATED
    assert [user.data for user in found.records] == [b"x", b"y", b"x"]
