"""The state of one stream, and the basic changes that every operation is made of.

Invariants:

- The stream's clock never goes back. Each call passes in the time; the stream uses the later of that time and the
  latest time it has seen.
- A reshard happens at least one millisecond after the last write. So the records of a parent arrived before the parent
  closed, and the records of a child arrived after the child opened.
- At any moment the hash ranges of the open shards cover all hash keys without gap or overlap.
- A change that takes time (create, reshard, delete) is stored as a `PendingChange` with a due time. The first call
  after the due time applies it, as of the due time.

The modules `resharding`, `writing`, `reading`, `listing` and `service` decide which requests are allowed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from leasehold.core.model import HashRange, ShardId
from leasehold.kinesis_model.account import Account
from leasehold.kinesis_model.api_errors import in_use_error, not_found_error
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.sequence_numbers import SequenceNumberRange
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream_clock import StreamClock

HOUR_MS: Final = 3_600_000
RETENTION_HOURS_MIN: Final = 24
RETENTION_HOURS_MAX: Final = 8760
RECORD_KIB_DEFAULT: Final = 1024


class StreamStatus(StrEnum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    UPDATING = "UPDATING"
    DELETING = "DELETING"


class StreamMode(StrEnum):
    PROVISIONED = "PROVISIONED"
    ON_DEMAND = "ON_DEMAND"


@dataclass(slots=True)
class Epochs:
    """Issues creation times for shards. Each one is higher than the last, so no two reshards share one."""

    last_ms: int = 0

    def next(self, now_ms: int) -> int:
        self.last_ms = max(now_ms, self.last_ms + 1)
        return self.last_ms


@dataclass(frozen=True, slots=True)
class CreateShards:
    """Create the first shards of a new stream."""

    count: int


@dataclass(frozen=True, slots=True)
class Split:
    """Split one shard into two. `hash_key` is the first hash key of the second child."""

    shard_id: ShardId
    hash_key: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge two adjacent shards into one. `lower` has the lower hash keys."""

    lower: ShardId
    upper: ShardId


@dataclass(frozen=True, slots=True)
class Scale:
    """Split and merge until there are `target` shards of equal size."""

    target: int


Reshard = CreateShards | Split | Merge | Scale


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change in progress: the status until `due_ms`, and the reshard to apply then."""

    status: StreamStatus
    due_ms: int
    reshard: Reshard | None = None


@dataclass(slots=True)
class StreamConfig:
    """The settings of a stream that a client can change."""

    mode: StreamMode = StreamMode.PROVISIONED
    retention_hours: int = RETENTION_HOURS_MIN
    record_kib_max: int = RECORD_KIB_DEFAULT
    kms_key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    shard_level_metrics: set[str] = field(default_factory=set)

    @property
    def encryption_type(self) -> str:
        return "KMS" if self.kms_key else "NONE"


class _OpenShards:
    """The open shards, sorted by hash key. The shard for a hash key is found by bisection."""

    def __init__(self, shards: Iterable[ShardState]) -> None:
        self.shards = sorted((shard for shard in shards if shard.is_open), key=lambda shard: shard.hash_range)
        self._starts = [shard.hash_range.start for shard in self.shards]

    def for_hash_key(self, hash_key: int) -> ShardState:
        return self.shards[bisect_right(self._starts, hash_key) - 1]


@dataclass(slots=True, eq=False, kw_only=True)
class StreamState:
    """One stream: its settings, its clock, its shards and its consumers."""

    name: str
    account: Account
    created_ms: int
    epochs: Epochs
    clock: StreamClock
    config: StreamConfig = field(default_factory=StreamConfig)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    scaled_at_ms: list[int] = field(default_factory=list)
    shards: dict[ShardId, ShardState] = field(default_factory=dict)
    next_shard_index: int = 0
    pending: PendingChange | None = None
    _open: _OpenShards = field(init=False)

    def __post_init__(self) -> None:
        self._open = _OpenShards(self.shards.values())

    @property
    def arn(self) -> str:
        return self.account.stream_arn(self.name)

    @property
    def label(self) -> str:
        """The stream and its account, as the messages of the service name them."""
        return f"{self.name} under account {self.account.id}"

    @property
    def status(self) -> StreamStatus:
        return self.pending.status if self.pending else StreamStatus.ACTIVE

    @property
    def open_shards(self) -> Sequence[ShardState]:
        """The shards that accept records, sorted by hash key."""
        return self._open.shards

    @property
    def horizon_ms(self) -> int:
        """The trim horizon: records that arrived earlier are past the retention period."""
        retained_since_ms = self.clock.now_ms - self.config.retention_hours * HOUR_MS
        return max(self.clock.trimmed_until_ms, retained_since_ms)

    def shard(self, shard_id: str) -> ShardState:
        """Return a shard without its trimmed records. Refuse a shard that closed before the trim horizon."""
        found = self.shards.get(ShardId(shard_id))
        if found is None or not self._trim(found):
            raise not_found_error(
                f"Shard {shard_id} in stream {self.label} does not exist: it was never created, or all its records are "
                "past the retention period. Call ListShards for the shards that exist."
            )
        return found

    def open_shard_for(self, hash_key: int) -> ShardState:
        return self._open.for_hash_key(hash_key)

    def children_of(self, shard: ShardState) -> list[ShardState]:
        return [self.shards[child] for child in shard.children if child in self.shards]

    def create_shards(self, ranges: Iterable[HashRange], at_ms: int) -> None:
        """Create the first shards. They have no parents."""
        epoch_ms = self.epochs.next(at_ms)
        self.clock.trimmed_until_ms = self.clock.latest_write_ms = at_ms
        for hash_range in ranges:
            self._add_shard(hash_range, epoch_ms, at_ms, ())
        self._open = _OpenShards(self.shards.values())

    def replace_shards(self, parents: Sequence[ShardState], ranges: Iterable[HashRange], at_ms: int) -> None:
        """Close the parents and open children that cover the same hash keys."""
        epoch_ms = self.epochs.next(at_ms)
        for parent in parents:
            parent.closed_ms = at_ms
        for hash_range in ranges:
            child = self._add_shard(hash_range, epoch_ms, at_ms, tuple(parent.id for parent in parents))
            for parent in parents:
                parent.children.append(child.id)
        self._open = _OpenShards(self.shards.values())

    def trim(self) -> None:
        """Remove everything before the trim horizon. A longer retention period does not bring it back."""
        self.clock.trimmed_until_ms = self.horizon_ms
        for shard in list(self.shards.values()):
            self._trim(shard)

    def trim_all_records(self) -> None:
        """Remove all records written so far, and all closed shards."""
        self.clock.trimmed_until_ms = self.clock.begin_reshard(self.clock.now_ms)
        self.trim()

    def require_active(self) -> None:
        if self.status is not StreamStatus.ACTIVE:
            raise in_use_error(
                f"Stream {self.label} not ACTIVE, instead in state {self.status}: wait until it is ACTIVE and call "
                "again."
            )

    def require_readable(self) -> None:
        """Refuse reads and writes before the stream is created and while it is deleted. UPDATING allows them."""
        if self.status in {StreamStatus.CREATING, StreamStatus.DELETING}:
            raise not_found_error(f"Stream {self.label} not found: it is {self.status}.")

    def _trim(self, shard: ShardState) -> bool:
        """Trim one shard. Returns False, and removes the shard, if it closed before the trim horizon."""
        if shard.is_open_after(self.horizon_ms):
            shard.log.trim_before(self.horizon_ms)
            return True
        del self.shards[shard.id]
        return False

    def _add_shard(
        self, hash_range: HashRange, epoch_ms: int, at_ms: int, parents: tuple[ShardId, ...]
    ) -> ShardState:
        numbers = SequenceNumberRange(epoch_ms, self.next_shard_index)
        shard = ShardState(numbers=numbers, hash_range=hash_range, opened_ms=at_ms, parents=parents)
        self.shards[shard.id] = shard
        self.next_shard_index += 1
        return shard
