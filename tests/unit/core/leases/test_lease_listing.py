"""Rows that cannot be read: of which shard of which stream they may be the lease."""

import pytest

from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import StreamIdentifier
from leasehold.errors import MalformedRowError

ORDERS = StreamIdentifier("123456789012:orders:1700000000")
RETURNS = StreamIdentifier("123456789012:returns:1700000000")
SHARD = "shardId-000000000001"


@pytest.mark.parametrize(
    ("key", "stream", "shards"),
    [
        (f"{ORDERS}:{SHARD}", ORDERS, {SHARD}),
        (f"{RETURNS}:{SHARD}", ORDERS, set()),
        (SHARD, ORDERS, set()),
        (f"orders:{SHARD}", ORDERS, set()),
        ("", ORDERS, set()),
        (SHARD, None, {SHARD}),
        (f"{ORDERS}:{SHARD}", None, set()),
    ],
)
def test_a_row_can_only_be_the_lease_that_its_key_names(
    key: str, stream: StreamIdentifier | None, shards: set[str]
) -> None:
    """No other lease has this key, whatever the attributes say."""
    listing = LeaseListing((), (MalformedRowError(key, "no checkpoint"),))
    assert listing.unreadable_shards(stream) == shards
