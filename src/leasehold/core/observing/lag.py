"""How far the shards of this member are behind, computed from its events. Has no clock.

Kinesis reports how far a page was behind the tip when it was read. That alone is not the lag: a page may then wait
while a handler hangs, or no page may come at all. So the lag of a shard is that of its oldest page in flight, or else
of its last page, and it grows with the time since then. A stalled shard shows a rising lag, never a constant one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, assert_never

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    ConsumerFound,
    DeaggregationFailed,
    Event,
    FanOutRefused,
    FanOutResumed,
    FindingBegan,
    FindingEnded,
    FindingsReviewed,
    FleetDecided,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    HandoffWithdrawn,
    IteratorExpired,
    KinesisCallsCounted,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
    LeaseRestarted,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    OperationFailed,
    PageRead,
    ProcessorCalled,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
    RecordDeadLettered,
    RecordSkipped,
    RowIgnored,
    RowRecovered,
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    StreamRecreated,
    StreamsChanged,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
    WorkerFailed,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap

# Pages of an idle shard are a second or more apart, and batches are collected for a while. Waiting counts as lag only
# when it takes longer than that; otherwise a shard at its tip would never show zero.
LAG_GROWS_AFTER_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PageInFlight:
    """A page that was read and is not completely done. If `last` is None, any progress may have completed it."""

    records: int
    read_ms: int
    behind_ms: int | None
    last: Position | None


@dataclass(slots=True)
class ShardProgress:
    """The progress of one shard while this member serves it.

    A shard makes *progress* when records are done, or when it has nothing to do.
    """

    last_progress_ms: int
    parents: tuple[ShardId, ...] = ()  # that have not ended yet
    page_ms: int | None = None
    page_behind_ms: int | None = None
    pages_in_flight: deque[PageInFlight] = field(default_factory=deque)
    done_up_to: Position | None = None  # the highest position that is done in this lease session
    failures: int = 0  # since the last progress
    last_failure: str | None = None  # since the last progress
    failed_handler: HandlerFailed | None = None  # since the last progress
    throttled_reads: int = 0  # since the last page
    gap: Gap | None = None  # the last one, until records after it are done

    def lag_ms(self, now_ms: int) -> int | None:
        """How far the first record that is not done is behind the tip; None before the first page."""
        if self.pages_in_flight:
            oldest = self.pages_in_flight[0]
            return _add_waiting_time(oldest.behind_ms, now_ms - oldest.read_ms)
        return None if self.page_ms is None else _add_waiting_time(self.page_behind_ms, now_ms - self.page_ms)

    @property
    def records_in_flight(self) -> int:
        """Records that were read and are not done. All records of a page count until its last one is done."""
        return sum(page.records for page in self.pages_in_flight)

    def mark_progress(self, now_ms: int) -> None:
        self.last_progress_ms = now_ms
        self.failures = 0
        self.last_failure = None
        self.failed_handler = None

    def add_page(self, page: PageRead, now_ms: int) -> None:
        """Add a page. It counts as progress if no other page is in flight and this page is nearer to the tip."""
        before_ms, self.page_behind_ms, self.page_ms = self.page_behind_ms, page.millis_behind, now_ms
        self.throttled_reads = 0
        if not self.pages_in_flight and (page.records or _is_nearer(page.millis_behind, before_ms)):
            self.mark_progress(now_ms)
        # PageRead is reported after the last record of the page was handed over. By then a part of it may be done.
        if page.records and not _is_done(page.last, self.done_up_to):
            self.pages_in_flight.append(PageInFlight(page.records, now_ms, page.millis_behind, page.last))

    def mark_done(self, up_to: Position, now_ms: int) -> None:
        """Mark everything up to this position as done."""
        if self.done_up_to is not None and up_to <= self.done_up_to:
            return
        self.done_up_to = up_to
        if self.gap is not None and up_to > self.gap.after:
            self.gap = None
        while self.pages_in_flight and (
            self.pages_in_flight[0].last is None or _is_done(self.pages_in_flight[0].last, up_to)
        ):
            self.pages_in_flight.popleft()
        self.mark_progress(now_ms)

    def add_failure(self, failure: str) -> None:
        """Count a failure of a handler or a read."""
        self.failures += 1
        self.last_failure = failure


class LagTracker:
    """The progress of all shards that this member serves now, by lease key."""

    def __init__(self) -> None:
        self._shards: dict[LeaseKey, ShardProgress] = {}

    def __iter__(self) -> Iterator[tuple[LeaseKey, ShardProgress]]:
        return iter(self._shards.items())

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, shard: LeaseKey) -> bool:
        return shard in self._shards

    def observe(self, event: Event, now_ms: int) -> None:
        """Process one event."""
        match event:
            case LeaseTaken():
                self._shards[event.shard_key] = ShardProgress(now_ms)
            case LeaseLost() | LeaseReleased() | ShardEnded():
                self._shards.pop(event.shard_key, None)
            case MemberStopped():
                self._shards.clear()
            case (
                ShardBlockedOnParents()
                | ReadingStarted()
                | PageRead()
                | BatchHandled()
                | RecordDeadLettered()
                | RecordSkipped()
                | HandlerFailed()
                | ReadFailed()
                | SubscriptionLost()
                | ReadThrottled()
                | Checkpointed()
                | GapFound()
            ):
                # A handler may return after its lease was lost. Such an event must not add the shard again.
                if (progress := self._shards.get(event.shard_key)) is not None:
                    _update_progress(progress, event, now_ms)
            case MemberStarted() | FleetRefreshed() | FleetDecided() | ShardsSynced() | StreamRecreated():
                pass  # not about the progress of a shard
            case (
                StreamsChanged()
                | LeaseRestarted()
                | HandoffRequested()
                | HandoffWithdrawn()
                | LeasesRenewed()
                | ShardStalled()
            ):
                pass
            case IteratorExpired() | DeaggregationFailed() | ProcessorCalled() | LeaseDeleted():
                pass
            case OperationFailed() | WorkerFailed() | RowRejected() | RowRecovered() | RowIgnored():
                pass
            case LeaseAssigned() | LeadershipTaken() | LeadershipEnded() | FleetUpgraded():
                pass
            case ConsumerFound() | FanOutRefused() | FanOutResumed() | Subscribed() | SubscriptionEnded():
                pass
            case FindingBegan() | FindingEnded() | FindingsReviewed() | KinesisCallsCounted():
                pass
            case _:
                assert_never(event)


def _update_progress(progress: ShardProgress, event: Event, now_ms: int) -> None:
    match event:
        case ShardBlockedOnParents(parents=parents):
            progress.parents = parents
            progress.mark_progress(now_ms)
        case ReadingStarted():
            progress.parents = ()
            progress.mark_progress(now_ms)
        case PageRead():
            progress.add_page(event, now_ms)
        case BatchHandled(end=position):
            progress.mark_done(position, now_ms)
        case (
            RecordDeadLettered(position=position)
            | RecordSkipped(position=position)
            | Checkpointed(position=position)
        ):
            progress.mark_done(position, now_ms)
        case HandlerFailed():
            # Of several records that fail at one time, the one that has failed most often is told.
            if progress.failed_handler is None or event.attempt >= progress.failed_handler.attempt:
                progress.failed_handler = event
            progress.add_failure(handler_failure(event))
        case ReadFailed(error=error):
            progress.add_failure(f"reading fails: {error}")
        case SubscriptionLost(reason=reason):
            progress.add_failure(f"a subscription was lost: {reason}")
        case GapFound(gap=gap):
            progress.gap = gap
        case ReadThrottled():
            progress.throttled_reads += 1
            progress.add_failure("reading is throttled")
        case _:
            pass


def handler_failure(failed: HandlerFailed) -> str:
    """The failure of a handler in words."""
    return f"the handler raises {failed.error}{failed.reason and f': {failed.reason}'}"


def _is_done(last: Position | None, done_up_to: Position | None) -> bool:
    return last is not None and done_up_to is not None and last <= done_up_to


def _add_waiting_time(behind_ms: int | None, waited_ms: int) -> int | None:
    if waited_ms > LAG_GROWS_AFTER_MS:
        return (behind_ms or 0) + waited_ms
    return behind_ms


def _is_nearer(behind_ms: int | None, before_ms: int | None) -> bool:
    """At the tip, or nearer to it than before. Without a value from Kinesis, every page counts as progress."""
    return behind_ms in {None, 0} or before_ms is None or behind_ms < before_ms
