"""What follows from a row of the lease table that cannot be read."""

from __future__ import annotations

from leasehold.core.model import LeaseKey, parse_lease_key, shard_number


def consequence_of(key: str) -> str:
    """What follows from an unreadable row with this key. It may be the lease of a shard, or of another program.

    >>> consequence_of("shardId-000000000003")
    'its shard and all descendants of that shard get no lease and are not started'
    >>> consequence_of("notes")
    'its key is not that of a shard, so no shard waits for it'
    """
    if shard_number(parse_lease_key(LeaseKey(key))[1]) is None:
        return "its key is not that of a shard, so no shard waits for it"
    return "its shard and all descendants of that shard get no lease and are not started"
