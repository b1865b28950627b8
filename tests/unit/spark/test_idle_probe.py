"""A poll of an idle shard finds new records, and the unread part of an aggregate, and nothing else."""

import pytest

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import Lease, LeaseKey, ShardId
from leasehold.core.position import Position
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION, DeaggregationSettings, Unreadable
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.spark.query.idle_probe import IdleProbe, ProbeResult

SHARD = ShardId("shardId-000000000000")
AGGREGATE = aggregate([PutEntry(b"%d" % number, "k") for number in range(3)]).data
ONE_TOO_MANY = DeaggregationSettings(user_records_max=2)
REFUSED = DeaggregationSettings(user_records_max=2, unreadable=Unreadable.FAIL)


async def _probe(data: bytes, sub: int, settings: DeaggregationSettings, *others: bytes) -> ProbeResult:
    """Poll a stream that has been read up to a user record of its first record."""
    clock, service = VirtualClock(), KinesisModel()
    service.create_stream(clock.wall_ms(), "orders", shard_count=1)
    first, *_ = (
        service.put_record(clock.wall_ms(), "orders", PutRequest("k", each)) for each in (data, *others)
    )
    at = Position(str(first.number), sub)
    lease = Lease(key=LeaseKey(SHARD), shard_id=SHARD, checkpoint=at)
    stream = MemoryStream(service, "orders", clock)
    return await IdleProbe(stream, lease, ReadStart(at), settings, was_just_read=False).poll()


@pytest.mark.parametrize(
    ("data", "sub", "settings", "expected"),
    [
        (AGGREGATE, 2, DEFAULT_DEAGGREGATION, ProbeResult.NOTHING),
        (AGGREGATE, 1, DEFAULT_DEAGGREGATION, ProbeResult.RECORDS),
        (AGGREGATE[:-1] + b"x", 0, DEFAULT_DEAGGREGATION, ProbeResult.NOTHING),  # corrupt, delivered raw
        (AGGREGATE, 2, ONE_TOO_MANY, ProbeResult.NOTHING),  # above a limit, delivered raw
        (AGGREGATE, 1, ONE_TOO_MANY, ProbeResult.RECORDS),  # by a member with another limit, in part
        (AGGREGATE, 2, REFUSED, ProbeResult.RECORDS),  # a task reports the error
        (b"plain", 0, DEFAULT_DEAGGREGATION, ProbeResult.NOTHING),
    ],
)
def test_an_aggregate_has_something_to_read_only_if_a_part_of_it_is_unread(
    data: bytes, sub: int, settings: DeaggregationSettings, expected: ProbeResult
) -> None:
    """A query that takes over an idle shard would otherwise begin a batch without records."""
    assert run_in_virtual_time(_probe(data, sub, settings)) is expected


def test_a_record_after_an_aggregate_is_found() -> None:
    """Although the aggregate itself is read completely."""
    found = run_in_virtual_time(_probe(AGGREGATE, 2, DEFAULT_DEAGGREGATION, b"next"))
    assert found is ProbeResult.RECORDS
