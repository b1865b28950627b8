"""The error of a query whose checkpoint location and leases disagree."""

import pytest

from leasehold.core.exactly_once.lost_leases import BehindLog
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.spark.query.log_comparison import explain_lost_leases


@pytest.mark.parametrize(
    ("shards", "others"),
    [(1, ""), (2, " One more shard contradicts it, too."), (3, " 2 more shards contradict it, too.")],
)
def test_the_message_names_every_cause_with_its_remedy(shards: int, others: str) -> None:
    """Also a checkpoint location of another application, whose leases are elsewhere."""
    lost = [
        (None, BehindLog(ShardId(f"shardId-{number}"), ReadStart(Position("7")), None))
        for number in range(shards)
    ]
    message = explain_lost_leases(lost)
    assert message.startswith("shard shardId-0: according to the checkpoint location,")
    assert f"the shard has no lease.{others} The lease table was deleted" in message
    assert "onLeasesBehind=offsets" in message
    assert message.endswith(
        "with another applicationName or streamName, use a new one for this query instead"
    )
