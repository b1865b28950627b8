"""Selection of the leases of one stream in a table of several streams."""

import pytest

from leasehold.cli.leases import belongs_to_stream
from leasehold.core.model import Lease, ShardId, StreamIdentifier, lease_key
from leasehold.core.position import TRIM_HORIZON

SHARD = ShardId("shardId-000000000000")


def make_lease(stream: StreamIdentifier | None) -> Lease:
    return Lease(key=lease_key(SHARD, stream), shard_id=SHARD, checkpoint=TRIM_HORIZON, stream=stream)


@pytest.mark.parametrize(
    "name", ["orders", "1:orders:2", "arn:aws:kinesis:us-east-1:000000000001:stream/orders", None]
)
def test_a_stream_is_known_by_name_arn_and_identifier(name: str | None) -> None:
    """No name selects all streams."""
    assert belongs_to_stream(make_lease(StreamIdentifier("1:orders:2")), name)


@pytest.mark.parametrize("name", ["returns", "1:orders:3", "order"])
def test_leases_of_other_streams_are_not_selected(name: str) -> None:
    """A stream of the same name with another creation time is another stream."""
    assert not belongs_to_stream(make_lease(StreamIdentifier("1:orders:2")), name)


def test_leases_without_a_stream_belong_to_any_stream() -> None:
    """In single-stream mode the rows do not name the stream."""
    assert belongs_to_stream(make_lease(None), "orders")
