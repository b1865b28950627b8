"""Everything worth telling about a running member, as one closed list of values.

Runtimes report facts to a single callable, `observe(event)`. Logs, CloudWatch, Prometheus, the health answer and the
tests are such callables, so they all tell the same story. No event carries a payload or a partition key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from leasehold.core.model import LeaseKey, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Something about one stream. A member of several says of which; in a member of one there is nothing to say."""

    stream: StreamIdentifier | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ShardEvent(StreamEvent):
    """Something about one shard. Shards of two streams may have one id, so whoever keeps a book goes by `shard_key`."""

    shard: ShardId

    @property
    def shard_key(self) -> LeaseKey:
        """The shard's own name among all of the member: its id, with the stream before it where there are several."""
        return lease_key(self.shard, self.stream)


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """Something about a lease that is ours. Its key says of which stream it is."""

    key: LeaseKey
    shard: ShardId

    @property
    def shard_key(self) -> LeaseKey:
        """The shard's own name among all shards of the member."""
        return self.key


@dataclass(frozen=True, slots=True)
class MemberStarted:
    """A member joined its fleet. `stream` names all of them, where there are several."""

    worker: WorkerId
    application: str
    stream: str


@dataclass(frozen=True, slots=True)
class MemberStopped:
    """A member has left, having released what it could."""

    worker: WorkerId
    released: int


@dataclass(frozen=True, slots=True)
class FleetRefreshed:
    """One look at the lease table, which took `time_ms`. `unclaimed` leases have no live owner."""

    leases: int
    unclaimed: int
    mine: int
    workers: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ShardsSynced(StreamEvent):
    """The stream's shards were compared with the leases."""

    shards: int
    created: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class RowRejected:
    """A row of the lease table cannot be read and is passed over."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class LeaseTaken(LeaseEvent):
    """We serve this lease now. `silent_ms` is how long its last owner had been silent; None if it was free."""

    taken_from: WorkerId | None
    silent_ms: int | None
    counter: int
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class HandoffRequested:
    """A lease is moving without loss of time: `to` wants it from `holder`, who finishes what it has in hand."""

    key: LeaseKey
    owner: WorkerId
    to: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseAssigned:
    """As the leader, we gave a lease that nobody read to a member, or ended a handoff that did not end by itself."""

    key: LeaseKey
    taken_from: WorkerId | None
    to: WorkerId


@dataclass(frozen=True, slots=True)
class LeadershipTaken:
    """We lead the fleet now. `taken_from` is a leader that fell silent; None if there was none."""

    worker: WorkerId
    taken_from: WorkerId | None


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """We no longer lead the fleet; another member will."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class FleetUpgraded:
    """We were the one to decide it, and gave a fleet that upgrades from KCL 2.x its leader; all members change over."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseLost(LeaseEvent):
    """We no longer serve this lease, and did not want that. Records since the checkpoint will be read again."""

    owner: WorkerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseReleased(LeaseEvent):
    """We let go of a lease in good order. `to` is the next owner, where one waits."""

    to: WorkerId | None


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """One round of heartbeats: leases held, less those whose heartbeat failed; the slowest one's time."""

    renewed: int
    failed: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShardStalled(LeaseEvent):
    """A shard makes no progress here; its lease is given back, so that another member may try."""

    idle_ms: int


@dataclass(frozen=True, slots=True)
class ShardBlockedOnParents(ShardEvent):
    """A shard waits until its parents have ended."""

    parents: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class ReadingStarted(ShardEvent):
    """A shard is read from here."""

    position: Position


@dataclass(frozen=True, slots=True)
class PageRead(ShardEvent):
    """One answer of a shard: user records and their bytes, and how far behind its tip it was.

    `last` is the position of the last user record, so that a watcher can tell when all of them are done.
    """

    records: int
    size_bytes: int
    millis_behind: int | None
    time_ms: int
    last: Position | None = None


@dataclass(frozen=True, slots=True)
class ReadThrottled(ShardEvent):
    """A shard refused a read; the next try is `wait_ms` away."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class ReadFailed(ShardEvent):
    """A read failed for another reason; the next try is `wait_ms` away."""

    error: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class IteratorExpired(ShardEvent):
    """An iterator was too old; reading goes on with a new one, nothing is lost."""


@dataclass(frozen=True, slots=True)
class GapFound(ShardEvent):
    """Records may have been trimmed before they were read, and be lost to this application; `Gap` says how sure
    that is.
    """

    gap: Gap


@dataclass(frozen=True, slots=True)
class DeaggregationFailed(ShardEvent):
    """An aggregate could not be taken apart as its producer meant; `dropped` user records were not delivered."""

    position: Position
    reason: str
    dropped: int


@dataclass(frozen=True, slots=True)
class BatchHandled(ShardEvent):
    """A handler returned, or a program that iterates over the shard said so; everything up to `end` is done."""

    records: int
    size_bytes: int
    end: Position
    time_ms: int
    millis_behind: int | None


@dataclass(frozen=True, slots=True)
class HandlerFailed(ShardEvent):
    """A handler raised. `error` is the exception's type; its text may hold what must not be told."""

    start: Position
    end: Position
    records: int
    attempt: int
    error: str


@dataclass(frozen=True, slots=True)
class RecordDeadLettered(ShardEvent):
    """One record was put aside, and the shard goes on."""

    position: Position
    error: str


@dataclass(frozen=True, slots=True)
class RecordSkipped(ShardEvent):
    """One record was passed over, because the settings say so in as many words."""

    position: Position
    error: str


@dataclass(frozen=True, slots=True)
class Checkpointed(ShardEvent):
    """Everything up to `position` is done, and the table knows it; to write that took `time_ms`."""

    position: Position
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProcessorCalled(ShardEvent):
    """A life-cycle class returned from `initialize`, `shard_ended`, `shutdown_requested` or `lease_lost`."""

    method: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShardEnded(ShardEvent):
    """A shard is done to its end; its children have leases."""

    children: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class LeaseDeleted:
    """The lease of a finished shard was removed."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """A step of the member failed and will be tried again; `step` says which."""

    operation: str
    error: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker stops: it met something that trying again does not cure. `error` is the exception's type only."""

    error: str


Event = (
    MemberStarted
    | MemberStopped
    | FleetRefreshed
    | ShardsSynced
    | RowRejected
    | LeaseTaken
    | HandoffRequested
    | LeaseAssigned
    | LeadershipTaken
    | LeadershipEnded
    | FleetUpgraded
    | LeaseLost
    | LeaseReleased
    | LeasesRenewed
    | ShardStalled
    | ShardBlockedOnParents
    | ReadingStarted
    | PageRead
    | ReadThrottled
    | ReadFailed
    | IteratorExpired
    | GapFound
    | DeaggregationFailed
    | BatchHandled
    | HandlerFailed
    | RecordDeadLettered
    | RecordSkipped
    | Checkpointed
    | ProcessorCalled
    | ShardEnded
    | LeaseDeleted
    | OperationFailed
    | WorkerFailed
)

Observer = Callable[[Event], None]


def with_stream(stream: StreamIdentifier | None, observe: Observer) -> Observer:
    """An observer for one stream: what it is told is told on, with the name of the stream where it lacks one."""
    if stream is None:
        return observe

    def observe_stream(event: Event) -> None:
        observe(replace(event, stream=stream) if isinstance(event, StreamEvent) else event)

    return observe_stream
