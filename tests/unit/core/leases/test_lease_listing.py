"""Rows that cannot be read: of which stream they may be."""

import pytest

from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import StreamIdentifier
from leasehold.errors import MalformedRowError

ORDERS = StreamIdentifier("123456789012:orders:1700000000")
RETURNS = StreamIdentifier("123456789012:returns:1700000000")


@pytest.mark.parametrize(
    ("key", "may_be"),
    [
        (f"{ORDERS}:shardId-000000000001", True),
        (f"{RETURNS}:shardId-000000000001", False),
        ("shardId-000000000001", True),
        ("orders:shardId-000000000001", True),
        ("", True),
    ],
)
def test_only_a_key_that_names_another_stream_is_surely_not_ours(key: str, may_be: bool) -> None:
    """What cannot be understood may be a lease of any stream."""
    listing = LeaseListing((), (MalformedRowError(key, "no checkpoint"),))
    assert bool(listing.unreadable_of(ORDERS)) == may_be


def test_in_a_table_of_one_stream_every_row_may_be_its_own() -> None:
    """A name before a key may be a slip, there."""
    listing = LeaseListing((), (MalformedRowError(f"{RETURNS}:shardId-000000000001", "no checkpoint"),))
    assert listing.unreadable_of(None) == listing.rejected
