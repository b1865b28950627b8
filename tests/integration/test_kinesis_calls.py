"""The calls of a worker to Kinesis are counted by operation, on the local server."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from leasehold.adapters.prometheus import PrometheusMetrics
from leasehold.config.settings import MetricsLevel
from leasehold.core.events import CallCount, Event, KinesisCallsCounted
from leasehold.core.model import ShardId, WorkerId
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.observing.metrics import MetricWindow
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import ThrottledError
from leasehold.local import LocalKinesis
from leasehold.worker.connect import connect
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.options import consumer_settings

SHARD = ShardId("shardId-000000000000")
OLDEST = IteratorStart(IteratorKind.TRIM_HORIZON)
READS = 12


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    with LocalKinesis.in_thread() as server:
        yield server


async def make_calls(ports: WorkerPorts, stream: str) -> int:
    """Make some calls of each kind. Returns how many reads were throttled."""
    opened, throttled = ports.streams[stream], 0
    await opened.list_shards()
    await opened.get_retention_ms()
    iterator = await opened.get_iterator(SHARD, OLDEST)
    for _ in range(READS):  # more than five in a second
        try:
            await opened.get_records(iterator, limit=1)
        except ThrottledError:
            throttled += 1
    assert ports.open_fan_out is not None
    fan_out = ports.open_fan_out(stream)
    consumer = await fan_out.register_consumer("counted")
    while consumer.status != "ACTIVE":
        consumer = await fan_out.describe_consumer("counted")
    with suppress(ThrottledError):
        await (await fan_out.subscribe(consumer.arn, SHARD, OLDEST)).close()
    return throttled


def test_the_calls_of_a_worker_are_counted_by_operation(
    kinesis: LocalKinesis,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was called is in the events, in Prometheus, in CloudWatch and in /health."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "test")
    stream = unique_name("counted")
    client = kinesis.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    client.get_waiter("stream_exists").wait(StreamName=stream, WaiterConfig={"Delay": 1})
    settings = consumer_settings(
        {
            "stream": stream,
            "application": stream,
            "region": "us-east-1",
            "kinesis_endpoint": kinesis.endpoint_url,
            "leases": f"sqlite:{tmp_path / 'leases.db'}",
            "retrieval": "fan_out",
        },
        {},
    )
    events: list[Event] = []

    async def run() -> int:
        async with connect(settings, events.append) as ports:
            return await make_calls(ports, stream)

    kinesis.settings(enforce_limits=True)
    try:
        throttled = asyncio.run(run())
    finally:
        kinesis.settings(enforce_limits=False)
    counted = [event for event in events if isinstance(event, KinesisCallsCounted)]
    calls: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for each in (each for event in counted for each in event.counts):
        calls[each.operation] += each.calls
        refused[each.operation] += each.throttled
    assert calls["GetRecords"] == READS
    assert refused["GetRecords"] == throttled > 0
    once = ("ListShards", "GetShardIterator", "RegisterStreamConsumer", "SubscribeToShard")
    assert [calls[operation] for operation in once] == [1, 1, 1, 1]
    assert calls["DescribeStreamSummary"] == 2  # the retention, and the ARN of the stream for its consumers
    assert_shown(counted, throttled)


def assert_shown(counted: list[KinesisCallsCounted], throttled: int) -> None:
    metrics, window = PrometheusMetrics(lambda: 0), MetricWindow(MetricsLevel.DETAILED, WorkerId("w"))
    health = Health(HealthLimits(failover_ms=10_000, stuck_after_ms=300_000), 0)
    for event in counted:
        metrics(event)
        window.observe(event, 0)
    health.observe(KinesisCallsCounted((CallCount("GetRecords", 50, 5),), 10_000), 0)
    label = 'leasehold_kinesis_calls_total{operation="GetRecords",outcome='
    assert f'{label}"throttled"}} {throttled:.1f}' in metrics.text().decode()
    assert f'{label}"ok"}} {READS - throttled:.1f}' in metrics.text().decode()
    sums = {each.name: each.total for each in window.close(0)}
    assert sums["kinesis_calls.GetRecords"] == READS
    assert sums["kinesis_throttled_calls.GetRecords"] == sums["kinesis_throttled_calls"] == throttled
    rates = {"GetRecords": {"per_s": 5.0, "throttled_per_s": 0.5}}
    assert health_to_json(health.report(0))["kinesis_calls"] == rates
    assert health_to_json(health.report(60_000))["kinesis_calls"] == {}
