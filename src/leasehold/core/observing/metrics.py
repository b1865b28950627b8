"""The metrics of each event, under the names that operators of other KCLs know. Publishes nothing.

There are two families:

* the Java KCL's (`RecordsProcessed`, `MillisBehindLatest`, `CurrentLeases`, ...), with its dimensions `Operation`,
  `ShardId`, `WorkerIdentifier` and, in a member of several streams, `StreamId`;

* kcl-rust's (`total_leases`, `millis_behind_latest`, `bytes`, ...), without dimensions: one sample per window, of
  each shard or of the member. The maximum against the average shows a hot shard at the price of a single metric.

Points with the same name and dimensions are merged into a statistic set: minimum, maximum, sum, count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from leasehold.config.settings import MetricsLevel
from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    ConsumerFound,
    DeaggregationFailed,
    Event,
    FanOutRefused,
    FanOutResumed,
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
from leasehold.core.model import LeaseKey, StreamIdentifier, WorkerId, parse_lease_key
from leasehold.core.observing.lag import LagTracker

# The KCL's queue has the same limit. A window of ten seconds needs about ten sets per shard.
SETS_MAX: Final = 10_000


class Unit(Enum):
    """The units of CloudWatch."""

    COUNT = "Count"
    BYTES = "Bytes"
    MILLISECONDS = "Milliseconds"


Dimensions = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value."""

    name: str
    unit: Unit
    value: int
    dimensions: Dimensions = ()
    level: MetricsLevel = MetricsLevel.SUMMARY


@dataclass(slots=True)
class StatisticSet:
    """All points with the same name and dimensions in one window."""

    name: str
    unit: Unit
    dimensions: Dimensions
    minimum: int
    maximum: int
    total: int = 0
    count: int = 0

    def add(self, value: int) -> None:
        """Merge one more point."""
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)
        self.total += value
        self.count += 1


@dataclass(slots=True)
class _Traffic:
    """The records read from one shard in one window."""

    records: int = 0
    size_bytes: int = 0


_LEVELS: Final[Mapping[MetricsLevel, frozenset[MetricsLevel]]] = {
    MetricsLevel.NONE: frozenset(),
    MetricsLevel.SUMMARY: frozenset({MetricsLevel.SUMMARY}),
    MetricsLevel.DETAILED: frozenset({MetricsLevel.SUMMARY, MetricsLevel.DETAILED}),
}


class MetricWindow:
    """Collects points until it is closed, which empties it. Memory is bounded; `dropped` counts the excess points."""

    def __init__(self, level: MetricsLevel, worker: WorkerId, sets_max: int = SETS_MAX) -> None:
        self._levels = _LEVELS[level]
        self._worker = worker
        self._sets_max = sets_max
        self._sets: dict[tuple[str, Dimensions], StatisticSet] = {}
        self._lag_tracker = LagTracker()
        self._traffic: dict[LeaseKey, _Traffic] = {}
        self._fleet: FleetRefreshed | None = None
        self._shards: dict[StreamIdentifier | None, int] = {}
        self.dropped = 0

    def observe(self, event: Event, now_ms: int) -> None:
        """Process one event."""
        self._lag_tracker.observe(event, now_ms)
        match event:
            case PageRead():
                traffic = self._traffic.setdefault(event.shard_key, _Traffic())
                traffic.records += event.records
                traffic.size_bytes += event.size_bytes
            case FleetRefreshed():
                self._fleet = event
            case ShardsSynced():
                self._shards[event.stream] = event.shards
            case _:
                pass  # the lag tracker and `metric_points` process all events
        for point in metric_points(event, self._worker):
            self._add(point)

    def close(self, now_ms: int) -> tuple[StatisticSet, ...]:
        """All points since the last call, with one sample of each state (lag, traffic, fleet)."""
        for point in self._state_points(now_ms):
            self._add(point)
        closed = tuple(self._sets.values())
        self._sets.clear()
        self._traffic.clear()
        self._fleet = None
        return closed

    def _add(self, point: Point) -> None:
        if point.level not in self._levels:
            return
        key = (point.name, point.dimensions)
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= self._sets_max:
                self.dropped += 1
                return
            found = StatisticSet(point.name, point.unit, point.dimensions, point.value, point.value)
            self._sets[key] = found
        found.add(point.value)

    def _state_points(self, now_ms: int) -> Iterator[Point]:
        for shard, progress in self._lag_tracker:
            traffic = self._traffic.get(shard, _Traffic())
            yield Point("records", Unit.COUNT, traffic.records)
            yield Point("bytes", Unit.BYTES, traffic.size_bytes)
            if (lag_ms := progress.lag_ms(now_ms)) is not None:
                yield Point("millis_behind_latest", Unit.MILLISECONDS, lag_ms)
                for dimensions in (_shard_dimensions(shard), _operation_dimensions("ApplicationTracker")):
                    yield Point("MillisBehindLatest", Unit.MILLISECONDS, lag_ms, dimensions)
        if self._fleet:
            yield Point("total_leases", Unit.COUNT, self._fleet.leases)
            yield Point("unclaimed_leases", Unit.COUNT, self._fleet.unclaimed)
            yield Point("worker_leases", Unit.COUNT, self._fleet.mine)
        if self._shards:
            yield Point("total_shards", Unit.COUNT, sum(self._shards.values()))


def _operation_dimensions(operation: str) -> Dimensions:
    return (("Operation", operation),)


def _shard_dimensions(key: LeaseKey) -> Dimensions:
    """As in the KCL, which adds the stream only if there are several."""
    stream, shard = parse_lease_key(key)
    of_stream = () if stream is None else (("StreamId", stream),)
    return (("Operation", "ProcessTask"), *of_stream, ("ShardId", shard))


def _worker_dimensions(operation: str, worker: WorkerId) -> Dimensions:
    return (("Operation", operation), ("WorkerIdentifier", worker))


# The operations of a member that have a counterpart in the KCL.
_KCL_OPERATIONS: Final[Mapping[str, str]] = {"start": "ShardSyncTask", "audit": "ShardSyncTask"}


def metric_points(event: Event, worker: WorkerId) -> Iterator[Point]:
    """The points of one event. The window samples states such as the lag."""
    match event:
        case BatchHandled() | HandlerFailed() | PageRead() | ReadFailed() | ReadThrottled() | Checkpointed():
            yield from _shard_points(event)
        case IteratorExpired():
            yield Point("ExpiredIterator", Unit.COUNT, 1, _operation_dimensions("ProcessTask"))
        case FleetRefreshed() | LeaseTaken():
            yield from _take_points(event, _worker_dimensions("TakeLeases", worker))
        case LeasesRenewed() | LeaseLost():
            yield from _renew_points(event, _worker_dimensions("RenewAllLeases", worker))
        case ShardsSynced():
            yield from _sync_points(event)
        case ProcessorCalled():
            yield _processor_point(event)
        case OperationFailed():
            yield from _failure_points(event, worker)
        case GapFound() | DeaggregationFailed() | RecordDeadLettered() | RecordSkipped() | ShardStalled():
            yield _problem_point(event)
        case (
            MemberStarted()
            | MemberStopped()
            | RowRejected()
            | RowRecovered()
            | RowIgnored()
            | StreamRecreated()
            | StreamsChanged()
            | LeaseRestarted()
            | HandoffRequested()
            | LeaseReleased()
            | ShardBlockedOnParents()
            | ReadingStarted()
            | ConsumerFound()
            | FanOutRefused()
            | FanOutResumed()
            | Subscribed()
            | SubscriptionEnded()
            | SubscriptionLost()
            | ShardEnded()
            | LeaseDeleted()
            | LeaseAssigned()
            | LeadershipTaken()
            | LeadershipEnded()
            | FleetUpgraded()
            | WorkerFailed()
        ):
            pass  # no metrics
        case _:
            assert_never(event)


def _failure_points(event: OperationFailed, worker: WorkerId) -> Iterator[Point]:
    if event.operation in _KCL_OPERATIONS:
        yield Point("Success", Unit.COUNT, 0, _operation_dimensions(_KCL_OPERATIONS[event.operation]))
    elif event.operation == "refresh":
        yield Point("Success", Unit.COUNT, 0, _worker_dimensions("TakeLeases", worker))


def _processor_point(event: ProcessorCalled) -> Point:
    """The KCL has metrics for `initialize`, and for all calls at the end of a lease together."""
    call, task = (
        ("initialize", "InitializeTask") if event.method == "initialize" else ("shutdown", "ShutdownTask")
    )
    name = f"RecordProcessor.{call}.Time"
    return Point(name, Unit.MILLISECONDS, event.time_ms, _operation_dimensions(task))


def _problem_point(
    event: GapFound | DeaggregationFailed | RecordDeadLettered | RecordSkipped | ShardStalled,
) -> Point:
    match event:
        case GapFound():
            return Point("gaps", Unit.COUNT, 1)
        case DeaggregationFailed(dropped=dropped):
            return Point("dropped_records", Unit.COUNT, dropped)
        case RecordDeadLettered():
            return Point("dead_letters", Unit.COUNT, 1)
        case RecordSkipped():
            return Point("skipped_records", Unit.COUNT, 1)
        case ShardStalled():
            return Point("stalled_shards", Unit.COUNT, 1)


def _shard_points(
    event: BatchHandled | HandlerFailed | PageRead | ReadFailed | ReadThrottled | Checkpointed,
) -> Iterator[Point]:
    of_shard = _shard_dimensions(event.shard_key)
    detailed = MetricsLevel.DETAILED
    match event:
        case BatchHandled():
            yield Point("RecordsProcessed", Unit.COUNT, event.records, of_shard)
            yield Point("DataBytesProcessed", Unit.BYTES, event.size_bytes, of_shard)
            # A batch is a task here, so both metrics have the same value.
            for name in ("RecordProcessor.processRecords.Time", "Time"):
                yield Point(name, Unit.MILLISECONDS, event.time_ms, of_shard)
            yield Point("Success", Unit.COUNT, 1, of_shard)
        case HandlerFailed():
            yield Point("Success", Unit.COUNT, 0, of_shard)
        case PageRead(time_ms=None):
            pass  # an event of a subscription
        case PageRead(time_ms=int(time_ms)):
            yield Point("KinesisDataFetcher.getRecords.Success", Unit.COUNT, 1, of_shard, detailed)
            yield Point("KinesisDataFetcher.getRecords.Time", Unit.MILLISECONDS, time_ms, of_shard, detailed)
        case ReadFailed() | ReadThrottled():
            yield Point("KinesisDataFetcher.getRecords.Success", Unit.COUNT, 0, of_shard, detailed)
        case Checkpointed():
            yield Point("UpdateLease.Success", Unit.COUNT, 1, of_shard, detailed)
            yield Point("UpdateLease.Time", Unit.MILLISECONDS, event.time_ms, of_shard, detailed)


def _sync_points(event: ShardsSynced) -> Iterator[Point]:
    of_sync, detailed = _operation_dimensions("ShardSyncTask"), MetricsLevel.DETAILED
    yield Point("Success", Unit.COUNT, 1, of_sync)
    yield Point("Time", Unit.MILLISECONDS, event.time_ms, of_sync)
    yield Point("SyncShards.Success", Unit.COUNT, 1, of_sync, detailed)
    for _ in range(event.created):
        yield Point("CreateLease.Success", Unit.COUNT, 1, of_sync, detailed)


def _take_points(event: FleetRefreshed | LeaseTaken, of_worker: Dimensions) -> Iterator[Point]:
    match event:
        case FleetRefreshed():
            yield Point("Success", Unit.COUNT, 1, of_worker)
            yield Point("Time", Unit.MILLISECONDS, event.time_ms, of_worker)
            yield Point("NumWorkers", Unit.COUNT, event.workers, of_worker)
            yield Point("ExpiredLeases", Unit.COUNT, event.unclaimed, of_worker)
            yield Point("TakenLeases", Unit.COUNT, 0, of_worker)  # a sample of zero even if none was taken
            yield Point("TotalLeases", Unit.COUNT, event.leases, of_worker, MetricsLevel.DETAILED)
        case LeaseTaken():
            yield Point("TakenLeases", Unit.COUNT, 1, of_worker)


def _renew_points(event: LeasesRenewed | LeaseLost, of_worker: Dimensions) -> Iterator[Point]:
    match event:
        case LeasesRenewed():
            yield Point("Success", Unit.COUNT, int(event.failed == 0), of_worker)
            yield Point("Time", Unit.MILLISECONDS, event.time_ms, of_worker)
            yield Point("CurrentLeases", Unit.COUNT, event.renewed, of_worker)
            yield Point("LostLeases", Unit.COUNT, 0, of_worker)  # a sample of zero even if none was lost
            for success in (1,) * event.renewed + (0,) * event.failed:
                yield Point("RenewLease.Success", Unit.COUNT, success, of_worker, MetricsLevel.DETAILED)
        case LeaseLost():
            yield Point("LostLeases", Unit.COUNT, 1, of_worker)
