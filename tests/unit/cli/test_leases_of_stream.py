"""Which leases of a table of several streams a command is about."""

import pytest

from leasehold.cli.leases import belongs_to_stream
from leasehold.core.model import Lease, ShardId, StreamIdentifier, lease_key
from leasehold.core.position import TRIM_HORIZON

SHARD = ShardId("shardId-000000000000")


def lease(stream: StreamIdentifier | None) -> Lease:
    return Lease(key=lease_key(SHARD, stream), shard_id=SHARD, checkpoint=TRIM_HORIZON, stream=stream)


@pytest.mark.parametrize(
    "name", ["orders", "1:orders:2", "arn:aws:kinesis:us-east-1:000000000001:stream/orders", None]
)
def test_a_stream_is_known_by_name_arn_and_identifier(name: str | None) -> None:
    """However the user calls it; no name means all of them."""
    assert belongs_to_stream(lease(StreamIdentifier("1:orders:2")), name)


@pytest.mark.parametrize("name", ["returns", "1:orders:3", "order"])
def test_another_stream_is_another_stream(name: str) -> None:
    """Nor is one of the same name that was made at another time, when the time is given."""
    assert not belongs_to_stream(lease(StreamIdentifier("1:orders:2")), name)


def test_rows_of_a_single_stream_are_of_any() -> None:
    """They do not say; it is the user who knows."""
    assert belongs_to_stream(lease(None), "orders")
