"""The metrics of each event, and how points are merged."""

from collections.abc import Iterable

import pytest

from leasehold.config.settings import MetricsLevel
from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    DeaggregationFailed,
    Event,
    FleetRefreshed,
    GapFound,
    HandlerFailed,
    IteratorExpired,
    LeadershipEnded,
    LeaseLost,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    OperationFailed,
    PageRead,
    ProcessorCalled,
    RecordDeadLettered,
    RecordSkipped,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
)
from leasehold.core.model import LeaseKey, ShardId, StreamIdentifier, WorkerId
from leasehold.core.observing.metrics import MetricWindow, StatisticSet, Unit, metric_points, parse_dimensions
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import Gap
from leasehold.errors import ConfigError
from tests.sample_events import EVENT_TYPES, sample

ME = WorkerId("w-1")
A, B = ShardId("shard-a"), ShardId("shard-b")
OF_A = (("Operation", "ProcessTask"), ("ShardId", "shard-a"))
TAKING = (("Operation", "TakeLeases"), ("WorkerIdentifier", "w-1"))
RENEWING = (("Operation", "RenewAllLeases"), ("WorkerIdentifier", "w-1"))
SYNCING = (("Operation", "ShardSyncTask"),)


def taken(shard: ShardId) -> LeaseTaken:
    return LeaseTaken(LeaseKey(shard), shard, None, None, 1, TRIM_HORIZON)


def page(shard: ShardId, records: int, behind_ms: int | None = 0) -> PageRead:
    return PageRead(shard, records, 100 * records, behind_ms, 5)


def publish(
    events: Iterable[Event], level: MetricsLevel = MetricsLevel.SUMMARY, now_ms: int = 0
) -> dict[tuple[str, object], StatisticSet]:
    """The published sets after these events, by name and dimensions."""
    window = MetricWindow(level, ME)
    for event in events:
        window.observe(event, 0)
    return {(each.name, each.dimensions): each for each in window.close(now_ms)}


def test_two_streams_differ_by_the_kcls_dimension() -> None:
    """StreamId comes before the dimension of the shard; the shards of both streams are counted."""
    stream = StreamIdentifier("1:orders:2")
    sets = publish(
        [
            ShardsSynced(3, 0, stream=stream),
            ShardsSynced(4, 0, stream=StreamIdentifier("1:returns:2")),
            BatchHandled(A, 7, 700, Position("9"), 31, 0, stream=stream),
        ]
    )
    assert ("RecordsProcessed", (OF_A[0], ("StreamId", stream), OF_A[1])) in sets
    assert sets["total_shards", ()].total == 7


def statistics(each: StatisticSet) -> tuple[int, int, int, int]:
    return each.minimum, each.maximum, each.total, each.count


@pytest.mark.parametrize(
    ("event", "dimensions", "points"),
    [
        (
            BatchHandled(A, 7, 700, Position("9"), 31, 0),
            OF_A,
            {
                "RecordsProcessed": 7,
                "DataBytesProcessed": 700,
                "RecordProcessor.processRecords.Time": 31,
                "Time": 31,
                "Success": 1,
            },
        ),
        (HandlerFailed(A, Position("1"), Position("9"), 7, 1, "ValueError"), OF_A, {"Success": 0}),
        (IteratorExpired(A), (("Operation", "ProcessTask"),), {"ExpiredIterator": 1}),
        (
            LeasesRenewed(4, 1, 12),
            RENEWING,
            {"Success": 0, "Time": 12, "CurrentLeases": 4, "LostLeases": 0},
        ),
        (LeaseLost(LeaseKey(A), A, None, "taken"), RENEWING, {"LostLeases": 1}),
        (taken(A), TAKING, {"TakenLeases": 1}),
        (ShardsSynced(8, 2, 90), SYNCING, {"Success": 1, "Time": 90}),
        (
            ProcessorCalled(A, "initialize", 5),
            (("Operation", "InitializeTask"),),
            {"RecordProcessor.initialize.Time": 5},
        ),
        (
            ProcessorCalled(A, "shard_ended", 6),
            (("Operation", "ShutdownTask"),),
            {"RecordProcessor.shutdown.Time": 6},
        ),
        (OperationFailed("audit", "no response"), SYNCING, {"Success": 0}),
        (OperationFailed("refresh", "no response"), TAKING, {"Success": 0}),
        (GapFound(A, Gap(Position("1"), "5", None)), (), {"gaps": 1}),
        (DeaggregationFailed(A, Position("1"), "outside", 3), (), {"dropped_records": 3}),
        (RecordDeadLettered(A, Position("1"), "ValueError"), (), {"dead_letters": 1}),
        (RecordSkipped(A, Position("1"), "ValueError"), (), {"skipped_records": 1}),
        (ShardStalled(LeaseKey(A), A, 900_000), (), {"stalled_shards": 1}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_points_of_an_event(event: Event, dimensions: object, points: dict[str, int]) -> None:
    """Alarms that were made for the KCL find its names, dimensions and meanings."""
    found = [point for point in metric_points(event, ME) if point.level is MetricsLevel.SUMMARY]
    assert {point.name: point.value for point in found} == points
    assert {point.dimensions for point in found} == {dimensions}


@pytest.mark.parametrize(
    ("event", "name", "values"),
    [
        (LeasesRenewed(2, 1, 12), "RenewLease.Success", [1, 1, 0]),
        (ShardsSynced(8, 2, 90), "CreateLease.Success", [1, 1]),
        (ShardsSynced(8, 0, 90), "SyncShards.Success", [1]),
        (Checkpointed(A, Position("1"), 4), "UpdateLease.Time", [4]),
    ],
)
def test_details_have_one_point_each(event: Event, name: str, values: list[int]) -> None:
    """So the number and the success rate are visible."""
    found = [point for point in metric_points(event, ME) if point.name == name]
    assert [point.value for point in found] == values
    assert {point.level for point in found} == {MetricsLevel.DETAILED}


def test_a_refresh_has_the_metrics_of_take_leases() -> None:
    """NumWorkers, ExpiredLeases and a zero for TakenLeases with every refresh; TotalLeases is a detail."""
    points = {
        point.name: (point.value, point.level.value)
        for point in metric_points(FleetRefreshed(9, 2, 4, 3, 7), ME)
    }
    assert points == {
        "Success": (1, "summary"),
        "Time": (7, "summary"),
        "NumWorkers": (3, "summary"),
        "ExpiredLeases": (2, "summary"),
        "TakenLeases": (0, "summary"),
        "TotalLeases": (9, "detailed"),
    }


def test_points_with_the_same_name_and_dimensions_are_merged() -> None:
    """Minimum, maximum, sum and count of a window are sent, not every point."""
    found = publish(BatchHandled(A, records, 10, Position("9"), 3, 0) for records in (5, 1, 3))
    each = found["RecordsProcessed", OF_A]
    assert (statistics(each), each.unit) == ((1, 5, 9, 3), Unit.COUNT)


def test_traffic_has_one_sample_per_shard_and_window() -> None:
    """The maximum against the average shows a hot shard; an idle one counts as zero."""
    found = publish([taken(A), taken(B), page(A, 6), page(A, 4)])
    assert statistics(found["records", ()]) == (0, 10, 10, 2)
    assert statistics(found["bytes", ()]) == (0, 1_000, 1_000, 2)


def test_the_lag_is_sampled_once_per_shard_and_window() -> None:
    """It has three names: for the shard, for the application, and kcl-rust's."""
    found = publish([taken(A), taken(B), page(A, 0, 500), page(B, 0, 0)])
    assert statistics(found["MillisBehindLatest", OF_A]) == (500, 500, 500, 1)
    assert statistics(found["MillisBehindLatest", (("Operation", "ApplicationTracker"),)]) == (0, 500, 500, 2)
    assert statistics(found["millis_behind_latest", ()]) == (0, 500, 500, 2)


def test_the_lag_of_a_hanging_handler_grows() -> None:
    """An alarm on the lag fires although no page and no batch comes any more."""
    found = publish([taken(A), page(A, 3, 0)], now_ms=300_000)
    assert found["millis_behind_latest", ()].maximum == 300_000


def test_the_fleet_is_sampled_once_in_each_window() -> None:
    """The last refresh counts, until another member speaks for the fleet."""
    window = MetricWindow(MetricsLevel.SUMMARY, ME)
    started = MemberStarted(ME, "billing", "orders")
    for event in (started, ShardsSynced(9, 0), FleetRefreshed(9, 1, 4, 2, speaks_for_fleet=True)):
        window.observe(event, 0)

    def totals() -> dict[str, tuple[int, int]]:
        names = {"total_leases", "unclaimed_leases", "worker_leases", "total_shards"}
        return {each.name: (each.total, each.count) for each in window.close(0) if each.name in names}

    leading = {
        "total_leases": (9, 1),
        "unclaimed_leases": (1, 1),
        "worker_leases": (0, 1),
        "total_shards": (9, 1),
    }
    assert [totals(), totals()] == [leading, leading]
    window.observe(LeadershipEnded(ME, "another member leads"), 0)
    assert totals() == {"worker_leases": (0, 1)}
    window.observe(FleetRefreshed(9, 1, 4, 2), 0)
    assert totals() == {"worker_leases": (0, 1)}


def test_dimensions_can_be_left_out_and_added() -> None:
    """Points that differ only in one that is left out are merged."""
    window = MetricWindow(MetricsLevel.SUMMARY, ME, parse_dimensions("Operation,Service=orders"))
    for shard in ("shard-0", "shard-1"):
        window.observe(BatchHandled(ShardId(shard), 5, 500, Position("9"), 3, 0), 0)
    (found,) = [each for each in window.close(0) if each.name == "RecordsProcessed"]
    assert found.dimensions == (("Service", "orders"), ("Operation", "ProcessTask"))
    assert (found.total, found.count) == (10, 2)


@pytest.mark.parametrize("text", ["ShardID", "Operation=x", "=x", "Service="])
def test_wrong_dimensions_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        parse_dimensions(text)


def test_closing_empties_the_window() -> None:
    """No point is published twice."""
    window = MetricWindow(MetricsLevel.SUMMARY, ME)
    window.observe(IteratorExpired(A), 0)
    assert [each.name for each in window.close(0)] == ["ExpiredIterator"]
    assert window.close(0) == ()


def test_a_shard_that_ended_is_no_longer_sampled() -> None:
    """Its metrics would cost money."""
    found = publish([taken(A), page(A, 5), ShardEnded(A, ())])
    assert ("records", ()) not in found


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (MetricsLevel.NONE, set()),
        (MetricsLevel.SUMMARY, {"ExpiredIterator"}),
        (
            MetricsLevel.DETAILED,
            {
                "ExpiredIterator",
                "KinesisDataFetcher.getRecords.Success",
                "KinesisDataFetcher.getRecords.Time",
            },
        ),
    ],
)
def test_the_level_decides_which_points_are_kept(level: MetricsLevel, names: set[str]) -> None:
    """NONE keeps nothing, SUMMARY is for alarms, DETAILED adds single calls."""
    assert {name for name, _ in publish([IteratorExpired(A), page(A, 1)], level)} == names


def test_memory_is_bounded_and_the_excess_is_counted() -> None:
    """Any number of shards cannot grow the window beyond its limit."""
    window = MetricWindow(MetricsLevel.SUMMARY, ME, sets_max=10)
    for number in range(100):
        window.observe(HandlerFailed(ShardId(f"s-{number}"), Position("1"), Position("1"), 1, 1, "E"), 0)
    assert len(window.close(0)) == 10
    assert window.dropped == 90


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_handled(kind: type[Event]) -> None:
    """A new event must be handled or ignored explicitly."""
    list(metric_points(sample(kind), ME))
