"""Rows that cannot be read: of which shard of which stream they may be the lease."""

import pytest

from leasehold.core.leases.lease_row import LeaseListing, leases_from_rows
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import StreamIdentifier
from leasehold.errors import MalformedRowError

ORDERS = StreamIdentifier("123456789012:orders:1700000000")
RETURNS = StreamIdentifier("123456789012:returns:1700000000")
SHARD = "shardId-000000000001"
LEASE: Row = {
    "leaseCounter": {"N": "1"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
}


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


def test_a_row_with_a_malformed_key_is_named_by_it() -> None:
    """Otherwise several such rows look like one, and none can be found."""
    keys = ["shardId-1\x1b[2J", "a\x00b", "shardId-1\n", "x" * 3_000, ""]
    listing = leases_from_rows({"leaseKey": {"S": key}, "leaseCounter": {"N": "1"}} for key in keys)
    assert [error.key for error in listing.rejected] == [*keys[:3], "x" * 2_048, ""]
    for error in listing.rejected:
        assert str(error).isprintable()


def test_generations_of_rows_that_cannot_be_read_are_listed() -> None:
    """Only of these, and only if there are some: the others are part of their leases."""
    unreadable = {**LEASE, "leaseCounter": {"N": "many"}}
    generations = {"leaseholdGenerations": {"S": "c0ffee:7"}}
    listing = leases_from_rows(
        [
            {"leaseKey": {"S": "shardId-1"}, **LEASE, **generations},
            {"leaseKey": {"S": "shardId-2"}, **LEASE},
            {"leaseKey": {"S": "shardId-3"}, **unreadable, **generations},
            {"leaseKey": {"S": "shardId-4"}, **unreadable},
        ]
    )
    assert [each.key for each in listing.leases] == ["shardId-1", "shardId-2"]
    assert [error.key for error in listing.rejected] == ["shardId-3", "shardId-4"]
    assert listing.rejected_generations == (("shardId-3", (("c0ffee", 7),)),)
