"""The state of one stream, and the few changes from which everything else is made.

Theory of operation. A stream's clock never goes back: each call passes in the time, and the stream takes the
later of that and the latest time it has seen. A reshard happens at least one millisecond after the last write,
so records of a parent arrived before it closed and records of a child after it opened, and at any moment the open
shards tile the hash range exactly. Changes that take time (creating, resharding, deleting) are kept as a
value with a due time and take effect when the first call after it comes in, as of the due time.

What a caller may ask for is decided in `reshard`, `writing`, `reading`, `listing` and `service`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from leasehold.core.model import HashRange, ShardId
from leasehold.kinesis_model.api_errors import in_use_error, not_found_error
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.shard import ShardState

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
    """A millisecond time that rises with every use, so that no two generations of shards share one."""

    last_ms: int = 0

    def next(self, now_ms: int) -> int:
        self.last_ms = max(now_ms, self.last_ms + 1)
        return self.last_ms


@dataclass(frozen=True, slots=True)
class CreateShards:
    """The first shards of a new stream."""

    count: int


@dataclass(frozen=True, slots=True)
class Split:
    """One shard becomes two; `hash_key` is the first of the second."""

    shard_id: ShardId
    hash_key: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Two neighbours become one; `lower` holds the lower hash keys."""

    lower: ShardId
    upper: ShardId


@dataclass(frozen=True, slots=True)
class Scale:
    """As many shards of equal size as asked for."""

    target: int


Reshard = CreateShards | Split | Merge | Scale


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change under way: what the stream says meanwhile, when it is done, what happens then."""

    status: StreamStatus
    due_ms: int
    reshard_change: Reshard | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class StreamState:
    """One stream: its settings, its shards, its consumers."""

    name: str
    arn: str
    account_id: str
    created_ms: int
    epochs: Epochs
    mode: StreamMode = StreamMode.PROVISIONED
    retention_hours: int = RETENTION_HOURS_MIN
    record_kib_max: int = RECORD_KIB_DEFAULT
    kms_key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    shard_level_metrics: set[str] = field(default_factory=set)
    consumers: dict[str, Consumer] = field(default_factory=dict)
    scaled_at_ms: list[int] = field(default_factory=list)
    shards: dict[ShardId, ShardState] = field(default_factory=dict)
    next_index: int = 0
    pending: PendingChange | None = None
    clock_ms: int = field(init=False)
    # When a record was written last, or a shard made or trimmed.
    latest_write_ms: int = field(init=False)
    # Records that arrived before this are gone, whatever the retention becomes later.
    trimmed_until_ms: int = field(init=False)
    _open: list[ShardState] = field(init=False, default_factory=list)
    _open_starts: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.clock_ms = self.created_ms
        self.latest_write_ms = self.created_ms
        self.trimmed_until_ms = self.created_ms
        self.index_open_shards()

    @property
    def status(self) -> StreamStatus:
        return self.pending.status if self.pending else StreamStatus.ACTIVE

    @property
    def encryption_type(self) -> str:
        return "KMS" if self.kms_key else "NONE"

    @property
    def open_shards(self) -> Sequence[ShardState]:
        """The shards that take new records, by hash key."""
        return self._open

    def advance_clock(self, now_ms: int) -> int:
        """The stream's time: never back."""
        self.clock_ms = max(now_ms, self.clock_ms)
        return self.clock_ms

    def begin_write(self) -> int:
        """The time of a write that happens now."""
        self.latest_write_ms = self.clock_ms
        return self.clock_ms

    def begin_reshard(self, at_ms: int) -> int:
        """The time of a reshard that is due at this time: after everything that was written before."""
        self.latest_write_ms = max(at_ms, self.latest_write_ms + 1)
        self.advance_clock(self.latest_write_ms)
        return self.latest_write_ms

    @property
    def horizon_ms(self) -> int:
        """The trim horizon: what arrived before is past retention."""
        return max(self.trimmed_until_ms, self.clock_ms - self.retention_hours * HOUR_MS)

    def shard(self, shard_id: str) -> ShardState:
        """The shard of this id without its trimmed records, unless it closed before the trim horizon."""
        found = self.shards.get(ShardId(shard_id))
        if found is None or not self._trim(found):
            raise not_found_error(
                f"Shard {shard_id} in stream {self.name} under account {self.account_id} does not exist: it "
                "never did, or all its records are past the retention period. ListShards names those that do."
            )
        return found

    def open_shard_for(self, hash_key: int) -> ShardState:
        return self._open[bisect_right(self._open_starts, hash_key) - 1]

    def children_of(self, shard: ShardState) -> list[ShardState]:
        return [self.shards[child] for child in shard.children if child in self.shards]

    def open(self, ranges: Iterable[HashRange], at_ms: int) -> None:
        """Begin with shards that have no parents."""
        epoch_ms = self.epochs.next(at_ms)
        self.trimmed_until_ms = self.latest_write_ms = at_ms
        for hash_range in ranges:
            self._add_shard(hash_range, epoch_ms, at_ms, ())
        self.index_open_shards()

    def replace(self, parents: Sequence[ShardState], ranges: Iterable[HashRange], at_ms: int) -> None:
        """Close the parents and open children that cover the same hash keys."""
        epoch_ms = self.epochs.next(at_ms)
        for parent in parents:
            parent.closed_ms = at_ms
        for hash_range in ranges:
            child = self._add_shard(hash_range, epoch_ms, at_ms, tuple(parent.id for parent in parents))
            for parent in parents:
                parent.children.append(child.id)
        self.index_open_shards()

    def trim(self) -> None:
        """Forget what is before the trim horizon, for good: a longer retention does not bring it back."""
        self.trimmed_until_ms = self.horizon_ms
        for shard in list(self.shards.values()):
            self._trim(shard)

    def trim_all_records(self) -> None:
        """Forget all records written so far, and all closed shards."""
        self.trimmed_until_ms = self.begin_reshard(self.clock_ms)
        self.trim()

    def require_active(self) -> None:
        if self.status is not StreamStatus.ACTIVE:
            raise in_use_error(
                f"Stream {self.name} under account {self.account_id} not ACTIVE, instead in state "
                f"{self.status}: wait for it and call again."
            )

    def require_readable(self) -> None:
        """Reading and writing go on while a stream is UPDATING, but not before and not after its life."""
        if self.status in {StreamStatus.CREATING, StreamStatus.DELETING}:
            raise not_found_error(
                f"Stream {self.name} under account {self.account_id} not found: it is {self.status}."
            )

    def index_open_shards(self) -> None:
        """Sort the open shards anew for routing."""
        self._open = sorted(
            (shard for shard in self.shards.values() if shard.is_open), key=lambda shard: shard.hash_range
        )
        self._open_starts = [shard.hash_range.start for shard in self._open]

    def _trim(self, shard: ShardState) -> bool:
        """Trim one shard; false if nothing is left of it."""
        if shard.is_open_after(self.horizon_ms):
            shard.log.trim_before(self.horizon_ms)
            return True
        del self.shards[shard.id]
        return False

    def _add_shard(
        self, hash_range: HashRange, epoch_ms: int, at_ms: int, parents: tuple[ShardId, ...]
    ) -> ShardState:
        shard = ShardState(
            index=self.next_index, hash_range=hash_range, epoch_ms=epoch_ms, opened_ms=at_ms, parents=parents
        )
        self.shards[shard.id] = shard
        self.next_index += 1
        return shard
