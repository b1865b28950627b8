"""The metrics of each event, under the names that operators of other KCLs know. Publishes nothing.

There are two families:

* the Java KCL's (`RecordsProcessed`, `MillisBehindLatest`, `CurrentLeases`, ...), with its dimensions `Operation`,
  `ShardId`, `WorkerIdentifier` and, in a member of several streams, `StreamId`;

* kcl-rust's (`total_leases`, `millis_behind_latest`, `bytes`, ...), without dimensions: one sample per window, of
  each shard or of the member. The maximum against the average shows a hot shard at the price of a single metric.

Points with the same name and dimensions are merged into a statistic set: minimum, maximum, sum, count.

`METRIC_TEXTS` has a sentence for each, for docs/reference/metrics.md (`make reference`).
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
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import LeaseKey, StreamIdentifier, WorkerId, parse_lease_key
from leasehold.core.observing.lag import LagTracker
from leasehold.errors import ConfigError

# The KCL's queue has the same limit. A window of ten seconds needs about ten sets per shard.
SETS_MAX: Final = 10_000
# The dimensions of the KCL, which the settings can leave out.
DIMENSION_NAMES: Final = ("Operation", "StreamId", "ShardId", "WorkerIdentifier")


# By the dimension Operation, empty for kcl-rust's family, and the name.
METRIC_TEXTS: Final[Mapping[tuple[str, str], str]] = {
    (
        "ProcessTask",
        "RecordsProcessed",
    ): "User records that handlers have completed. The KCL counts records that it delivered.",
    ("ProcessTask", "DataBytesProcessed"): "Their bytes.",
    ("ProcessTask", "MillisBehindLatest"): "The [lag](docs/observing.md#lag) of the shard.",
    ("ProcessTask", "RecordProcessor.processRecords.Time"): "The time of a handler that returned.",
    ("ProcessTask", "Time"): "The time of a batch; one batch is one task here.",
    ("ProcessTask", "Success"): "1 for a batch, 0 for a failed attempt.",
    ("ProcessTask", "KinesisDataFetcher.getRecords.Success"): "1 for a response, 0 for a failure.",
    ("ProcessTask", "KinesisDataFetcher.getRecords.Time"): "The time of a GetRecords call.",
    ("ProcessTask", "UpdateLease.Success"): "1 for a checkpoint.",
    ("ProcessTask", "UpdateLease.Time"): "The time of its write.",
    ("ProcessTask", "ExpiredIterator"): "Iterators that expired.",
    ("ApplicationTracker", "MillisBehindLatest"): "The lag of all shards.",
    ("InitializeTask", "RecordProcessor.initialize.Time"): "The time of `initialize` of a life-cycle class.",
    (
        "ShutdownTask",
        "RecordProcessor.shutdown.Time",
    ): "The time of its `shard_ended`, `shutdown_requested` or `lease_lost`.",
    ("RenewAllLeases", "CurrentLeases"): "Leases that were renewed in a round of heartbeats.",
    ("RenewAllLeases", "LostLeases"): "Leases that this member lost although it wanted to keep them.",
    ("RenewAllLeases", "Success"): "1 for a round without a failed heartbeat, else 0.",
    ("RenewAllLeases", "Time"): "The time of the slowest heartbeat of a round.",
    ("RenewAllLeases", "RenewLease.Success"): "1 for a heartbeat, 0 for a failed one.",
    ("TakeLeases", "NumWorkers"): "Workers that own leases.",
    ("TakeLeases", "ExpiredLeases"): "Leases without a live owner.",
    ("TakeLeases", "TakenLeases"): "Leases that this member started to serve.",
    ("TakeLeases", "Success"): "1 for a refresh, 0 for a failed one.",
    ("TakeLeases", "Time"): "The time of a refresh.",
    ("TakeLeases", "TotalLeases"): "Leases in the table.",
    ("LeaseAssignmentManager", "TotalLeases"): "Leases in the table.",
    ("LeaseAssignmentManager", "NumWorkers"): "Workers that are active.",
    ("LeaseAssignmentManager", "ExpiredLeases"): "Leases without a reader.",
    ("LeaseAssignmentManager", "LeaseSpillover"): "Leases that no worker has room for.",
    (
        "LeaseAssignmentManager",
        "NumOfLeasesReassignment",
    ): "Leases that were assigned, or requested from their owner.",
    ("LeaseAssignmentManager", "NumWorkersWithInvalidEntry"): "Worker reports that cannot be read.",
    (
        "LeaseAssignmentManager",
        "NumWorkersWithFailingWorkerMetric",
    ): "Workers whose report says that they fail.",
    ("LeaseAssignmentManager", "LeaseDeserializationFailureCount"): "Rows that cannot be read.",
    ("LeaseAssignmentManager", "Success"): "1 for a decision.",
    ("LeaseAssignmentManager", "Time"): "The time of a decision with its writes.",
    (
        "LeaseAssignmentManager",
        "FailedAssignmentCount",
    ): "Writes that failed, or that another member forestalled.",
    ("LeaderDecider", "LeaderDecider:IsLeader"): "1, from the leader.",
    ("ShardSyncTask", "Success"): "1 for a shard sync, 0 for a failed one or a failed start.",
    ("ShardSyncTask", "Time"): "The time of a shard sync.",
    ("ShardSyncTask", "SyncShards.Success"): "1 for a shard sync.",
    ("ShardSyncTask", "CreateLease.Success"): "1 for a lease that was created.",
    ("", "records"): "User records read from a shard.",
    ("", "bytes"): "Bytes of user records read from a shard.",
    ("", "millis_behind_latest"): "The [lag](docs/observing.md#lag) of a shard.",
    ("", "worker_leases"): "Leases that this member serves.",
    ("", "kinesis_calls"): "Calls of this member to Kinesis, in ten seconds or so.",
    ("", "kinesis_throttled_calls"): "Those of them that were throttled.",
    ("", "kinesis_calls.GetRecords"): "Calls of one operation; each operation has such a metric.",
    ("", "kinesis_throttled_calls.GetRecords"): "Those of them that were throttled, if there were some.",
    ("", "total_leases"): "Leases in the table, of [one member](docs/observing.md#the-totals-of-a-fleet).",
    ("", "unclaimed_leases"): "Leases without a live owner, of one member.",
    ("", "total_shards"): "Shards that Kinesis lists, of one member.",
    ("", "gaps"): "Gaps, where records may have been trimmed before they were read. Ours.",
    ("", "dropped_records"): "User records of aggregates that were not delivered. Ours.",
    ("", "dead_letters"): "Records that were sent to the dead letters. Ours.",
    ("", "skipped_records"): "Records that were skipped, as configured. Ours.",
    ("", "stalled_shards"): "Shards whose lease was released because they made no progress. Ours.",
    ("", "problems"): "[Findings](docs/reference/findings.md) of this member with severity `problem`. Ours.",
    ("", "stuck_shards"): "Of them, those with the code `no_progress`. Ours.",
    ("", "shards_near_retention"): "Of them, those with the code `retention_nearly_reached`. Ours.",
}


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


@dataclass(frozen=True, slots=True)
class DimensionRule:
    """Which dimensions of the KCL are published, and which constant ones are added to every metric."""

    kept: frozenset[str] = frozenset(DIMENSION_NAMES)
    constant: Dimensions = ()

    def apply(self, dimensions: Dimensions) -> Dimensions:
        """The dimensions to publish. Points that differ only in one that is left out are merged."""
        return (*self.constant, *(each for each in dimensions if each[0] in self.kept))


ALL_DIMENSIONS: Final = DimensionRule()


def parse_dimensions(text: str) -> DimensionRule:
    """Parse the setting: names of dimensions to keep, and constant ones as NAME=VALUE. No name means: keep all.

    >>> rule = parse_dimensions("Operation, Service=orders")
    >>> rule.apply((("Operation", "ProcessTask"), ("ShardId", "shard-0")))
    (('Service', 'orders'), ('Operation', 'ProcessTask'))
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    constant = tuple(
        (name.strip(), value.strip()) for name, sign, value in (part.partition("=") for part in parts) if sign
    )
    named = {part for part in parts if "=" not in part}
    known = ", ".join(DIMENSION_NAMES)
    if unknown := sorted(named - set(DIMENSION_NAMES)):
        raise ConfigError(
            f"metrics_dimensions: no dimension {unknown[0]}: expected {known}, or NAME=VALUE for a constant one"
        )
    if bad := [name for name, value in constant if not name or not value or name in DIMENSION_NAMES]:
        raise ConfigError(
            f"metrics_dimensions: {bad[0]}=...: expected NAME=VALUE with a name other than {known}"
        )
    return DimensionRule(frozenset(named or DIMENSION_NAMES), constant)


_LEVELS: Final[Mapping[MetricsLevel, frozenset[MetricsLevel]]] = {
    MetricsLevel.NONE: frozenset(),
    MetricsLevel.SUMMARY: frozenset({MetricsLevel.SUMMARY}),
    MetricsLevel.DETAILED: frozenset({MetricsLevel.SUMMARY, MetricsLevel.DETAILED}),
}


class MetricWindow:
    """Collects points until it is closed, which empties it. Memory is bounded; `dropped` counts the excess points."""

    def __init__(
        self,
        level: MetricsLevel,
        worker: WorkerId,
        dimensions: DimensionRule = ALL_DIMENSIONS,
        sets_max: int = SETS_MAX,
    ) -> None:
        self._levels = _LEVELS[level]
        self._worker = worker
        self._dimensions = dimensions
        self._sets_max = sets_max
        self._sets: dict[tuple[str, Dimensions], StatisticSet] = {}
        self._lag_tracker = LagTracker()
        self._traffic: dict[LeaseKey, _Traffic] = {}
        self._is_member = False
        self._fleet: FleetRefreshed | None = None
        self._findings: tuple[Finding, ...] = ()
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
                self._fleet = event if event.speaks_for_fleet else None
            case LeadershipEnded():
                self._fleet = None
                self._shards.clear()
            case MemberStarted() | MemberStopped():
                self._is_member, self._fleet = isinstance(event, MemberStarted), None
            case FindingsReviewed(findings=findings):
                self._findings = findings
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
        return closed

    def _add(self, point: Point) -> None:
        if point.level not in self._levels:
            return
        dimensions = self._dimensions.apply(point.dimensions)
        key = (point.name, dimensions)
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= self._sets_max:
                self.dropped += 1
                return
            found = StatisticSet(point.name, point.unit, dimensions, point.value, point.value)
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
        if self._is_member:
            # Each member publishes its own leases, so the sum of one window is the number of leases that are served.
            yield Point("worker_leases", Unit.COUNT, len(self._lag_tracker))
            problems = [each.code for each in self._findings if each.severity is Severity.PROBLEM]
            yield Point("problems", Unit.COUNT, len(problems))
            yield Point("stuck_shards", Unit.COUNT, problems.count("no_progress"))
            yield Point("shards_near_retention", Unit.COUNT, problems.count("retention_nearly_reached"))
        if self._fleet:
            yield Point("total_leases", Unit.COUNT, self._fleet.leases)
            yield Point("unclaimed_leases", Unit.COUNT, self._fleet.unclaimed)
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
        case FleetDecided():
            yield from _leader_points(event)
        case ShardsSynced():
            yield from _sync_points(event)
        case ProcessorCalled():
            yield _processor_point(event)
        case OperationFailed():
            yield from _failure_points(event, worker)
        case GapFound() | DeaggregationFailed() | RecordDeadLettered() | RecordSkipped() | ShardStalled():
            yield _problem_point(event)
        case MemberStarted() | MemberStopped() | RowRejected() | RowRecovered() | RowIgnored():
            pass  # no metrics
        case (
            StreamRecreated()
            | StreamsChanged()
            | LeaseRestarted()
            | HandoffRequested()
            | HandoffWithdrawn()
            | LeaseReleased()
        ):
            pass
        case ShardBlockedOnParents() | ReadingStarted() | ConsumerFound() | FanOutRefused() | FanOutResumed():
            pass
        case Subscribed() | SubscriptionEnded() | SubscriptionLost() | ShardEnded() | LeaseDeleted():
            pass
        case LeaseAssigned() | LeadershipTaken() | LeadershipEnded() | FleetUpgraded() | WorkerFailed():
            pass
        case KinesisCallsCounted():
            yield from _call_points(event)
        case FindingBegan() | FindingEnded() | FindingsReviewed():
            pass
        case _:
            assert_never(event)


def _call_points(event: KinesisCallsCounted) -> Iterator[Point]:
    """All calls together, and each operation by itself. Its name is part of the metric's, so no dimension is needed."""
    yield Point("kinesis_calls", Unit.COUNT, sum(each.calls for each in event.counts))
    yield Point("kinesis_throttled_calls", Unit.COUNT, sum(each.throttled for each in event.counts))
    for each in event.counts:
        yield Point(f"kinesis_calls.{each.operation}", Unit.COUNT, each.calls, level=MetricsLevel.DETAILED)
        if each.throttled:
            name = f"kinesis_throttled_calls.{each.operation}"
            yield Point(name, Unit.COUNT, each.throttled, level=MetricsLevel.DETAILED)


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


def _leader_points(event: FleetDecided) -> Iterator[Point]:
    """The metrics of a Java leader. Only the leader decides, so their sums are those of the fleet."""
    of_leader, detailed = _operation_dimensions("LeaseAssignmentManager"), MetricsLevel.DETAILED
    yield Point("Success", Unit.COUNT, 1, of_leader)
    yield Point("Time", Unit.MILLISECONDS, event.time_ms, of_leader)
    yield Point("TotalLeases", Unit.COUNT, event.leases, of_leader)
    yield Point("NumWorkers", Unit.COUNT, event.workers, of_leader)
    yield Point("NumWorkersWithInvalidEntry", Unit.COUNT, event.unreadable_reports, of_leader)
    yield Point("NumWorkersWithFailingWorkerMetric", Unit.COUNT, event.failing_workers, of_leader)
    yield Point("LeaseDeserializationFailureCount", Unit.COUNT, event.unreadable_rows, of_leader)
    yield Point("ExpiredLeases", Unit.COUNT, event.expired, of_leader)
    yield Point("LeaseSpillover", Unit.COUNT, event.left_free, of_leader)
    yield Point("NumOfLeasesReassignment", Unit.COUNT, event.assigned + event.handed_off, of_leader)
    yield Point("FailedAssignmentCount", Unit.COUNT, event.failed, of_leader, detailed)
    is_leader = _operation_dimensions("LeaderDecider")
    yield Point("LeaderDecider:IsLeader", Unit.COUNT, 1, is_leader, detailed)


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
