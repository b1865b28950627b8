"""The read and write limits of a shard."""

from leasehold.kinesis_model.limits import ShardLimits, TokenBucket

MIB = 1024 * 1024


def test_a_full_bucket_allows_one_second_at_once() -> None:
    """Five calls at once are allowed. The sixth is allowed when the bucket has refilled for one."""
    bucket = TokenBucket(per_second=5)
    for _ in range(5):
        assert bucket.allows(1000)
        bucket.take(1000)
    assert [bucket.allows(at_ms) for at_ms in (1000, 1199, 1200)] == [False, False, True]


def test_a_bucket_stores_no_more_than_one_second() -> None:
    """A long idle time does not allow a larger burst."""
    bucket = TokenBucket(per_second=2)
    bucket.take(0, 2)
    bucket.take(60_000, 2)
    assert not bucket.allows(60_000)


def test_a_response_of_ten_mebibytes_blocks_the_shard_for_five_seconds() -> None:
    """After 10 MiB at 2 MiB a second, reads are refused for five seconds."""
    limits = ShardLimits()
    limits.count_read(1_000, 10 * MIB)
    assert [limits.may_read(at_ms) for at_ms in (1_001, 5_999, 6_000)] == [False, False, True]


def test_an_idle_shard_accepts_a_record_above_the_limit() -> None:
    """A record of 10 MiB is accepted by an idle shard, which is then blocked until it is paid off."""
    limits = ShardLimits()
    assert limits.may_write(1_000, 10 * MIB)
    limits.count_write(1_000, 10 * MIB)
    assert [limits.may_write(at_ms, 1) for at_ms in (10_999, 11_000)] == [False, True]


def test_records_are_limited_by_number_as_well_as_by_bytes() -> None:
    """A shard accepts a thousand small records a second."""
    limits = ShardLimits()
    for _ in range(1000):
        assert limits.may_write(0, 1)
        limits.count_write(0, 1)
    assert not limits.may_write(0, 1)
    assert limits.may_write(1, 1)


def test_a_clock_that_goes_back_refills_nothing() -> None:
    """Time that was already counted is not counted again."""
    bucket = TokenBucket(per_second=1)
    bucket.take(5_000)
    assert not bucket.allows(1_000)
    assert not bucket.allows(5_500)
    assert bucket.allows(6_000)
