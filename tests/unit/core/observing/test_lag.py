"""How far shards are behind, as told by events."""

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


def told(*events: tuple[int, Event]) -> LagTracker:
    """The lags after these events, each with its time."""
    lags = LagTracker()
    for now_ms, event in events:
        lags.observe(event, now_ms)
    return lags


def only(lags: LagTracker) -> ShardProgress:
    ((_, progress),) = lags
    return progress


def test_the_lag_is_unknown_before_the_first_page() -> None:
    """Nothing is claimed about a shard that has not been read."""
    assert only(told((0, TAKEN))).lag_ms(500) is None


def test_a_shard_at_its_tip_has_no_lag_between_two_polls() -> None:
    """The seconds between polls of an idle shard do not count."""
    assert only(told((0, TAKEN), (1_000, page(0, 0)))).lag_ms(10_900) == 0


def test_the_lag_grows_when_no_page_comes() -> None:
    """A shard that cannot be read is further behind with every second."""
    progress = only(told((0, TAKEN), (1_000, page(0, 300))))
    assert progress.lag_ms(61_000) == 60_300


def test_the_lag_is_that_of_the_oldest_page_in_hand() -> None:
    """That a reader ran ahead to the tip does not hide what a handler has not done."""
    progress = only(told((0, TAKEN), (1_000, page(5, 4_000)), (2_000, page(5, 0)), (50_000, page(0, 0))))
    assert progress.lag_ms(51_000) == 54_000


def test_a_page_is_in_hand_until_its_last_record_is_done() -> None:
    """Batches need not be pages: half a page, one and a half, and the lag follows."""
    events: list[tuple[int, Event]] = [
        (0, TAKEN),
        (0, page(10, 9_000, last=10)),
        (0, page(10, 6_000, last=20)),
    ]
    assert only(told(*events, (1, handled(5)))).lag_ms(2) == 9_000
    assert only(told(*events, (1, handled(5)), (2, handled(15)))).lag_ms(3) == 6_000
    assert only(told(*events, (1, handled(5)), (2, handled(20)))).records_in_flight == 0


def test_a_page_that_is_told_of_after_it_was_done_is_not_in_hand() -> None:
    """A reader may tell of a page after handlers were given it; an idle shard must not seem to hang for ever."""
    assert only(told((0, TAKEN), (1, handled(10)), (2, page(10, 0, last=10)))).records_in_flight == 0


def test_a_page_whose_last_record_is_unknown_is_done_with_the_next_progress() -> None:
    """Rather too little trouble is told than trouble where there is none."""
    assert only(told((0, TAKEN), (1, page(10, 0)), (2, handled(3)))).records_in_flight == 0


def test_repeating_what_was_done_is_no_progress() -> None:
    """Storing the same position again does not move a shard."""
    progress = only(told((0, TAKEN), (1, handled(3)), (90, Checkpointed(SHARD, Position("3")))))
    assert progress.last_progress_ms == 1


@pytest.mark.parametrize("kind", [RecordDeadLettered, RecordSkipped])
def test_a_record_put_aside_is_done(kind: type[RecordDeadLettered | RecordSkipped]) -> None:
    """A poison record that went to the dead letters is no longer in hand."""
    lags = told((0, TAKEN), (0, page(1, 0, last=9)), (70, kind(SHARD, Position("9"), "ValueError")))
    assert only(lags).records_in_flight == 0
    assert only(lags).last_progress_ms == 70


def test_pages_do_not_move_a_shard_whose_handler_hangs() -> None:
    """Only finished work moves a shard that has work in hand."""
    progress = only(told((0, TAKEN), (10, page(5, 0)), (20, page(5, 0)), (30, page(0, 0))))
    assert progress.last_progress_ms == 10


def test_an_empty_stretch_moves_while_it_leads_to_the_tip() -> None:
    """Empty pages are progress if each is nearer to the tip than the one before, and only then."""
    assert only(told((0, TAKEN), (10, page(0, 900)), (20, page(0, 800)))).last_progress_ms == 20
    assert only(told((0, TAKEN), (10, page(0, 900)), (20, page(0, 900)))).last_progress_ms == 10


def test_a_failure_is_forgotten_when_the_shard_moves() -> None:
    """Trouble is told while it lasts."""
    failure = HandlerFailed(SHARD, Position("1"), Position("9"), 5, 1, "ValueError")
    lags = told((0, TAKEN), (0, page(5, 0)), (1, failure), (2, failure))
    assert (only(lags).failures, only(lags).last_failure) == (2, "the handler raises ValueError")
    lags.observe(handled(5), 3)
    assert (only(lags).failures, only(lags).last_failure) == (0, None)


@pytest.mark.parametrize("kind", [LeaseLost, LeaseReleased, ShardEnded, MemberStopped])
def test_a_shard_that_is_no_longer_served_is_forgotten(kind: type[Event]) -> None:
    """Memory is bounded by what is held, and a late handler does not bring a shard back."""
    lags = told((0, TAKEN), (1, sample(kind, shard=SHARD)), (2, handled(1)), (3, page(1, 0)))
    assert LeaseKey(SHARD) not in lags


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_expected(kind: type[Event]) -> None:
    """A new event must be handled or ignored in so many words."""
    told((0, TAKEN), (1, sample(kind, shard=SHARD)))
