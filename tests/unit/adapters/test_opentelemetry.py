"""Metrics in OpenTelemetry, read with the SDK's reader in memory."""

import asyncio
import json
from io import StringIO

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData, NumberDataPoint

from leasehold.adapters.emf import EmfMetrics
from leasehold.adapters.opentelemetry import OpenTelemetryMetrics
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.settings import MetricsLevel
from leasehold.core.events import BatchHandled, FleetRefreshed, LeaseLost, LeaseTaken, MemberStarted, PageRead
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.observing.series import FAMILIES, Kind
from leasehold.core.position import TRIM_HORIZON, Position

SHARD = ShardId("shard-0")
EVENTS = (
    MemberStarted(WorkerId("w"), "billing", "orders"),
    LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON),
    PageRead(SHARD, 5, 500, 4_000, 3, Position("9")),
    BatchHandled(SHARD, 5, 500, Position("9"), 250, 0),
    FleetRefreshed(8, 2, 1, 3, 5, speaks_for_fleet=True),
)


def values(data: MetricsData | None) -> dict[str, dict[tuple[tuple[str, object], ...], float]]:
    """By name, then by attributes."""
    assert data is not None
    found: dict[str, dict[tuple[tuple[str, object], ...], float]] = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = [point for point in metric.data.data_points if isinstance(point, NumberDataPoint)]
                found[metric.name] = {
                    tuple(sorted((point.attributes or {}).items())): point.value for point in points
                }
    return found


def test_the_values_are_those_of_the_events() -> None:
    """Under Prometheus' names; the series of a shard disappear with its lease."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(lambda: 1_000, provider)
    for event in EVENTS:
        metrics(event)
    found = values(reader.get_metrics_data())
    of_shard = (("shard", SHARD),)
    assert found["leasehold_shard_lag_seconds"] == {of_shard: 4.0}
    assert found["leasehold_shard_records_handled"] == {of_shard: 5}
    assert found["leasehold_shard_handler_seconds_sum"] == {of_shard: 0.25}
    assert found["leasehold_shard_handler_seconds_count"] == {of_shard: 1}
    assert found["leasehold_fleet_leases"] == {(): 8}
    assert (("application", "billing"), ("stream", "orders"), ("worker", "w")) in found[
        "leasehold_member_info"
    ]
    metrics(LeaseLost(LeaseKey(SHARD), SHARD, None, "taken"))
    later = values(reader.get_metrics_data())
    assert later.get("leasehold_shard_lag_seconds", {}) == {}
    assert later["leasehold_leases_lost"] == {(): 1}
    provider.shutdown()


def test_every_family_has_a_kind_and_a_text() -> None:
    assert {kind for kind, _ in FAMILIES.values()} == set(Kind)
    assert all(text.endswith(".") for _, text in FAMILIES.values())


def test_metrics_on_stdout_are_one_json_document_a_line() -> None:
    """Each flush writes what was collected since the one before."""
    output = StringIO()
    metrics = EmfMetrics(
        MetricWindow(MetricsLevel.SUMMARY, WorkerId("w")), "orders-app", SystemClock(), output
    )
    for event in EVENTS:
        metrics(event)
    asyncio.run(metrics.flush())
    first = [json.loads(line) for line in output.getvalue().splitlines()]
    (plain,) = [each for each in first if "total_leases" in each]
    assert (plain["total_leases"], plain["unclaimed_leases"], plain["worker_leases"]) == (8, 2, 1)
    assert plain["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "orders-app"
    asyncio.run(metrics.flush())
    assert len(output.getvalue().splitlines()) > len(first)
