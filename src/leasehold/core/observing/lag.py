"""How far the shards of this member are behind, folded from its events. Holds no clock; judges nothing.

Kinesis says how far a page was behind the tip when it was read. That is not the whole truth: a page may then lie in
hand while a handler hangs, and no page at all may come. So the lag of a shard is that of the oldest page still in hand,
or else of the last page, and it grows with the time since. A stalled shard shows a rising lag, never a frozen one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, assert_never

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    DeaggregationFailed,
    Event,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    IteratorExpired,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
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
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    WorkerFailed,
)
from leasehold.core.model import LeaseKey, ShardId
from leasehold.core.position import Position

# Pages of an idle shard are a second or more apart, and batches are collected for a while: waiting counts as lag only
# once it is longer than that, or a shard at its tip would never show zero.
WAITING_COUNTS_AFTER_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PageInFlight:
    """A page that was read and is not done to its end. Without a `last` any progress may have been its."""

    records: int
    read_ms: int
    behind_ms: int | None
    last: Position | None


@dataclass(slots=True)
class ShardProgress:
    """One shard while this member serves it. It *moves* when records get done, or when there is nothing to do."""

    last_progress_ms: int
    parents: tuple[ShardId, ...] = ()  # that it still waits for
    page_ms: int | None = None
    page_behind_ms: int | None = None
    pages_in_flight: deque[PageInFlight] = field(default_factory=deque)
    done_to: Position | None = None  # the highest position known to be done in this holding
    failures: int = 0  # since it last moved
    trouble: str | None = None  # what failed last, since it last moved

    def lag_ms(self, now_ms: int) -> int | None:
        """How far behind the tip the first record is that is not done; None before the first page."""
        if self.pages_in_flight:
            oldest = self.pages_in_flight[0]
            return _grown(oldest.behind_ms, now_ms - oldest.read_ms)
        return None if self.page_ms is None else _grown(self.page_behind_ms, now_ms - self.page_ms)

    @property
    def records_in_flight(self) -> int:
        """Read, and not done yet; those of a page count until its last is done."""
        return sum(page.records for page in self.pages_in_flight)

    def move(self, now_ms: int) -> None:
        """The shard got on."""
        self.last_progress_ms = now_ms
        self.failures = 0
        self.trouble = None

    def read(self, page: PageRead, now_ms: int) -> None:
        """A page came. It moves the shard if that has nothing else to do, and the page is nearer to the tip."""
        before_ms, self.page_behind_ms, self.page_ms = self.page_behind_ms, page.millis_behind, now_ms
        if not self.pages_in_flight and (page.records or _is_nearer(page.millis_behind, before_ms)):
            self.move(now_ms)
        # A page is told of when the last of it was handed over: by then a part of it may be done.
        if page.records and not _is_done(page.last, self.done_to):
            self.pages_in_flight.append(PageInFlight(page.records, now_ms, page.millis_behind, page.last))

    def done(self, to: Position, now_ms: int) -> None:
        """Everything up to here is done."""
        if self.done_to is not None and to <= self.done_to:
            return
        self.done_to = to
        while self.pages_in_flight and (
            self.pages_in_flight[0].last is None or _is_done(self.pages_in_flight[0].last, to)
        ):
            self.pages_in_flight.popleft()
        self.move(now_ms)

    def failed(self, trouble: str) -> None:
        """A handler or a read failed."""
        self.failures += 1
        self.trouble = trouble


class LagTracker:
    """The shards that this member serves now, and no others; each by the key of its lease."""

    def __init__(self) -> None:
        self._shards: dict[LeaseKey, ShardProgress] = {}

    def __iter__(self) -> Iterator[tuple[LeaseKey, ShardProgress]]:
        return iter(self._shards.items())

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, shard: LeaseKey) -> bool:
        return shard in self._shards

    def observe(self, event: Event, now_ms: int) -> None:
        """Take one event into account."""
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
                | ReadThrottled()
                | Checkpointed()
            ):
                # A handler may return after its lease is gone; that must not bring the shard back.
                if (progress := self._shards.get(event.shard_key)) is not None:
                    _note(progress, event, now_ms)
            case (
                MemberStarted()
                | FleetRefreshed()
                | ShardsSynced()
                | RowRejected()
                | HandoffRequested()
                | LeasesRenewed()
                | ShardStalled()
                | IteratorExpired()
                | GapFound()
                | DeaggregationFailed()
                | ProcessorCalled()
                | LeaseDeleted()
                | LeaseAssigned()
                | LeadershipTaken()
                | LeadershipEnded()
                | FleetUpgraded()
                | OperationFailed()
                | WorkerFailed()
            ):
                pass  # says nothing about how far a shard got
            case _:
                assert_never(event)


def _note(progress: ShardProgress, event: Event, now_ms: int) -> None:
    match event:
        case ShardBlockedOnParents(parents=parents):
            progress.parents = parents
            progress.move(now_ms)
        case ReadingStarted():
            progress.parents = ()
            progress.move(now_ms)
        case PageRead():
            progress.read(event, now_ms)
        case BatchHandled(end=position):
            progress.done(position, now_ms)
        case (
            RecordDeadLettered(position=position)
            | RecordSkipped(position=position)
            | Checkpointed(position=position)
        ):
            progress.done(position, now_ms)
        case HandlerFailed(error=error):
            progress.failed(f"the handler raises {error}")
        case ReadFailed(error=error):
            progress.failed(f"reading fails: {error}")
        case ReadThrottled():
            progress.failed("reading is throttled")
        case _:
            pass


def _is_done(last: Position | None, done_to: Position | None) -> bool:
    return last is not None and done_to is not None and last <= done_to


def _grown(behind_ms: int | None, waited_ms: int) -> int | None:
    if waited_ms > WAITING_COUNTS_AFTER_MS:
        return (behind_ms or 0) + waited_ms
    return behind_ms


def _is_nearer(behind_ms: int | None, before_ms: int | None) -> bool:
    """At the tip, or on the way to it. Where Kinesis does not say, a page is taken as a sign of life."""
    return behind_ms in {None, 0} or before_ms is None or behind_ms < before_ms
