"""Shards, leases, and their ids, as plain values. Other modules of `core` decide what may happen to them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NewType

from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError

ShardId = NewType("ShardId", str)
WorkerId = NewType("WorkerId", str)
LeaseKey = NewType("LeaseKey", str)
# A fencing token: a random id that a member writes into a lease when it starts to serve it. Together with the owner
# it distinguishes this lease session from an earlier one of the same worker, and from a second process with the same
# worker id.
LeaseSessionId = NewType("LeaseSessionId", str)
# `account:stream:epoch` in multi-stream mode; leases of a single stream have none.
StreamIdentifier = NewType("StreamIdentifier", str)

HASH_KEY_MAX: Final = 2**128 - 1
_STREAM_IDENTIFIER: Final = re.compile(r"[0-9]{1,20}:[^:\x00-\x1f\x7f]{1,128}:[0-9]{1,20}")


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """An inclusive range of hash keys."""

    start: int
    end: int

    def __post_init__(self) -> None:
        # Java refuses start == end, and Kinesis never creates such a shard.
        if not 0 <= self.start < self.end <= HASH_KEY_MAX:
            raise ConfigError(
                f"hash key range {self.start}..{self.end}: expected 0 <= start < end <= 2^128-1"
            )

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end


WHOLE_HASH_RANGE: Final = HashRange(0, HASH_KEY_MAX)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as ListShards returns it. `parents` holds one shard after a split, two after a merge."""

    id: ShardId
    hash_range: HashRange
    starting_sequence_number: str
    ending_sequence_number: str | None = None
    parents: tuple[ShardId, ...] = ()

    @property
    def is_open(self) -> bool:
        """An open shard still accepts new records."""
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    """A child shard as the last GetRecords response of a closed shard lists it."""

    id: ShardId
    parents: tuple[ShardId, ...]
    hash_range: HashRange


@dataclass(frozen=True, slots=True)
class Pin:
    """A pending checkpoint: the end of the batch that starts at the checkpoint, with metadata of its writer."""

    end: Position
    state: bytes | None = None


Generations = tuple[tuple[str, int], ...]  # of Spark queries: query id and number


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row of the lease table. One attribute per column that Leasehold reads, hence more than twelve.

    `owner` is None on a free lease. While `checkpoint_owner` is set the lease is in a handoff: the checkpoint owner
    still serves it, and `owner` will serve it next.
    """

    key: LeaseKey
    shard_id: ShardId
    checkpoint: Position
    counter: int = 0
    owner: WorkerId | None = None
    checkpoint_owner: WorkerId | None = None
    owner_switches: int = 0
    pin: Pin | None = None
    parents: frozenset[ShardId] = field(default_factory=frozenset)
    children: frozenset[ShardId] = field(default_factory=frozenset)
    hash_range: HashRange | None = None
    throughput_kbps: Decimal | None = None
    stream: StreamIdentifier | None = None
    session: LeaseSessionId | None = None
    # When a lease at LATEST was created. A reader that replaces a failed first reader starts at this time.
    latest_at_ms: int | None = None
    # A random value that another member writes to make the owner refresh. Unique per write.
    nudge: str | None = None
    # The last generation of each Spark query that pinned a batch here, as query id and number; the newest entry is
    # last. It stays in the row when the pin is removed.
    generations: Generations = ()

    @property
    def actual_owner(self) -> WorkerId | None:
        """The worker that may read and checkpoint now."""
        return self.checkpoint_owner or self.owner

    @property
    def is_in_handoff(self) -> bool:
        """True from the handoff request until the old owner releases the lease."""
        return self.checkpoint_owner is not None


def shard_number(shard: ShardId) -> int | None:
    """The number in an id that Kinesis has given to a shard; None if the id is not of its form.

    >>> shard_number(ShardId("shardId-000000000003")), shard_number(ShardId("settings"))
    (3, None)
    """
    prefix, _, digits = shard.partition("-")
    is_kinesis_form = prefix == "shardId" and len(digits) == 12 and digits.isascii() and digits.isdecimal()
    return int(digits) if is_kinesis_form else None


def lease_key(shard_id: ShardId, stream: StreamIdentifier | None = None) -> LeaseKey:
    """The key of a shard's lease: the shard id, prefixed by the stream in multi-stream mode.

    >>> lease_key(ShardId("shardId-000000000003"), StreamIdentifier("123456789012:orders:1700000000"))
    '123456789012:orders:1700000000:shardId-000000000003'
    """
    return LeaseKey(f"{stream}:{shard_id}" if stream else shard_id)


def parent_keys(lease: Lease) -> frozenset[LeaseKey]:
    """The lease keys of a shard's parents. Parents belong to the same stream."""
    return frozenset(lease_key(parent, lease.stream) for parent in lease.parents)


def parse_lease_key(key: LeaseKey) -> tuple[StreamIdentifier | None, ShardId]:
    """The stream and the shard of a lease key: the inverse of `lease_key`.

    >>> parse_lease_key(LeaseKey("123456789012:orders:1700000000:shardId-000000000003"))
    ('123456789012:orders:1700000000', 'shardId-000000000003')
    """
    stream, _, shard = key.rpartition(":")
    return StreamIdentifier(stream) if stream else None, ShardId(shard)


def stream_identifier(account: str, name: str, created_s: int) -> StreamIdentifier:
    """The identifier of a stream in a table of several. A stream that was deleted and created again has another one.

    >>> stream_identifier("123456789012", "orders", 1700000000)
    '123456789012:orders:1700000000'
    """
    return StreamIdentifier(f"{account}:{name}:{created_s}")


def is_stream_identifier(text: str) -> bool:
    """Whether a text has the form account:stream:epoch.

    >>> is_stream_identifier("123456789012:orders:1700000000"), is_stream_identifier("orders")
    (True, False)
    """
    return _STREAM_IDENTIFIER.fullmatch(text) is not None


def have_same_stream_name(one: StreamIdentifier, other: StreamIdentifier) -> bool:
    """Whether two identifiers have the same account and name. Only one such stream exists at a time.

    >>> have_same_stream_name(StreamIdentifier("1:orders:1700000000"), StreamIdentifier("1:orders:1"))
    True
    """
    return one.rpartition(":")[0] == other.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """Where a fleet without checkpoints starts. `timestamp_ms` is set for `AT_TIMESTAMP` and only for it."""

    sentinel: Position
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        # A sub-sequence number beside the sentinel would make Java's lease cleanup assume that the lease has been
        # read.
        if self.sentinel not in {LATEST, TRIM_HORIZON, AT_TIMESTAMP}:
            raise ConfigError(
                f"initial position {self.sentinel}: expected LATEST, TRIM_HORIZON or AT_TIMESTAMP"
            )
        if (self.sentinel == AT_TIMESTAMP) != (self.timestamp_ms is not None):
            raise ConfigError("a timestamp is required for AT_TIMESTAMP, and allowed only with it")
