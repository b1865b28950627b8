"""When a shard is asked again, and for how much."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from leasehold.config.settings import ReadSettings
from leasehold.core.records.pacing import (
    BACKOFF_MAX_MS,
    CALL_BYTES_MIN,
    FIRST_CALL_RECORDS,
    CallSize,
    call_size,
    next_call_ms,
    retry_wait_ms,
)

SETTINGS = ReadSettings()
PLENTY = 10**9
chance = st.floats(0, 1, exclude_max=True)


def test_the_first_call_is_small() -> None:
    """Until records are known, few are asked for, and a second's worth is set aside for them."""
    assert call_size(None, PLENTY, SETTINGS) == CallSize(FIRST_CALL_RECORDS, 2_000_000)


def test_a_call_asks_for_a_seconds_worth() -> None:
    """A larger answer would make the shard refuse everybody for seconds."""
    assert call_size(1_000, PLENTY, SETTINGS) == CallSize(2_000, 2_000_000)


def test_small_records_are_limited_by_number() -> None:
    """Kinesis gives 10,000 records a call, however small they are."""
    assert call_size(10, PLENTY, SETTINGS) == CallSize(10_000, 100_000)


def test_large_records_come_one_by_one() -> None:
    """A record above everything that is wanted is still asked for."""
    assert call_size(9_000_000, PLENTY, SETTINGS) == CallSize(1, 9_000_000)


def test_a_call_fits_into_the_room_that_is_left() -> None:
    """When the buffer is short of room, less is asked for, down to a size below which calls are not worth it."""
    assert call_size(1_000, 700_000, SETTINGS) == CallSize(700, 700_000)
    assert call_size(1_000, 0, SETTINGS) == CallSize(CALL_BYTES_MIN // 1_000, CALL_BYTES_MIN // 1_000 * 1_000)


def test_no_shard_has_a_small_buffer_to_itself() -> None:
    """Several shards fit into a small buffer side by side, also before they are known."""
    small = ReadSettings(buffer_bytes=2_000_000)
    assert call_size(1_000, PLENTY, small).expected_bytes == 500_000
    assert call_size(None, PLENTY, small).expected_bytes == 500_000


def test_a_setting_limits_the_records() -> None:
    """`records_per_call` is an upper bound, for the first call too."""
    assert call_size(1_000, PLENTY, ReadSettings(records_per_call=7)).records_max == 7
    assert call_size(None, PLENTY, ReadSettings(records_per_call=7)).records_max == 7


@given(record_bytes=st.none() | st.integers(0, 10**8), free_bytes=st.integers(0, 10**9))
def test_a_call_is_always_possible(record_bytes: int | None, free_bytes: int) -> None:
    """No size of records and no lack of room leads to a call that Kinesis would refuse."""
    size = call_size(record_bytes, free_bytes, SETTINGS)
    assert 1 <= size.records_max <= 10_000
    assert 0 <= size.expected_bytes <= max(2_000_000, record_bytes or 0)


def test_behind_the_tip_calls_follow_as_fast_as_allowed() -> None:
    """Five calls a second, even if they bring nothing."""
    assert next_call_ms(1_000, 0, 0.5, SETTINGS, is_at_tip=False) == 1_200


def test_bytes_are_paid_for_in_time() -> None:
    """After an answer of 10 MB, the shard is left alone for five seconds."""
    assert next_call_ms(0, 10_000_000, 0.5, SETTINGS, is_at_tip=False) == 5_000
    assert next_call_ms(0, 10_000_000, 0.5, SETTINGS, is_at_tip=True) == 5_000


def test_at_the_tip_the_pause_is_the_settings() -> None:
    """Give or take a tenth."""
    assert next_call_ms(0, 100, 0.0, SETTINGS, is_at_tip=True) == 900
    assert next_call_ms(0, 100, 0.5, SETTINGS, is_at_tip=True) == 1_000
    slow = ReadSettings(idle_poll_every=timedelta(seconds=60))
    assert next_call_ms(0, 100, 0.5, slow, is_at_tip=True) == 60_000


def test_the_fastest_idle_poll_keeps_to_the_limit() -> None:
    """Not even chance makes it more than five calls a second."""
    fastest = ReadSettings(idle_poll_every=timedelta(milliseconds=200))
    assert next_call_ms(0, 0, 0.0, fastest, is_at_tip=True) == 200


@given(
    sizes=st.lists(st.integers(0, 10_485_760), min_size=1, max_size=50), at_tip=st.booleans(), jitter=chance
)
def test_limits_are_kept_over_any_run_of_answers(sizes: list[int], at_tip: bool, jitter: float) -> None:
    """Over all calls up to the next one, neither 5 calls nor 2 MB a second are exceeded."""
    now_ms = 0
    for size in sizes:
        now_ms = next_call_ms(now_ms, size, jitter, SETTINGS, is_at_tip=at_tip)
    assert now_ms >= len(sizes) * 200
    assert now_ms >= sum(sizes) / 2_000


@given(failures=st.integers(1, 10**6), jitter=chance)
def test_retries_are_bounded_and_never_faster_than_calls(failures: int, jitter: float) -> None:
    """However many failures there were, the next try is at most some ten seconds away, and at least 200 ms."""
    assert 200 < retry_wait_ms(failures, jitter, SETTINGS) <= 200 + BACKOFF_MAX_MS


def test_retries_spread_over_a_time_that_doubles() -> None:
    """Full jitter: nearly anything from the pause between calls to a bound that doubles with each failure."""
    assert [retry_wait_ms(failures, 0.0, SETTINGS) for failures in (1, 2, 9)] == [325, 325, 325]
    assert [retry_wait_ms(failures, 0.5, SETTINGS) for failures in (1, 2, 3, 4)] == [450, 700, 1_200, 2_200]
