"""Where reading of a shard starts, and what its first record shows."""

import pytest

from leasehold.core.model import HASH_KEY_MAX, HashRange, InitialPosition, Lease, Shard, ShardId, lease_key
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.records.iterators import (
    CLOCK_ERROR_MAX_MS,
    Gap,
    IteratorKind,
    IteratorStart,
    gap_before,
    iterator_start,
    lease_start,
    replacement_start,
    trimmed_beginning,
)
from leasehold.errors import ConfigError

FROM_TIME = InitialPosition(AT_TIMESTAMP, 1_700_000_000_123)
FROM_LATEST = InitialPosition(LATEST)
NUMBER = "49590338271490256608559692538361571095921575989136588898"


def test_reading_starts_at_the_checkpoint_record() -> None:
    """The record is read again, with the sequence number exactly as it was received."""
    expected = IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=NUMBER)
    assert iterator_start(Position(NUMBER, 3), FROM_LATEST) == expected
    assert replacement_start(Position(NUMBER, 3), FROM_LATEST, 5_000_000) == expected
    assert iterator_start(Position("007"), FROM_LATEST).sequence_number == "007"


def test_a_sentinel_in_the_lease_decides_the_start() -> None:
    """The current settings do not matter, except for the timestamp."""
    assert iterator_start(TRIM_HORIZON, FROM_LATEST) == IteratorStart(IteratorKind.TRIM_HORIZON)
    assert iterator_start(LATEST, FROM_TIME) == IteratorStart(IteratorKind.LATEST)
    assert iterator_start(AT_TIMESTAMP, FROM_TIME) == IteratorStart(
        IteratorKind.AT_TIMESTAMP, timestamp_ms=1_700_000_000_123
    )


def test_a_lease_at_a_timestamp_needs_the_timestamp() -> None:
    """Without it the error says what to configure."""
    with pytest.raises(ConfigError, match="configure the timestamp"):
        iterator_start(AT_TIMESTAMP, FROM_LATEST)


def test_a_finished_shard_is_never_read() -> None:
    """Such a request is a programming error."""
    with pytest.raises(AssertionError):
        iterator_start(SHARD_END, FROM_LATEST)


def test_latest_is_requested_only_once() -> None:
    """The tip has moved since. The second request uses the time of the first one, minus the clock tolerance."""
    assert replacement_start(LATEST, FROM_LATEST, 5_000_000) == IteratorStart(
        IteratorKind.AT_TIMESTAMP, timestamp_ms=5_000_000 - CLOCK_ERROR_MAX_MS
    )
    assert replacement_start(TRIM_HORIZON, FROM_LATEST, 5_000_000) == IteratorStart(IteratorKind.TRIM_HORIZON)
    assert replacement_start(AT_TIMESTAMP, FROM_TIME, 5_000_000).timestamp_ms == 1_700_000_000_123


def test_the_checkpoint_record_shows_that_nothing_is_missing() -> None:
    """If it comes back, or an earlier one, there is no gap; sequence numbers compare as numbers."""
    assert gap_before(Position("100", 7), "100", 5) is None
    assert gap_before(Position("100"), "99", 5) is None
    assert gap_before(Position("100"), "0100", 5) is None


def test_a_later_first_record_is_a_gap() -> None:
    """The gap has the position before it, and the number and arrival time after it."""
    assert gap_before(Position("99"), "100", 5) == Gap(Position("99"), "100", 5)


@pytest.mark.parametrize("sentinel", [TRIM_HORIZON, LATEST, AT_TIMESTAMP])
def test_a_start_at_a_sentinel_has_no_gap(sentinel: Position) -> None:
    """No particular record has to come first."""
    assert gap_before(sentinel, "100", 5) is None


def shard(name: str, *parents: str) -> Shard:
    everything = HashRange(0, HASH_KEY_MAX)
    return Shard(ShardId(name), everything, "100", None, tuple(map(ShardId, parents)))


@pytest.mark.parametrize(
    ("open_at_horizon", "expected"),
    [
        ([shard("child", "parent")], Position("100")),
        ([shard("other")], None),
        ([], None),
        ([shard("parent"), shard("child", "parent")], None),
    ],
)
def test_a_start_is_trimmed_if_the_shard_is_older_than_the_retained_records(
    open_at_horizon: list[Shard], expected: Position | None
) -> None:
    """But not if the server ignores the filter and lists every shard."""
    assert trimmed_beginning(ShardId("child"), open_at_horizon) == expected


def lease_at(checkpoint: Position, latest_at_ms: int | None) -> Lease:
    name = ShardId("shardId-000000000001")
    return Lease(key=lease_key(name), shard_id=name, checkpoint=checkpoint, latest_at_ms=latest_at_ms)


def test_latest_means_the_same_time_for_the_next_reader() -> None:
    """It starts at the creation time of the lease, minus the clock tolerance."""
    start, initial = lease_start(lease_at(LATEST, 100_000), InitialPosition(LATEST), is_first_reading=False)
    assert (start, initial) == (AT_TIMESTAMP, InitialPosition(AT_TIMESTAMP, 70_000))


@pytest.mark.parametrize(
    ("lease", "is_first_reading"),
    [
        pytest.param(lease_at(LATEST, 100_000), True, id="the first reader starts at the tip"),
        pytest.param(lease_at(LATEST, None), False, id="a lease of the Java KCL has no creation time"),
        pytest.param(
            lease_at(Position("7"), 100_000), False, id="a checkpointed lease continues at its checkpoint"
        ),
    ],
)
def test_other_leases_start_at_their_checkpoint(lease: Lease, is_first_reading: bool) -> None:
    """The creation time matters only for leases at LATEST that were never checkpointed."""
    initial = InitialPosition(LATEST)
    assert lease_start(lease, initial, is_first_reading=is_first_reading) == (lease.checkpoint, initial)
