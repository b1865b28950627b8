"""One fleet by enhanced fan-out, with one consumer: a Java member and a Python member, and either is killed."""

import pytest

from tests.interop.fleet_run import FleetRun
from tests.interop.mixed_fleet import BY_COUNT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FAN_OUT = {"retrieval": "fan_out"}


def test_java_and_python_share_a_consumer_and_either_is_killed(fleet_run: FleetRun) -> None:
    """The consumer is named like the application. Subscriptions of a killed member are replaced, not waited for."""
    java = fleet_run.fleet.start_java(**BY_COUNT, **FAN_OUT)
    fleet_run.wait_until_read_by(java, leases=8)
    python = fleet_run.fleet.start_python(**FAN_OUT)
    fleet_run.wait_until_read_by(python, leases=4)
    fleet_run.reshard(2)
    fleet_run.kill(java)
    fleet_run.wait_for_leader(python)
    fleet_run.wait_until_read_by(python, leases=8)
    second = fleet_run.fleet.start_java(**BY_COUNT, **FAN_OUT)
    fleet_run.wait_until_read_by(second, leases=2)
    fleet_run.reshard(2)
    fleet_run.kill(python)
    fleet_run.wait_until_read_by(second, leases=8)
    assert _consumers_of(fleet_run) == [fleet_run.fleet.application]
    fleet_run.conclude()


def _consumers_of(fleet_run: FleetRun) -> list[str]:
    """The names of all consumers of the stream."""
    kinesis, stream = fleet_run.production.kinesis, fleet_run.fleet.stream
    arn = kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    listed = kinesis.list_stream_consumers(StreamARN=arn)["Consumers"]
    return [consumer["ConsumerName"] for consumer in listed]
