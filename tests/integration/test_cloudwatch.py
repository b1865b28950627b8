"""Metrics as a CloudWatch server receives them."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from leasehold.adapters.aws.cloudwatch import CloudWatchMetrics
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.settings import MetricsLevel
from leasehold.core.events import BatchHandled, Event, FleetRefreshed, LeaseTaken, PageRead
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.position import TRIM_HORIZON, Position
from tests.servers import Server

SHARD = ShardId("shardId-000000000000")
EVENTS: list[Event] = [
    LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON),
    FleetRefreshed(4, 1, 2, 3, speaks_for_fleet=True),
    PageRead(SHARD, 7, 700, 1_500, 20),
    BatchHandled(SHARD, 3, 300, Position("3"), 40, 1_500),
    BatchHandled(SHARD, 4, 400, Position("7"), 60, 1_500),
]


def published(client: Any, namespace: str, name: str, dimensions: dict[str, str]) -> dict[str, float]:
    """Return all statistics of a metric in the last hour."""
    now = datetime.now(UTC)
    response = client.get_metric_statistics(
        Namespace=namespace,
        MetricName=name,
        Dimensions=[{"Name": key, "Value": value} for key, value in dimensions.items()],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(hours=1),
        Period=7200,
        Statistics=["Sum", "SampleCount", "Minimum", "Maximum"],
    )
    (point,) = response["Datapoints"]
    return {key: point[key] for key in ("Sum", "SampleCount", "Minimum", "Maximum")}


def test_metrics_arrive_with_the_names_and_dimensions_of_the_kcl(
    ministack: Server, unique_name: Callable[[str], str]
) -> None:
    """A dashboard made for the KCL finds its metrics, merged. The names of kcl-rust are published as well."""
    client, namespace = ministack.client("cloudwatch"), unique_name("billing")

    async def publish() -> CloudWatchMetrics:
        observer = CloudWatchMetrics(
            client,
            namespace=namespace,
            window=MetricWindow(MetricsLevel.DETAILED, WorkerId("w-1")),
            clock=SystemClock(),
            report=lambda _: None,
        )
        async with observer.publish_in_background():
            for event in EVENTS:
                observer(event)
        return observer

    observer = asyncio.run(publish())
    assert observer.lost == 0
    assert observer.published > 10

    of_shard = {"Operation": "ProcessTask", "ShardId": SHARD}
    assert published(client, namespace, "RecordsProcessed", of_shard) == {
        "Sum": 7,
        "SampleCount": 2,
        "Minimum": 3,
        "Maximum": 4,
    }
    of_worker = {"Operation": "TakeLeases", "WorkerIdentifier": "w-1"}
    assert published(client, namespace, "NumWorkers", of_worker)["Maximum"] == 3
    assert published(client, namespace, "MillisBehindLatest", of_shard)["Maximum"] == 1_500
    assert published(client, namespace, "millis_behind_latest", {})["Maximum"] == 1_500
    assert published(client, namespace, "unclaimed_leases", {})["Sum"] == 1


def test_an_unreachable_cloudwatch_loses_only_metrics(unique_name: Callable[[str], str]) -> None:
    """No error reaches the member."""
    server = Server("nobody", "http://127.0.0.1:9", Path())

    async def publish() -> CloudWatchMetrics:
        reported: list[Event] = []
        observer = CloudWatchMetrics(
            server.client("cloudwatch"),
            namespace=unique_name("billing"),
            window=MetricWindow(MetricsLevel.SUMMARY, WorkerId("w-1")),
            clock=SystemClock(),
            report=reported.append,
        )
        async with observer.publish_in_background():
            observer(EVENTS[1])
        assert "Could not connect" in str(reported)
        return observer

    observer = asyncio.run(publish())
    assert (observer.published, observer.lost > 0) == (0, True)
