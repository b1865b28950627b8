"""Limits of lease rows: how many relatives a lease may have."""

import pytest

from leasehold.core.leases.lease_row import leases_from_rows
from leasehold.core.leases.row_writes import Row

LEASE: Row = {
    "leaseKey": {"S": "shardId-x"},
    "leaseCounter": {"N": "1"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
}


def _with_relatives(attribute: str, count: int) -> Row:
    return {**LEASE, attribute: {"SS": [f"shardId-{number}" for number in range(count)]}}


@pytest.mark.parametrize(("attribute", "count"), [("childShardIds", 2), ("parentShardId", 10_000)])
def test_a_row_with_as_many_relatives_as_a_lease_may_have_is_read(attribute: str, count: int) -> None:
    """A shard has two children at most. As many parents as a stream had shards fit into a row."""
    listing = leases_from_rows([_with_relatives(attribute, count)])
    assert (len(listing.leases), len(listing.rejected)) == (1, 0)


@pytest.mark.parametrize(("attribute", "count"), [("childShardIds", 3), ("parentShardId", 10_001)])
def test_a_row_with_one_relative_too_many_is_rejected(attribute: str, count: int) -> None:
    listing = leases_from_rows([_with_relatives(attribute, count)])
    assert listing.leases == ()
    assert f"{attribute}: has {count} shards; expected at most {count - 1}" in str(listing.rejected[0])
