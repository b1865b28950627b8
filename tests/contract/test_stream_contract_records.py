"""Stream contract: putting records, their shard, and reading them from every kind of position."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.streams import (
    BAD_VALUE,
    HASH_KEY_MAX,
    MakeStream,
    Stream,
    data_and_keys,
    eventually,
    expect_refusal,
    hash_key_of,
    hash_range,
)

MEGABYTE = 1_000_000
RESPONSE_BYTES_MAX = 10 * 1024 * 1024


# Writing


def test_a_record_is_returned_unchanged(stream: Stream, shard_id: str) -> None:
    """Byte for byte, with its partition key and the sequence number that the put returned."""
    data = bytes(range(256))
    put = stream.put(data, key="Schlüssel ✓")
    (record,) = stream.read(shard_id).records
    assert (record["Data"], record["PartitionKey"]) == (data, "Schlüssel ✓")
    assert (put["ShardId"], put["SequenceNumber"]) == (shard_id, record["SequenceNumber"])


def test_a_record_may_be_empty(stream: Stream, shard_id: str) -> None:
    """Without any data."""
    stream.put(b"")
    assert stream.read(shard_id).data == [b""]


def test_the_arrival_time_has_milliseconds(stream: Stream, shard_id: str) -> None:
    """ApproximateArrivalTimestamp is the time at which the server received the record. It never decreases."""
    for _ in range(5):
        stream.put()
    arrivals = [record["ApproximateArrivalTimestamp"] for record in stream.read(shard_id).records]
    assert abs(datetime.now(UTC) - arrivals[0]) < timedelta(minutes=5)
    assert arrivals == sorted(arrivals)
    assert all(arrival.microsecond % 1000 == 0 for arrival in arrivals)
    assert any(arrival.microsecond for arrival in arrivals)


def test_sequence_numbers_have_56_digits_and_increase(stream: Stream, shard_id: str) -> None:
    """Without leading zeros, compared as integers."""
    numbers = [stream.put()["SequenceNumber"] for _ in range(5)]
    numbers += [entry["SequenceNumber"] for entry in stream.put_many([("k", b"x")] * 5)]
    assert all(len(number) == 56 and number.isdigit() and number[0] != "0" for number in numbers)
    assert [int(number) for number in numbers] == sorted({int(number) for number in numbers})
    assert stream.read(shard_id).numbers == [int(number) for number in numbers]


def test_sequence_numbers_lie_in_the_range_of_their_shard(stream: Stream, shard_id: str) -> None:
    """The first record of a shard has a number after the shard's starting number."""
    number = int(stream.put()["SequenceNumber"])
    (shard,) = stream.shards()
    assert int(shard["SequenceNumberRange"]["StartingSequenceNumber"]) < number
    assert "EndingSequenceNumber" not in shard["SequenceNumberRange"]


def test_put_records_responds_in_the_order_of_the_request(make_stream: MakeStream) -> None:
    """Each entry of the response belongs to the request entry at the same index."""
    stream = make_stream(shards=2)
    responses = stream.put_many([(f"key-{number}", f"{number}".encode()) for number in range(20)])
    where = {
        (response["ShardId"], response["SequenceNumber"]): number for number, response in enumerate(responses)
    }
    for shard_id in stream.shard_ids():
        for record in stream.read(shard_id).records:
            assert record["Data"] == f"{where.pop((shard_id, record['SequenceNumber']))}".encode()
    assert where == {}


def test_records_go_to_the_shard_of_their_key_hash(make_stream: MakeStream) -> None:
    """A record is stored in the shard whose range contains the MD5 of its partition key."""
    stream = make_stream(shards=4)
    ranges = {shard["ShardId"]: hash_range(shard) for shard in stream.shards()}
    for number in range(20):
        first, last = ranges[stream.put(key=f"key-{number}")["ShardId"]]
        assert first <= hash_key_of(f"key-{number}") <= last


def test_an_explicit_hash_key_overrides_the_partition_key(make_stream: MakeStream) -> None:
    """It may be any value of the range, both ends included."""
    stream = make_stream(shards=2)
    low, high = (shard["ShardId"] for shard in stream.open_shards())
    boundary = hash_range(stream.open_shards()[1])[0]
    went = {
        key: stream.put(ExplicitHashKey=str(key))["ShardId"]
        for key in (0, boundary - 1, boundary, HASH_KEY_MAX)
    }
    assert went == {0: low, boundary - 1: low, boundary: high, HASH_KEY_MAX: high}


@pytest.mark.parametrize("hash_key", [str(2**128), "-1"])
def test_a_hash_key_outside_the_range_is_refused(stream: Stream, hash_key: str) -> None:
    """A hash key is below 2**128."""
    with expect_refusal(*BAD_VALUE):
        stream.put(ExplicitHashKey=hash_key)


@pytest.mark.parametrize("hash_key", ["0x10", "ten"])
def test_a_hash_key_is_a_number(stream: Stream, hash_key: str) -> None:
    """A hash key consists of decimal digits."""
    with stream.kinesis.refuses("a hash key that is not a number", *BAD_VALUE):
        stream.put(ExplicitHashKey=hash_key)


def test_a_partition_key_has_1_to_256_characters(stream: Stream) -> None:
    """An empty key and one of 257 characters are refused."""
    stream.put(key="é" * 256)
    with expect_refusal(*BAD_VALUE):
        stream.put(key="k" * 257)
    with expect_refusal(*BAD_VALUE):
        stream.client.put_records(StreamName=stream.name, Records=[{"Data": b"x", "PartitionKey": "k" * 257}])


def test_a_record_holds_up_to_one_mebibyte(stream: Stream, shard_id: str) -> None:
    """Data and partition key together; one byte more is refused and nothing is stored."""
    stream.put(bytes(1024 * 1024 - 1), key="k")
    with expect_refusal(*BAD_VALUE):
        stream.put(bytes(1024 * 1024 + 1), key="k")
    assert len(stream.read(shard_id).records) == 1


def test_put_records_accepts_up_to_500_records(stream: Stream) -> None:
    """A request of 501 records is refused."""
    with stream.kinesis.refuses("more than 500 records", *BAD_VALUE):
        stream.put_many([("k", b"x")] * 501)


# Positions


def test_every_iterator_type_starts_at_its_position(stream: Stream, shard_id: str) -> None:
    """TRIM_HORIZON is the oldest record, AT a number includes it, AFTER a number does not."""
    numbers = [stream.put(f"{number}".encode())["SequenceNumber"] for number in range(4)]
    assert stream.read(shard_id, "TRIM_HORIZON").data == [b"0", b"1", b"2", b"3"]
    assert stream.read(shard_id, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[2]).data == [b"2", b"3"]
    assert stream.read(shard_id, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[2]).data == [b"3"]
    assert stream.read(shard_id, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=numbers[3]).data == []


def test_latest_starts_after_existing_records(stream: Stream, shard_id: str) -> None:
    """A LATEST iterator returns only records that are put after it was created."""
    stream.put(b"before")
    iterator = stream.iterator(shard_id, "LATEST")
    stream.put(b"after")
    assert stream.read_on(iterator).data == [b"after"]


def test_an_iterator_may_start_at_the_starting_number_of_the_shard(stream: Stream, shard_id: str) -> None:
    """It is a valid position before the first record."""
    stream.put(b"first")
    (shard,) = stream.shards()
    start = shard["SequenceNumberRange"]["StartingSequenceNumber"]
    read = stream.read(shard_id, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=start)
    assert read.data == [b"first"]


def test_at_timestamp_starts_at_the_first_record_of_that_time(stream: Stream, shard_id: str) -> None:
    """AT_TIMESTAMP returns records that arrived at that time or later; before the first record, all of them."""
    old = put_and_wait_for_the_next_second(stream, b"old")
    stream.put(b"new")
    next_second = old.replace(microsecond=0) + timedelta(seconds=1)
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=next_second).data == [b"new"]
    an_hour_before = old - timedelta(hours=1)
    assert stream.read(shard_id, "AT_TIMESTAMP", Timestamp=an_hour_before).data == [b"old", b"new"]


def put_and_wait_for_the_next_second(stream: Stream, data: bytes) -> datetime:
    """Put a record and return its arrival time, once the clock shows a later second: kinesis-local compares whole
    seconds.
    """
    shard_id = stream.put(data)["ShardId"]
    arrival: datetime = stream.read(shard_id).records[-1]["ApproximateArrivalTimestamp"]
    eventually(lambda: time.time() > int(arrival.timestamp()) + 1, "the next second begins")
    return arrival


def test_a_number_between_records_is_a_position(stream: Stream, shard_id: str) -> None:
    """AT and AFTER accept any number of the shard, stored or not, and continue with the next record."""
    before, after = (int(stream.put(data)["SequenceNumber"]) for data in (b"a", b"b"))
    between = str(before + (after - before) // 2) if after - before > 1 else str(before)
    documented = [b"b"]
    expected = stream.kinesis.expects("a position that is not a record", documented)
    if expected is documented:
        assert (
            stream.read(shard_id, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=between).data == documented
        )
    else:
        with expect_refusal(expected):
            stream.iterator(shard_id, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=between)


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER", "AT_TIMESTAMP"])
def test_a_position_needs_its_value(stream: Stream, shard_id: str, kind: str) -> None:
    """An iterator by number or time without that value is refused."""
    with expect_refusal(*BAD_VALUE):
        stream.iterator(shard_id, kind)


@pytest.mark.parametrize("number", ["abc", "-5", "0x1F"])
def test_a_starting_number_must_be_a_number(stream: Stream, shard_id: str, number: str) -> None:
    """Other texts are refused."""
    with expect_refusal(*BAD_VALUE):
        stream.iterator(shard_id, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number)


def test_an_unknown_iterator_type_is_refused(stream: Stream, shard_id: str) -> None:
    """Only the five documented types exist."""
    with stream.kinesis.refuses("an unknown enum value", *BAD_VALUE):
        stream.iterator(shard_id, "SOMEWHERE")


def test_an_unknown_shard_is_not_found(stream: Stream) -> None:
    """An iterator for a shard that the stream does not have is refused."""
    with expect_refusal("ResourceNotFoundException"):
        stream.iterator("shardId-000000000099")


@pytest.mark.parametrize("iterator", ["garbage", "AAAAAAAAAAE" + "A" * 200, "x"])
def test_an_unknown_iterator_is_refused(stream: Stream, iterator: str) -> None:
    """An iterator that the service did not issue is an invalid argument."""
    with stream.kinesis.refuses("a made-up iterator", "InvalidArgumentException"):
        stream.client.get_records(ShardIterator=iterator)


# Reading


def test_the_tip_of_a_shard_has_a_next_iterator(stream: Stream, shard_id: str) -> None:
    """There are no records, zero milliseconds behind, and an iterator for the next call."""
    tip = stream.client.get_records(ShardIterator=stream.iterator(shard_id))
    assert (tip["Records"], tip["MillisBehindLatest"]) == ([], 0)
    stream.put(b"later")
    again = stream.client.get_records(ShardIterator=tip["NextShardIterator"])
    assert [record["Data"] for record in again["Records"]] == [b"later"]
    assert again["MillisBehindLatest"] == 0


def test_an_iterator_can_be_used_again(stream: Stream, shard_id: str) -> None:
    """Two calls with the same iterator return the same records."""
    stream.put_many([("k", b"a"), ("k", b"b")])
    iterator = stream.iterator(shard_id)
    assert data_and_keys(stream.read_on(iterator)) == data_and_keys(stream.read_on(iterator))


def test_limit_is_the_maximum_of_one_response(stream: Stream, shard_id: str) -> None:
    """Following the iterators returns each record once, in order."""
    data = [f"{number}".encode() for number in range(7)]
    stream.put_many([("k", entry) for entry in data])
    pages: list[list[bytes]] = []
    iterator = stream.iterator(shard_id)
    while sum(map(len, pages)) < len(data):
        response = stream.client.get_records(ShardIterator=iterator, Limit=3)
        pages.append([record["Data"] for record in response["Records"]])
        iterator = response["NextShardIterator"]
    assert pages == [data[:3], data[3:6], data[6:]]


@pytest.mark.parametrize("limit", [0, 10_001])
def test_a_limit_out_of_range_is_refused(stream: Stream, shard_id: str, limit: int) -> None:
    """Limit is 1 to 10,000."""
    iterator = stream.iterator(shard_id)
    with expect_refusal(*BAD_VALUE):
        stream.client.get_records(ShardIterator=iterator, Limit=limit)


def test_a_response_holds_at_most_ten_megabytes(stream: Stream, shard_id: str) -> None:
    """The next response continues after them."""
    for number in range(11):
        stream.put(bytes([number]) * MEGABYTE)
    first = stream.client.get_records(ShardIterator=stream.iterator(shard_id))
    size = sum(len(record["Data"]) for record in first["Records"])
    assert RESPONSE_BYTES_MAX - 2 * MEGABYTE < size <= RESPONSE_BYTES_MAX
    rest = stream.read_on(first["NextShardIterator"])
    assert [record["Data"][0] for record in [*first["Records"], *rest.records]] == list(range(11))


def test_millis_behind_latest_is_positive_behind_the_tip(stream: Stream, shard_id: str) -> None:
    """It is zero when the last record was returned."""
    put_and_wait_for_the_next_second(stream, b"old")
    stream.put(b"new")
    iterator = stream.iterator(shard_id)
    first = stream.client.get_records(ShardIterator=iterator, Limit=1)
    assert first["MillisBehindLatest"] > 0
    second = stream.client.get_records(ShardIterator=first["NextShardIterator"], Limit=1)
    assert ([record["Data"] for record in second["Records"]], second["MillisBehindLatest"]) == ([b"new"], 0)
