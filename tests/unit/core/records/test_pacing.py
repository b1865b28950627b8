"""When to read a shard again, and how many records to request."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from leasehold.config.settings import ReadSettings
from leasehold.core.records.pacing import (
    BACKOFF_MAX_MS,
    CALL_BYTES_MIN,
    FIRST_CALL_RECORDS,
    IDLE_TICK_MS,
    CallSize,
    call_size,
    next_call_ms,
    retry_wait_ms,
)

SETTINGS = ReadSettings()
PLENTY = 10**9
chance = st.floats(0, 1, exclude_max=True)


def test_the_first_call_is_small() -> None:
    """Before the record size is known, few records are requested, and one second's quota is reserved for them."""
    assert call_size(None, PLENTY, SETTINGS) == CallSize(FIRST_CALL_RECORDS, 2_000_000)


def test_a_call_requests_one_seconds_quota() -> None:
    """After a larger response the shard would throttle all readers for seconds."""
    assert call_size(1_000, PLENTY, SETTINGS) == CallSize(2_000, 2_000_000)


def test_small_records_are_limited_by_number() -> None:
    """Kinesis returns at most 10,000 records per call."""
    assert call_size(10, PLENTY, SETTINGS) == CallSize(10_000, 100_000)


def test_large_records_are_requested_one_by_one() -> None:
    """A record larger than every limit is still requested."""
    assert call_size(9_000_000, PLENTY, SETTINGS) == CallSize(1, 9_000_000)


def test_a_call_fits_into_the_free_buffer() -> None:
    """With less room, fewer records are requested, down to a minimum size."""
    assert call_size(1_000, 700_000, SETTINGS) == CallSize(700, 700_000)
    assert call_size(1_000, 0, SETTINGS) == CallSize(CALL_BYTES_MIN // 1_000, CALL_BYTES_MIN // 1_000 * 1_000)


def test_one_shard_cannot_fill_a_small_buffer() -> None:
    """Several shards fit into a small buffer, also before their record sizes are known."""
    small = ReadSettings(buffer_bytes=2_000_000)
    assert call_size(1_000, PLENTY, small).expected_bytes == 500_000
    assert call_size(None, PLENTY, small).expected_bytes == 500_000


def test_a_setting_limits_the_records() -> None:
    """`records_per_call` is an upper bound, for the first call too."""
    assert call_size(1_000, PLENTY, ReadSettings(records_per_call=7)).records_max == 7
    assert call_size(None, PLENTY, ReadSettings(records_per_call=7)).records_max == 7


@given(record_bytes=st.none() | st.integers(0, 10**8), free_bytes=st.integers(0, 10**9))
def test_a_call_is_always_valid(record_bytes: int | None, free_bytes: int) -> None:
    """No record size and no lack of room leads to a call that Kinesis would refuse."""
    size = call_size(record_bytes, free_bytes, SETTINGS)
    assert 1 <= size.records_max <= 10_000
    assert 0 <= size.expected_bytes <= max(2_000_000, record_bytes or 0)


def test_behind_the_tip_calls_follow_as_fast_as_allowed() -> None:
    """Five calls per second, even if they return nothing."""
    assert next_call_ms(1_000, 0, 0.5, SETTINGS, is_at_tip=False) == 1_200


def test_a_large_response_delays_the_next_call() -> None:
    """After a response of 10 MB, the shard is not read for five seconds."""
    assert next_call_ms(0, 10_000_000, 0.5, SETTINGS, is_at_tip=False) == 5_000
    assert next_call_ms(0, 10_000_000, 0.5, SETTINGS, is_at_tip=True) == 5_000


def test_at_the_tip_the_pause_is_configured() -> None:
    """With a spread of ten percent."""
    assert next_call_ms(0, 100, 0.0, SETTINGS, is_at_tip=True) == 900
    assert next_call_ms(0, 100, 0.5, SETTINGS, is_at_tip=True) == 1_000
    slow = ReadSettings(idle_poll_every=timedelta(seconds=60))
    assert next_call_ms(0, 100, 0.5, slow, is_at_tip=True) == 60_000


def test_the_fastest_idle_poll_keeps_to_the_limit() -> None:
    """The random spread never leads to more than five calls per second."""
    fastest = ReadSettings(idle_poll_every=timedelta(milliseconds=200))
    assert next_call_ms(0, 0, 0.0, fastest, is_at_tip=True) == 200


@given(
    now_ms=st.integers(0, 10**9),
    jitter=chance,
    size=st.integers(0, 3_000_000),
    poll_ms=st.integers(200, 60_000),
)
def test_idle_polls_begin_at_ticks(now_ms: int, jitter: float, size: int, poll_ms: int) -> None:
    """At a tick near to the end of the pause, and never before the limits of the shard allow it."""
    settings = ReadSettings(idle_poll_every=timedelta(milliseconds=poll_ms))
    due_ms = next_call_ms(now_ms, size, jitter, settings, is_at_tip=True)
    allowed_ms = next_call_ms(now_ms, size, jitter, settings, is_at_tip=False)
    pause_ms = max(allowed_ms - now_ms, poll_ms * (0.9 + 0.2 * jitter))
    assert due_ms % IDLE_TICK_MS == 0
    assert due_ms >= allowed_ms
    assert abs(due_ms - now_ms - pause_ms) <= IDLE_TICK_MS


@given(
    sizes=st.lists(st.integers(0, 10_485_760), min_size=1, max_size=50), at_tip=st.booleans(), jitter=chance
)
def test_limits_hold_for_any_sequence_of_responses(sizes: list[int], at_tip: bool, jitter: float) -> None:
    """Over all calls, neither 5 calls nor 2 MB per second are exceeded."""
    now_ms = 0
    for size in sizes:
        now_ms = next_call_ms(now_ms, size, jitter, SETTINGS, is_at_tip=at_tip)
    assert now_ms >= len(sizes) * 200
    assert now_ms >= sum(sizes) / 2_000


@given(failures=st.integers(1, 10**6), jitter=chance)
def test_retries_are_bounded_and_never_faster_than_calls(failures: int, jitter: float) -> None:
    """After any number of failures, the wait is between 200 ms and about ten seconds."""
    assert 200 < retry_wait_ms(failures, jitter, SETTINGS) <= 200 + BACKOFF_MAX_MS


def test_retries_have_full_jitter() -> None:
    """The wait lies between the pause between calls and a bound that doubles with each failure."""
    assert [retry_wait_ms(failures, 0.0, SETTINGS) for failures in (1, 2, 9)] == [325, 325, 325]
    assert [retry_wait_ms(failures, 0.5, SETTINGS) for failures in (1, 2, 3, 4)] == [450, 700, 1_200, 2_200]
