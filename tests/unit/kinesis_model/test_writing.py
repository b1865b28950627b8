"""PutRecord and PutRecords."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import hash_key_of
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.kinesis_model.writing import PutFailure, PutRequest, PutResult
from tests.unit.kinesis_model.model_under_test import HOUR_MS, MIDDLE, ModelUnderTest, shard_id_of

MIB = 1024 * 1024


@given(st.text(min_size=1, max_size=256))
def test_the_hash_of_the_key_selects_the_shard(key: str) -> None:
    """The hash is the MD5 of the partition key."""
    model = ModelUnderTest(shards=3)
    stored = model.put(key=key)
    assert hash_key_of(key) in model.stream.shard(stored.shard_id).hash_range


@pytest.mark.parametrize(("hash_key", "shard"), [(0, 0), (MIDDLE - 1, 0), (MIDDLE, 1), (HASH_KEY_MAX, 1)])
def test_an_explicit_hash_key_overrides_the_partition_key(hash_key: int, shard: int) -> None:
    """Tested at both ends of both shards."""
    assert ModelUnderTest(shards=2).put(hash_key=hash_key).shard_id == shard_id_of(shard)


@pytest.mark.parametrize("hash_key", [-1, HASH_KEY_MAX + 1])
def test_an_explicit_hash_key_outside_the_range_is_refused(hash_key: int) -> None:
    """The error names the value and the range."""
    with pytest.raises(KinesisApiError, match=str(hash_key)) as error:
        ModelUnderTest().put(hash_key=hash_key)
    assert error.value.error_type == ErrorType.INVALID_ARGUMENT


def test_records_of_one_call_are_stored_in_order() -> None:
    """Sequence numbers increase along the call."""
    model = ModelUnderTest()
    outcomes = model.service.put_records(model.now_ms, "s", [PutRequest("k", b"%d" % n) for n in range(3)])
    numbers = [outcome.number for outcome in outcomes if isinstance(outcome, PutResult)]
    assert numbers == sorted(numbers)
    assert model.read() == [b"0", b"1", b"2"]


def test_arrival_times_never_go_back() -> None:
    """If the clock goes back, the next record still arrives no earlier than the one before it."""
    model = ModelUnderTest()
    model.put()
    model.now_ms -= 5000
    model.put()
    page, _ = model.get(model.iterator())
    assert page.records[0].arrival_ms == page.records[1].arrival_ms


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_partition_key_has_1_to_256_characters(key: str) -> None:
    """The error names the length, not the key."""
    with pytest.raises(KinesisApiError, match=f"{len(key)} characters") as error:
        ModelUnderTest().put(key=key)
    assert error.value.error_type == ErrorType.VALIDATION
    assert "xxx" not in error.value.message


def test_a_record_has_at_most_one_mebibyte_with_its_key() -> None:
    """Data and key count together, in bytes."""
    model = ModelUnderTest()
    model.put(bytes(MIB - 2), key="é")
    with pytest.raises(KinesisApiError, match="UpdateMaxRecordSize"):
        model.put(bytes(MIB - 1), key="é")


def test_a_stream_can_allow_larger_records() -> None:
    """After UpdateMaxRecordSize a record of 10 MiB is accepted, and a request of the same size."""
    model = ModelUnderTest()
    model.service.set_record_size(model.now_ms, "s", 10_240)
    model.put(bytes(10 * MIB - 1))
    with pytest.raises(KinesisApiError):
        model.put(bytes(10 * MIB))
    with pytest.raises(KinesisApiError, match="10 MB"):
        model.service.put_records(model.now_ms, "s", [PutRequest("k", bytes(6 * MIB))] * 2)


@pytest.mark.parametrize("count", [0, 501])
def test_a_call_has_1_to_500_records(count: int) -> None:
    """The error names the number."""
    model = ModelUnderTest()
    with pytest.raises(KinesisApiError, match=f"{count} records"):
        model.service.put_records(model.now_ms, "s", [PutRequest("k", b"x")] * count)


def test_a_call_has_at_most_five_mebibytes() -> None:
    """Six records of one MiB are refused, and none of them is stored."""
    model = ModelUnderTest()
    with pytest.raises(KinesisApiError, match="5 MB"):
        model.service.put_records(model.now_ms, "s", [PutRequest("k", bytes(MIB - 1))] * 6)
    assert model.read() == []


def test_one_invalid_record_fails_the_whole_call() -> None:
    """Nothing is stored when a record of the call is invalid."""
    model = ModelUnderTest()
    with pytest.raises(KinesisApiError):
        model.service.put_records(model.now_ms, "s", [PutRequest("k", b"good"), PutRequest("", b"bad")])
    assert model.read() == []


def test_a_throttled_record_fails_alone() -> None:
    """Of 1.2 MiB in a call to one shard, the records within the limit are stored and the others are refused."""
    model = ModelUnderTest(shards=2, enforce_limits=True)
    low, high = PutRequest("k", bytes(MIB // 2), 0), PutRequest("k", b"x", HASH_KEY_MAX)
    outcomes = model.service.put_records(model.now_ms, "s", [low, low, high])
    assert [type(outcome) for outcome in outcomes] == [PutResult, PutFailure, PutResult]
    refused = outcomes[1]
    assert isinstance(refused, PutFailure)
    assert refused.error_type == ErrorType.THROTTLED
    assert shard_id_of(0) in refused.message


def test_a_single_put_is_throttled() -> None:
    """The 1,001st record of a second is refused. A moment later the next is accepted."""
    model = ModelUnderTest(enforce_limits=True)
    for _ in range(1000):
        model.put()
    with pytest.raises(KinesisApiError) as error:
        model.put()
    assert error.value.error_type == ErrorType.THROTTLED
    model.now_ms += 1
    model.put()


def test_the_memory_of_all_streams_is_limited() -> None:
    """Puts are refused at the limit, and accepted again once records have expired or are removed."""
    model = ModelUnderTest(stored_bytes_max=100_000)
    model.service.create_stream(model.now_ms, "other", shard_count=2)
    for name in ("s", "other"):
        model.service.put_records(model.now_ms, name, [PutRequest("k", b"x" * 10_000)] * 4)
    for entries in ([PutRequest("k", b"x" * 20_000)], [PutRequest("k", b"")] * 100):
        with pytest.raises(KinesisApiError, match=r"stored_bytes_max is 100000.*/_leasehold/trim") as error:
            model.service.put_records(model.now_ms, "s", entries)
        assert error.value.error_type == ErrorType.LIMIT_EXCEEDED
    model.put(b"x" * 10_000)
    with pytest.raises(KinesisApiError):
        model.put(b"x" * 10_000)
    model.service.stream(model.now_ms, "other").trim_all_records()
    model.put(b"x" * 30_000)
    model.now_ms += 25 * HOUR_MS
    model.service.put_records(model.now_ms, "other", [PutRequest("k", b"x" * 9_000)] * 10)


def test_the_records_of_a_deleted_stream_do_not_count() -> None:
    """Their memory is free."""
    model = ModelUnderTest(stored_bytes_max=50_000)
    for number in range(10):
        model.service.create_stream(model.now_ms, f"t{number}", shard_count=1)
        model.service.put_record(model.now_ms, f"t{number}", PutRequest("k", b"x" * 40_000))
        model.service.delete_stream(model.now_ms, f"t{number}")
