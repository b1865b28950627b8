"""Publishing to CloudWatch: limits, failures and intervals."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from leasehold.adapters.aws.cloudwatch import DATA_PER_REQUEST_MAX, CloudWatchMetrics, split_into_requests
from leasehold.config.settings import MetricsLevel
from leasehold.core.events import Event, FleetRefreshed, IteratorExpired, LeasesRenewed, OperationFailed
from leasehold.core.model import ShardId, WorkerId
from leasehold.core.observing.metrics import MetricWindow
from leasehold.ports import Clock

EVENT = IteratorExpired(ShardId("shard-a"))


class StepClock(Clock):
    """A clock whose sleeps end when the test says so."""

    def __init__(self) -> None:
        self.slept: list[int] = []
        self.asleep = asyncio.Semaphore(0)
        self.wake = asyncio.Semaphore(0)

    def now_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept.append(duration_ms)
        self.asleep.release()
        await self.wake.acquire()


class Recorder:
    """Replaces a boto3 client of CloudWatch; raises `failure` if it is set."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self.failure = failure

    def put_metric_data(self, **request: Any) -> None:
        if self.failure:
            raise self.failure
        self.requests.append(request)


def metrics(
    client: Recorder, *, worker: str = "w-1", reported: list[Event] | None = None
) -> CloudWatchMetrics:
    return CloudWatchMetrics(
        client,
        namespace="billing",
        window=MetricWindow(MetricsLevel.SUMMARY, WorkerId(worker)),
        clock=StepClock(),
        report=(reported if reported is not None else []).append,
    )


def test_a_datum_is_a_statistic_set_of_the_application() -> None:
    """Namespace, dimensions, time, unit and values are what CloudWatch expects."""
    client = Recorder()
    observer = metrics(client)
    observer(EVENT)
    observer(EVENT)
    asyncio.run(observer.flush())
    ((request),) = client.requests
    (datum,) = request["MetricData"]
    assert request["Namespace"] == "billing"
    assert datum["Timestamp"].isoformat() == "2023-11-14T22:13:20+00:00"
    assert {name: datum[name] for name in ("MetricName", "Dimensions", "Unit", "StatisticValues")} == {
        "MetricName": "ExpiredIterator",
        "Dimensions": [{"Name": "Operation", "Value": "ProcessTask"}],
        "Unit": "Count",
        "StatisticValues": {"SampleCount": 2, "Sum": 2, "Minimum": 1, "Maximum": 1},
    }


def test_it_publishes_every_ten_seconds_and_at_the_end() -> None:
    """It waits on the injected clock, and leaving the block flushes."""
    client = Recorder()

    async def scenario() -> StepClock:
        clock = StepClock()
        observer = CloudWatchMetrics(
            client,
            namespace="billing",
            window=MetricWindow(MetricsLevel.SUMMARY, WorkerId("w-1")),
            clock=clock,
            report=lambda _: None,
        )
        async with observer.publish_in_background():
            observer(EVENT)
            await clock.asleep.acquire()
            clock.wake.release()
            await clock.asleep.acquire()
            assert len(client.requests) == 1
            observer(EVENT)
        return clock

    clock = asyncio.run(scenario())
    assert clock.slept == [10_000, 10_000]
    assert len(client.requests) == 2


@pytest.mark.parametrize(
    "failure",
    [
        ClientError({"Error": {"Code": "ThrottlingException", "Message": "slow down"}}, "PutMetricData"),
        EndpointConnectionError(endpoint_url="https://monitoring"),
        ValueError("a bug"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failure_of_cloudwatch_is_counted_and_reported(failure: Exception) -> None:
    """The member is not affected, and the next flush works."""
    reported: list[Event] = []
    client = Recorder(failure)
    observer = metrics(client, reported=reported)
    observer(EVENT)
    asyncio.run(observer.flush())
    assert (observer.published, observer.lost) == (0, 1)
    assert [type(event) for event in reported] == [OperationFailed]
    client.failure = None
    observer(EVENT)
    asyncio.run(observer.flush())
    assert (observer.published, observer.lost) == (1, 1)


def test_an_empty_window_sends_nothing() -> None:
    """An idle member without leases makes no calls."""
    client = Recorder()
    asyncio.run(metrics(client).flush())
    assert client.requests == []


@pytest.mark.parametrize("worker", ["grün\n☃", ":w", " ", "x" * 3000])
def test_an_invalid_worker_id_is_replaced(worker: str) -> None:
    """A dimension value that CloudWatch would refuse is changed to a valid one."""
    client = Recorder()
    observer = metrics(client, worker=worker)
    observer(LeasesRenewed(1, 0, 1))
    asyncio.run(observer.flush())
    values = {
        dimension["Value"] for datum in client.requests[0]["MetricData"] for dimension in datum["Dimensions"]
    }
    assert all(value.isascii() and value.isprintable() and value.strip() for value in values)
    assert all(1 <= len(value) <= 1_024 and not value.startswith(":") for value in values)


def datum(name: str) -> Mapping[str, Any]:
    return {"MetricName": name, "Dimensions": [{"Name": "ShardId", "Value": "s" * 1_000}]}


def test_requests_keep_to_the_limits_of_the_service() -> None:
    """At most 1,000 data and less than 1 MB per request, and no datum is lost."""
    small = [{"MetricName": f"m-{number}", "Dimensions": []} for number in range(2_500)]
    assert [len(batch) for batch in split_into_requests(small)] == [
        DATA_PER_REQUEST_MAX,
        DATA_PER_REQUEST_MAX,
        500,
    ]
    large = [datum(f"m-{number}") for number in range(1_000)]
    cut = list(split_into_requests(large))
    assert [each for batch in cut for each in batch] == large
    assert max(len(batch) for batch in cut) * 3_800 < 1_000_000


def test_level_none_sends_nothing() -> None:
    """No calls at level NONE."""
    client = Recorder()
    observer = CloudWatchMetrics(
        client,
        namespace="billing",
        window=MetricWindow(MetricsLevel.NONE, WorkerId("w-1")),
        clock=StepClock(),
        report=lambda _: None,
    )
    observer(FleetRefreshed(1, 1, 1, 1))
    asyncio.run(observer.flush())
    assert client.requests == []
