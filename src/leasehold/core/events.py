"""Everything a running member reports, as one closed list of event values.

The runtimes report events to one callable, `observe(event)`. Logs, CloudWatch, Prometheus, the health endpoint and
the tests are such observers, so all of them show the same facts. No event carries a payload or a partition key.

The docstring of an event is its text in docs/reference/events.md (`make reference`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from leasehold.core.finding import Finding
from leasehold.core.model import LeaseKey, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap, IteratorStart


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of one stream. `stream` is set only by a member of several streams."""

    stream: StreamIdentifier | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class ShardEvent(StreamEvent):
    """An event of one shard. Shards of two streams may have the same id, so observers index by `shard_key`."""

    shard: ShardId

    @property
    def shard_key(self) -> LeaseKey:
        """Unique among all shards of the member: the shard id, prefixed by the stream if there are several."""
        return lease_key(self.shard, self.stream)


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """An event of a lease that this member owns. The key names the stream."""

    key: LeaseKey
    shard: ShardId

    @property
    def shard_key(self) -> LeaseKey:
        """Unique among all shards of the member."""
        return self.key


@dataclass(frozen=True, slots=True)
class MemberStarted:
    """A member joined its fleet. `stream` lists all streams if there are several."""

    worker: WorkerId
    application: str
    stream: str


@dataclass(frozen=True, slots=True)
class MemberStopped:
    """A member left the fleet and released `released` leases."""

    worker: WorkerId
    released: int


@dataclass(frozen=True, slots=True)
class FleetRefreshed:
    """The member read the lease table, in `time_ms`. `unclaimed` leases have no live owner.

    `speaks_for_fleet` is True for one member at a time: the leader, or the first of the peers. Only this one publishes
    the totals of the fleet, so sums over all members are right.
    """

    leases: int
    unclaimed: int
    mine: int
    workers: int
    time_ms: int = 0
    speaks_for_fleet: bool = False


@dataclass(frozen=True, slots=True)
class FleetDecided:
    """As the leader, the member decided which worker gets which lease, and wrote it, in `time_ms`.

    `expired` leases had no reader; `left_free` of them stay so. `failed` writes failed, or another member was faster.
    """

    leases: int
    workers: int
    expired: int
    left_free: int
    assigned: int
    handed_off: int
    failed: int
    unreadable_rows: int
    unreadable_reports: int
    failing_workers: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShardsSynced(StreamEvent):
    """The stream's shards were compared with the leases, and `created` leases were created."""

    shards: int
    created: int
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class RowRejected:
    """A row of the lease table may be a lease and cannot be read: [its shard is blocked](docs/algorithm.md#the-row).

    Reported at each read while this lasts.
    """

    key: str
    problem: str
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class RowRecovered:
    """A row that was rejected can be read again, or was deleted."""

    key: str


@dataclass(frozen=True, slots=True)
class RowIgnored:
    """A row of the lease table has nothing of a lease. It is left alone and blocks nothing. Reported once."""

    key: str
    problem: str


@dataclass(frozen=True, slots=True)
class StreamRecreated(StreamEvent):
    """The stream was [deleted and created again](docs/worker.md#a-stream-that-was-deleted-and-created-again).

    `problem` says what shows it, and what to do or what happens now. If `is_fatal`, the member stops.
    """

    name: str
    problem: str
    is_fatal: bool


@dataclass(frozen=True, slots=True)
class StreamsChanged:
    """A member that [discovers its streams](docs/worker.md#streams-that-come-and-go) reads others from now on."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaseRestarted:
    """A lease of an earlier stream begins anew, at the oldest record of the recreated stream.

    `checkpoint` is its former checkpoint.
    """

    key: LeaseKey
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class LeaseTaken(LeaseEvent):
    """The member started to serve a lease.

    `taken_from` is the owner from which it was taken without its help; None if the lease was free, or if it was
    assigned or handed over to this member. `silent_ms` is the time since the last heartbeat of that owner.
    """

    taken_from: WorkerId | None
    silent_ms: int | None
    counter: int
    checkpoint: Position


@dataclass(frozen=True, slots=True)
class HandoffRequested:
    """Member `to` requested a lease from `owner`, which first finishes its current batch."""

    key: LeaseKey
    owner: WorkerId
    to: WorkerId


@dataclass(frozen=True, slots=True)
class HandoffWithdrawn:
    """The member, as the leader, withdrew an overdue handoff to `to`, which takes no leases. `owner` keeps it."""

    key: LeaseKey
    owner: WorkerId
    to: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseAssigned:
    """The member, as the leader, assigned a lease that no member read, or ended a handoff that took too long."""

    key: LeaseKey
    taken_from: WorkerId | None
    to: WorkerId


@dataclass(frozen=True, slots=True)
class LeadershipTaken:
    """The member became the leader. `taken_from` is the leader that stopped its heartbeats; None if there was none."""

    worker: WorkerId
    taken_from: WorkerId | None


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """The member is no longer the leader; another member will be."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True, slots=True)
class FleetUpgraded:
    """The member changed the fleet from KCL 2.x to one with a leader ([how](docs/algorithm.md#the-end-of-an-upgrade)).

    All members follow within a minute.
    """

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class LeaseLost(LeaseEvent):
    """The member lost a lease that it wanted to keep. Records after the checkpoint will be read again."""

    owner: WorkerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class LeaseReleased(LeaseEvent):
    """The member released a lease. `to` is the next owner, if one is waiting."""

    to: WorkerId | None


@dataclass(frozen=True, slots=True)
class LeasesRenewed:
    """One round of heartbeats: leases renewed, leases whose heartbeat failed, and the time of the slowest heartbeat."""

    renewed: int
    failed: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShardStalled(LeaseEvent):
    """A shard has made no progress on this member for `stalled_after`. Its lease is released, so another can try."""

    idle_ms: int


@dataclass(frozen=True, slots=True)
class ShardBlockedOnParents(ShardEvent):
    """A shard waits until its parents have ended."""

    parents: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class ReadingStarted(ShardEvent):
    """Reading of a shard started at `position`."""

    position: Position


@dataclass(frozen=True, slots=True)
class PageRead(ShardEvent):
    """One GetRecords response, or one event of a subscription: the number and bytes of user records, and how far behind
    the tip it was.

    `last` is the position of the last user record, so that an observer can tell when the page is done. `time_ms` is
    None for an event, which nobody asked for.
    """

    records: int
    size_bytes: int
    millis_behind: int | None
    time_ms: int | None
    last: Position | None = None


@dataclass(frozen=True, slots=True)
class ReadThrottled(ShardEvent):
    """Kinesis throttled a read; the next attempt follows in `wait_ms`."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class ReadFailed(ShardEvent):
    """A read failed for another reason; the next attempt follows in `wait_ms`."""

    error: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class IteratorExpired(ShardEvent):
    """A shard iterator expired. Reading continues with a new one; no record is lost."""


@dataclass(frozen=True, slots=True)
class ConsumerFound(StreamEvent):
    """The registered consumer of the application is ACTIVE.

    The shards of stream `name` are read by [enhanced fan-out](docs/worker.md#enhanced-fan-out).
    """

    name: str
    consumer: str
    arn: str


@dataclass(frozen=True, slots=True)
class FanOutRefused(StreamEvent):
    """The service refuses enhanced fan-out for stream `name`. Its shards are polled until it is possible again."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True)
class FanOutResumed(StreamEvent):
    """The service has accepted a subscription to stream `name` again. Its shards are no longer polled."""

    name: str


@dataclass(frozen=True, slots=True)
class Subscribed(ShardEvent):
    """Kinesis accepted a subscription to a shard, which begins at `start`."""

    start: IteratorStart


@dataclass(frozen=True, slots=True)
class SubscriptionEnded(ShardEvent):
    """Kinesis ended a subscription after its five minutes and `events` events. The next one follows at once."""

    events: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class SubscriptionLost(ShardEvent):
    """A subscription broke, was silent for 20 s, or was replaced. The next one follows in `wait_ms`."""

    reason: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class GapFound(ShardEvent):
    """Records were probably trimmed before they were read, and are **lost** ([gaps](docs/observing.md#gaps))."""

    gap: Gap


@dataclass(frozen=True, slots=True)
class DeaggregationFailed(ShardEvent):
    """An aggregate could not be split as its producer intended. `dropped` user records were not delivered."""

    position: Position
    reason: str
    dropped: int


@dataclass(frozen=True, slots=True)
class BatchHandled(ShardEvent):
    """A handler returned, or a program that iterates over a shard marked a batch as done. All records up to `end` are
    done.
    """

    records: int
    size_bytes: int
    end: Position
    time_ms: int
    millis_behind: int | None


@dataclass(frozen=True, slots=True)
class HandlerFailed(ShardEvent):
    """A handler raised. `error` is the exception's type only, because its text may contain payload.

    `reason` is the sentence of an error that this package raised, which contains none.
    """

    start: Position
    end: Position
    records: int
    attempt: int
    error: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecordDeadLettered(ShardEvent):
    """One record was sent to the dead letters, and the shard continues."""

    position: Position
    error: str


@dataclass(frozen=True, slots=True)
class RecordSkipped(ShardEvent):
    """One record was skipped, because the settings allow it explicitly: it is **lost**."""

    position: Position
    error: str


@dataclass(frozen=True, slots=True)
class Checkpointed(ShardEvent):
    """A checkpoint was written in `time_ms`. All records up to `position` are done."""

    position: Position
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class ProcessorCalled(ShardEvent):
    """A record processor returned from `initialize`, `shard_ended`, `shutdown_requested` or `lease_lost`."""

    method: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class ShardEnded(ShardEvent):
    """A shard was processed to its end; its children have leases."""

    children: tuple[ShardId, ...]


@dataclass(frozen=True, slots=True)
class LeaseDeleted:
    """The lease of a finished shard was deleted."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class OperationFailed:
    """An operation of the member failed and will be retried."""

    operation: str
    error: str


@dataclass(frozen=True, slots=True)
class CallCount:
    """How often one operation of an AWS service was called, and how many answers were throttled or failed otherwise."""

    operation: str
    calls: int
    throttled: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return f"{self.operation}:{self.calls}"


@dataclass(frozen=True, slots=True)
class KinesisCallsCounted:
    """The calls of this member to Kinesis within the last `time_ms`. Not reported if there were none."""

    counts: tuple[CallCount, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class FindingBegan:
    """A notice or a problem of this member, of one of its shards or of the fleet [has lasted for two
    reviews](docs/observing.md#the-same-findings-in-a-running-fleet).
    """

    finding: Finding


@dataclass(frozen=True, slots=True)
class FindingEnded:
    """What `FindingBegan` reported is over, after `lasted_ms`."""

    finding: Finding
    lasted_ms: int


@dataclass(frozen=True, slots=True)
class FindingsReviewed:
    """All notices and problems that last now, with up-to-date sentences, at each review while there are some."""

    findings: tuple[Finding, ...]

    @property
    def codes(self) -> tuple[str, ...]:
        """What kinds of findings there are."""
        return tuple(sorted({finding.code for finding in self.findings}))


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker stops because of an error that a retry does not fix. `error` is the exception's type only."""

    error: str


Event = (
    MemberStarted
    | MemberStopped
    | FleetRefreshed
    | FleetDecided
    | ShardsSynced
    | RowRejected
    | RowRecovered
    | RowIgnored
    | StreamRecreated
    | StreamsChanged
    | LeaseRestarted
    | LeaseTaken
    | HandoffRequested
    | HandoffWithdrawn
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
    | ConsumerFound
    | FanOutRefused
    | FanOutResumed
    | Subscribed
    | SubscriptionEnded
    | SubscriptionLost
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
    | KinesisCallsCounted
    | FindingBegan
    | FindingEnded
    | FindingsReviewed
    | WorkerFailed
)

Observer = Callable[[Event], None]


def with_stream(stream: StreamIdentifier | None, observe: Observer) -> Observer:
    """An observer that adds the stream to events that have none, and passes them on."""
    if stream is None:
        return observe

    def observe_stream(event: Event) -> None:
        observe(replace(event, stream=stream) if isinstance(event, StreamEvent) else event)

    return observe_stream
