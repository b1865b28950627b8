"""The vocabulary: shards, leases, and the ids that name them. Values only; what may happen to them is decided
elsewhere in `core`.
"""

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
# A random id that a member writes into a lease when it begins to serve it. Together with the owner it tells
# this holding apart from an earlier one of the same worker, and from a second process with the same id.
LeaseSessionId = NewType("LeaseSessionId", str)
# `account:stream:epoch` in multi-stream mode; single-stream leases carry none.
StreamIdentifier = NewType("StreamIdentifier", str)

HASH_KEY_MAX: Final = 2**128 - 1
_STREAM_IDENTIFIER: Final = re.compile(r"[0-9]{1,20}:[^:\x00-\x1f\x7f]{1,128}:[0-9]{1,20}")


@dataclass(frozen=True, slots=True, order=True)
class HashRange:
    """An inclusive range of hash keys."""

    start: int
    end: int

    def __post_init__(self) -> None:
        # Java refuses start == end, and Kinesis never makes such a shard.
        if not 0 <= self.start < self.end <= HASH_KEY_MAX:
            raise ConfigError(
                f"hash key range {self.start}..{self.end}: expected 0 <= start < end <= 2^128-1"
            )

    def __contains__(self, hash_key: int) -> bool:
        return self.start <= hash_key <= self.end


WHOLE_HASH_RANGE: Final = HashRange(0, HASH_KEY_MAX)


@dataclass(frozen=True, slots=True)
class Shard:
    """A shard as the service lists it. `parents` names one shard after a split, two after a merge."""

    id: ShardId
    hash_range: HashRange
    starting_sequence_number: str
    ending_sequence_number: str | None = None
    parents: tuple[ShardId, ...] = ()

    @property
    def is_open(self) -> bool:
        """An open shard still takes new records."""
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    """A child as the last answer of a closed shard names it."""

    id: ShardId
    parents: tuple[ShardId, ...]
    hash_range: HashRange


@dataclass(frozen=True, slots=True)
class Pin:
    """A prepared checkpoint: where the batch that begins at the checkpoint ends, with the writer's note."""

    end: Position
    state: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One row of the lease table, as far as we understand it.

    `owner` is absent on a free lease. While `checkpoint_owner` is present the lease is being handed over:
    that worker still serves it, and `owner` will.
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
    # When a lease at LATEST was made: what that word means to whoever reads it after its first reader is gone.
    latest_at_ms: int | None = None
    # Left by another member for the owner, who should look at the table; each word is another than the one before.
    nudge: str | None = None

    @property
    def actual_owner(self) -> WorkerId | None:
        """Who may read and checkpoint now."""
        return self.checkpoint_owner or self.owner

    @property
    def is_in_handoff(self) -> bool:
        """True from the leader's request until the old owner lets go."""
        return self.checkpoint_owner is not None


def lease_key(shard_id: ShardId, stream: StreamIdentifier | None = None) -> LeaseKey:
    """The key of a shard's lease: the shard id, prefixed by the stream in multi-stream mode.

    >>> lease_key(ShardId("shardId-000000000003"), StreamIdentifier("123456789012:orders:1700000000"))
    '123456789012:orders:1700000000:shardId-000000000003'
    """
    return LeaseKey(f"{stream}:{shard_id}" if stream else shard_id)


def parent_keys(lease: Lease) -> frozenset[LeaseKey]:
    """The keys of the leases that a shard's parents have or had; parents are of the same stream."""
    return frozenset(lease_key(parent, lease.stream) for parent in lease.parents)


def parse_lease_key(key: LeaseKey) -> tuple[StreamIdentifier | None, ShardId]:
    """The stream and the shard that a lease key names; the way back from `lease_key`.

    >>> parse_lease_key(LeaseKey("123456789012:orders:1700000000:shardId-000000000003"))
    ('123456789012:orders:1700000000', 'shardId-000000000003')
    """
    stream, _, shard = key.rpartition(":")
    return StreamIdentifier(stream) if stream else None, ShardId(shard)


def stream_identifier(account: str, name: str, created_s: int) -> StreamIdentifier:
    """How a stream is told apart in a table of several: another one of that name, made later, is another stream.

    >>> stream_identifier("123456789012", "orders", 1700000000)
    '123456789012:orders:1700000000'
    """
    return StreamIdentifier(f"{account}:{name}:{created_s}")


def is_stream_identifier(text: str) -> bool:
    """Whether a text is account:stream:epoch.

    >>> is_stream_identifier("123456789012:orders:1700000000"), is_stream_identifier("orders")
    (True, False)
    """
    return _STREAM_IDENTIFIER.fullmatch(text) is not None


def have_same_stream_name(one: StreamIdentifier, other: StreamIdentifier) -> bool:
    """Whether two identifiers are of one account and name: at one time there is only one such stream.

    >>> have_same_stream_name(StreamIdentifier("1:orders:1700000000"), StreamIdentifier("1:orders:1"))
    True
    """
    return one.rpartition(":")[0] == other.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """Where a fleet without history begins. `timestamp_ms` goes with `AT_TIMESTAMP` and only with it."""

    sentinel: Position
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        # A number beside the word would make Java's cleanup believe that a lease has been read.
        if self.sentinel not in {LATEST, TRIM_HORIZON, AT_TIMESTAMP}:
            raise ConfigError(
                f"initial position {self.sentinel}: expected LATEST, TRIM_HORIZON or AT_TIMESTAMP"
            )
        if (self.sentinel == AT_TIMESTAMP) != (self.timestamp_ms is not None):
            raise ConfigError("a timestamp goes with AT_TIMESTAMP, and only with it")
