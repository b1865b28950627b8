"""Audits of one stream among several."""

from leasehold.core.model import (
    HASH_KEY_MAX,
    WHOLE_HASH_RANGE,
    HashRange,
    Lease,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import SHARD_END, Position
from leasehold.core.shards.hash_coverage import Hole
from leasehold.core.shards.lease_audit import Audit, Sightings, audit_leases, shards_without_range

ORDERS, CLICKS = StreamIdentifier("1:orders:1"), StreamIdentifier("1:clicks:1")
UPPER = HashRange(100, HASH_KEY_MAX)


def lease(
    name: str, hash_range: HashRange | None, stream: StreamIdentifier | None = None, at: str = "7"
) -> Lease:
    shard_id = ShardId(name)
    return Lease(
        key=lease_key(shard_id, stream),
        shard_id=shard_id,
        checkpoint=Position(at),
        hash_range=hash_range,
        stream=stream,
    )


def test_leases_of_other_streams_cover_nothing() -> None:
    """A stream with a hole is not made whole by another stream's leases."""
    leases = [lease("s-0", UPPER, ORDERS), lease("s-0", WHOLE_HASH_RANGE, CLICKS)]
    assert audit_leases(leases, Sightings(), stream=ORDERS) == Audit(
        sync_now=False, sightings=Sightings(Hole(0, 99), 1)
    )
    assert audit_leases(leases, Sightings(), stream=CLICKS) == Audit(sync_now=False, sightings=Sightings())


def test_a_stream_without_leases_is_synced_although_others_have_some() -> None:
    """The memory stays as it was: nothing was seen that could be counted."""
    before = Sightings(Hole(1, 2), 2)
    leases = [lease("s-0", WHOLE_HASH_RANGE, CLICKS)]
    assert audit_leases(leases, before, stream=ORDERS) == Audit(sync_now=True, sightings=before)


def test_only_leases_that_are_read_need_a_range() -> None:
    """A finished lease covers nothing, so its range is not asked for."""
    leases = [
        lease("s-0", None),
        lease("s-1", None, at="SHARD_END"),
        lease("s-2", UPPER),
        lease("s-3", None, ORDERS),
    ]
    assert leases[1].checkpoint == SHARD_END
    assert shards_without_range(leases) == {"s-0"}


def test_a_learned_range_is_given_back_with_its_lease() -> None:
    """The whole lease comes back with the range set, ready to be written; known ones do not."""
    leases = [lease("s-0", HashRange(0, 99)), lease("s-1", None)]
    audit = audit_leases(leases, Sightings(), known_ranges={ShardId("s-1"): UPPER, ShardId("s-0"): UPPER})
    assert audit == Audit(sync_now=False, sightings=Sightings(), found_ranges=(lease("s-1", UPPER),))
