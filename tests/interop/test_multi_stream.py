"""One fleet over two streams, whose shards have the same names: a Java member with a MultiStreamTracker, and Python."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leasehold.local import LocalKinesis
from tests.fleet.record_producer import RecordProducer
from tests.interop.fleet_run import FleetRun, run_under_load
from tests.interop.fleet_tables import FleetTables
from tests.interop.mixed_fleet import BY_COUNT, MixedFleet
from tests.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SHARDS_EACH = 4


@dataclass
class OneOfTwo(RecordProducer):
    """A producer on one of two streams. Both draw from one sequence of numbers."""

    whole: RecordProducer = field(kw_only=True)

    def _numbers(self, count: int) -> Iterator[int]:
        return self.whole._numbers(count)


@dataclass
class OnTwoStreams(RecordProducer):
    """A producer on both streams. Shards are identified as stream/shard."""

    parts: list[RecordProducer] = field(default_factory=list)

    def put(self, plain: int, aggregated: int) -> None:
        for part in self.parts:
            part.put(plain // 2, aggregated // 2)

    def reshard(self) -> None:
        for part in self.parts:
            part.reshard()
        self.splits = sum(part.splits for part in self.parts)
        self.merges = sum(part.merges for part in self.parts)

    def parents(self) -> dict[str, tuple[str, ...]]:
        return {
            f"{part.stream}/{shard}": tuple(f"{part.stream}/{parent}" for parent in parents)
            for part in self.parts
            for shard, parents in part.parents().items()
        }


def on_two_streams(kinesis: Any, streams: list[str]) -> OnTwoStreams:
    """Create streams with a few shards each, and their producer."""
    both = OnTwoStreams(kinesis, "", random.Random(6))
    for stream in streams:
        kinesis.create_stream(StreamName=stream, ShardCount=SHARDS_EACH)
        part = OneOfTwo(
            kinesis,
            stream,
            random.Random(stream),
            per_aggregate=4,
            shards_min=SHARDS_EACH,
            shards_max=8,
            whole=both,
        )
        both.parts.append(part)
    return both


def identifier_of(kinesis: Any, stream: str) -> str:
    """The identifier of a stream, as the author of a MultiStreamTracker builds it."""
    summary = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    account = summary["StreamARN"].split(":")[4]
    return f"{account}:{stream}:{int(summary['StreamCreationTimestamp'].timestamp())}"


@pytest.fixture
def fleet_run(
    tmp_path: Path, dynamodb_local: Server, unique_name: Callable[[str], str]
) -> Iterator[FleetRun]:
    """An empty fleet under load on two streams. Python gets their names, Java their identifiers."""
    with LocalKinesis.in_process() as server:
        kinesis, streams = server.client(), [unique_name("orders"), unique_name("returns")]
        production = on_two_streams(kinesis, streams)
        fleet = MixedFleet(tmp_path, "", unique_name("application"), server.endpoint_url, dynamodb_local.url)
        fleet.python_options["streams"] = streams
        fleet.java_options["streams"] = ",".join(identifier_of(kinesis, stream) for stream in streams)
        table = FleetTables(dynamodb_local.client("dynamodb"), fleet.application)
        with run_under_load(FleetRun(fleet, table, production)) as told:
            yield told


def test_a_java_leader_of_two_streams_is_killed(fleet_run: FleetRun) -> None:
    """Java creates the leases of both streams and hands half of them over. Python reads and leads after the kill,
    and Java joins again.
    """
    java = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python()
    fleet_run.wait_until_read_by(python, leases=4)
    assert fleet_run.table.leader() == java
    streams = {lease.stream for lease in fleet_run.table.leases()}
    assert streams == set(fleet_run.fleet.java_options["streams"].split(","))
    fleet_run.reshard(2)
    fleet_run.kill(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)
    fleet_run.reshard()
    again = fleet_run.fleet.start_java(**BY_COUNT)
    fleet_run.wait_until_read_by(again, leases=4)
    assert fleet_run.table.leader() == python
    fleet_run.conclude()
    assert {lease.stream for lease in fleet_run.table.leases()} == streams
