"""The lag of shards, computed from events."""

import pytest

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    Event,
    HandlerFailed,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    MemberStopped,
    PageRead,
    RecordDeadLettered,
    RecordSkipped,
    ShardEnded,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.observing.lag import LagTracker, ShardProgress
from leasehold.core.position import TRIM_HORIZON, Position
from tests.sample_events import EVENT_TYPES, sample

SHARD = ShardId("shard-0")
TAKEN = LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON)


def page(records: int, behind_ms: int | None, last: int | None = None) -> PageRead:
    return PageRead(
        SHARD, records, 100 * records, behind_ms, 5, None if last is None else Position(str(last))
    )


def handled(end: int) -> BatchHandled:
    return BatchHandled(SHARD, 1, 100, Position(str(end)), 3, 0)


def lags_after(*events: tuple[int, Event]) -> LagTracker:
    """The lag tracker after these events, each with its time."""
    lags = LagTracker()
    for now_ms, event in events:
        lags.observe(event, now_ms)
    return lags


def only(lags: LagTracker) -> ShardProgress:
    ((_, progress),) = lags
    return progress


def test_the_lag_is_unknown_before_the_first_page() -> None:
    """Nothing is known about a shard that has not been read."""
    assert only(lags_after((0, TAKEN))).lag_ms(500) is None


def test_a_shard_at_its_tip_has_no_lag_between_two_polls() -> None:
    """The seconds between polls of an idle shard do not count."""
    assert only(lags_after((0, TAKEN), (1_000, page(0, 0)))).lag_ms(10_900) == 0


def test_the_lag_grows_when_no_page_comes() -> None:
    """A shard that cannot be read falls behind with time."""
    progress = only(lags_after((0, TAKEN), (1_000, page(0, 300))))
    assert progress.lag_ms(61_000) == 60_300


def test_the_lag_is_that_of_the_oldest_page_in_flight() -> None:
    """A reader that is ahead at the tip does not hide a slow handler."""
    progress = only(
        lags_after((0, TAKEN), (1_000, page(5, 4_000)), (2_000, page(5, 0)), (50_000, page(0, 0)))
    )
    assert progress.lag_ms(51_000) == 54_000


def test_a_page_is_in_flight_until_its_last_record_is_done() -> None:
    """A batch may be half a page, or one and a half."""
    events: list[tuple[int, Event]] = [
        (0, TAKEN),
        (0, page(10, 9_000, last=10)),
        (0, page(10, 6_000, last=20)),
    ]
    assert only(lags_after(*events, (1, handled(5)))).lag_ms(2) == 9_000
    assert only(lags_after(*events, (1, handled(5)), (2, handled(15)))).lag_ms(3) == 6_000
    assert only(lags_after(*events, (1, handled(5)), (2, handled(20)))).records_in_flight == 0


def test_a_page_that_is_reported_after_it_was_done_is_not_in_flight() -> None:
    """PageRead may follow BatchHandled. An idle shard must not seem to hang."""
    assert only(lags_after((0, TAKEN), (1, handled(10)), (2, page(10, 0, last=10)))).records_in_flight == 0


def test_a_page_whose_last_record_is_unknown_is_done_with_the_next_progress() -> None:
    """A missed problem is better than a false one."""
    assert only(lags_after((0, TAKEN), (1, page(10, 0)), (2, handled(3)))).records_in_flight == 0


def test_repeating_a_position_is_no_progress() -> None:
    """A second checkpoint at the same position does not count."""
    progress = only(lags_after((0, TAKEN), (1, handled(3)), (90, Checkpointed(SHARD, Position("3")))))
    assert progress.last_progress_ms == 1


@pytest.mark.parametrize("kind", [RecordDeadLettered, RecordSkipped])
def test_a_dead_lettered_record_is_done(kind: type[RecordDeadLettered | RecordSkipped]) -> None:
    """It is no longer in flight."""
    lags = lags_after((0, TAKEN), (0, page(1, 0, last=9)), (70, kind(SHARD, Position("9"), "ValueError")))
    assert only(lags).records_in_flight == 0
    assert only(lags).last_progress_ms == 70


def test_pages_are_no_progress_while_a_handler_hangs() -> None:
    """With records in flight, only finished work is progress."""
    progress = only(lags_after((0, TAKEN), (10, page(5, 0)), (20, page(5, 0)), (30, page(0, 0))))
    assert progress.last_progress_ms == 10


def test_empty_pages_are_progress_if_they_get_nearer_to_the_tip() -> None:
    """And only then."""
    assert only(lags_after((0, TAKEN), (10, page(0, 900)), (20, page(0, 800)))).last_progress_ms == 20
    assert only(lags_after((0, TAKEN), (10, page(0, 900)), (20, page(0, 900)))).last_progress_ms == 10


def test_progress_clears_the_last_failure() -> None:
    """A failure is reported only while it lasts."""
    failure = HandlerFailed(SHARD, Position("1"), Position("9"), 5, 1, "ValueError")
    lags = lags_after((0, TAKEN), (0, page(5, 0)), (1, failure), (2, failure))
    assert (only(lags).failures, only(lags).last_failure) == (2, "the handler raises ValueError")
    lags.observe(handled(5), 3)
    assert (only(lags).failures, only(lags).last_failure) == (0, None)


@pytest.mark.parametrize("kind", [LeaseLost, LeaseReleased, ShardEnded, MemberStopped])
def test_a_lost_shard_is_removed(kind: type[Event]) -> None:
    """Memory is bounded by the leases of the member, and a late handler does not add a shard again."""
    lags = lags_after((0, TAKEN), (1, sample(kind, shard=SHARD)), (2, handled(1)), (3, page(1, 0)))
    assert LeaseKey(SHARD) not in lags


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_handled(kind: type[Event]) -> None:
    """A new event must be handled or ignored explicitly."""
    lags_after((0, TAKEN), (1, sample(kind, shard=SHARD)))
