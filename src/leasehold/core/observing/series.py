"""The series of a member, as Prometheus and OpenTelemetry show them: names, labels and values. Has no effects.

The number of series is bounded by the leases of this member: the series of a shard appear when its lease is taken and
disappear when the lease is lost, released or ended. The totals of a fleet are published by one member only (see
`FleetRefreshed.speaks_for_fleet`), so the sum over all members is the total.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from leasehold.core.events import (
    BatchHandled,
    CallCount,
    Checkpointed,
    ConsumerFound,
    DeaggregationFailed,
    Event,
    FanOutRefused,
    FanOutResumed,
    FindingBegan,
    FindingEnded,
    FindingsReviewed,
    FleetDecided,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    HandoffWithdrawn,
    IteratorExpired,
    KinesisCallsCounted,
    LeadershipEnded,
    LeadershipTaken,
    LeaseAssigned,
    LeaseDeleted,
    LeaseLost,
    LeaseReleased,
    LeaseRestarted,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    OperationFailed,
    PageRead,
    ProcessorCalled,
    ReadFailed,
    ReadingStarted,
    ReadThrottled,
    RecordDeadLettered,
    RecordSkipped,
    RowIgnored,
    RowRecovered,
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    StreamRecreated,
    StreamsChanged,
    Subscribed,
    SubscriptionEnded,
    SubscriptionLost,
    WorkerFailed,
)
from leasehold.core.finding import Finding
from leasehold.core.model import LeaseKey, StreamIdentifier, parse_lease_key
from leasehold.core.observing.lag import LagTracker

# Counters of the member, since its start.
MEMBER_COUNTERS: Final = {
    "leases_taken": "Leases that this member started to serve.",
    "leases_lost": "Leases that this member lost although it wanted to keep them: records are read twice.",
    "leases_released": "Leases that this member released.",
    "renewals_failed": "Heartbeats that failed.",
    "shards_ended": "Shards that were processed to their end.",
    "shards_stalled": "Shards whose lease was released because they made no progress.",
    "gaps": "Gaps, where records may have been trimmed before they were read.",
    "dropped_records": "User records of aggregates that were not delivered.",
    "dead_letters": "Records that were sent to the dead letters.",
    "skipped_records": "Records that were skipped, as configured.",
    "operations_failed": "Operations of the member that failed and were retried.",
    "leases_assigned": "Leases that this member assigned as the leader.",
    "handoffs_requested": "Handoffs that this member requested as the leader.",
    "assignments_failed": "Writes of this member as the leader that failed or came too late.",
}

_COUNTER_OF_EVENT: Final[Mapping[type[Event], str]] = {
    LeaseTaken: "leases_taken",
    LeaseLost: "leases_lost",
    LeaseReleased: "leases_released",
    ShardEnded: "shards_ended",
    ShardStalled: "shards_stalled",
    GapFound: "gaps",
    RecordDeadLettered: "dead_letters",
    RecordSkipped: "skipped_records",
    OperationFailed: "operations_failed",
}

# Counters of each shard, while this member owns its lease.
SHARD_COUNTERS: Final = {
    "records_read": "User records read.",
    "bytes_read": "Bytes of user records read.",
    "records_handled": "User records that handlers processed.",
    "bytes_handled": "Bytes of user records that handlers processed.",
    "handler_failures": "Exceptions raised by handlers.",
    "read_failures": "Reads that failed or were throttled.",
    "iterators_expired": "Iterators that expired.",
    "subscriptions": "Subscriptions of enhanced fan-out.",
    "subscriptions_lost": "Subscriptions that broke, were silent for too long, or were replaced.",
    "checkpoints": "Checkpoints written.",
}


# Only a member of several streams has the second label.
SHARD_LABELS: Final = ("shard", "stream")


@dataclass(slots=True)
class _HandlerTime:
    calls: int = 0
    total_ms: int = 0


class Kind(Enum):
    """What the values of a metric mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    INFO = "info"  # always 1; the labels are what it says
    SUMMARY = "summary"  # the number of observations, and their sum


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. `labels` are the values of the family's labels; a sample may omit the last ones."""

    value: float
    labels: tuple[str, ...] = ()
    count: int = 0  # of a summary, whose `value` is the sum


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its samples. The name of a counter has no suffix `_total`."""

    name: str
    text: str
    kind: Kind
    samples: tuple[Sample, ...]
    label_names: tuple[str, ...] = ()


_MEMBER_GAUGES: Final = {
    "leases_held": "Leases that this member serves.",
    "renewal_age_seconds": "Time since the last heartbeat.",
    "findings": "Notices and problems that this member reports now, by the code of `leasehold explain`.",
    "leader": "1 if this member leads the fleet.",
    "fleet_leases": "Leases in the table. One member shows it.",
    "fleet_unclaimed_leases": "Leases without a live owner. One member shows it.",
    "fleet_workers": "Workers that own leases. One member shows it.",
    "leader_unassigned_leases": "Leases that no worker has room for. Only the leader shows it.",
    "leader_failing_workers": "Workers whose report says that they fail, or cannot be read. Only the leader shows it.",
    "leader_decision_seconds": "Time of the last decision and its writes. Only the leader shows it.",
    "stream_shards": "Shards of the stream.",
}
_SHARD_GAUGES: Final = {
    "lag_seconds": "How far the first record that is not done is behind the tip.",
    "idle_seconds": "Time since the last progress.",
    "records_in_flight": "User records of pages that are not completely done.",
}

# Every metric, by its name.
FAMILIES: Final[Mapping[str, tuple[Kind, str]]] = {
    "leasehold_member": (Kind.INFO, "Application, streams and id of this member."),
    **{f"leasehold_{name}": (Kind.COUNTER, text) for name, text in MEMBER_COUNTERS.items()},
    **{f"leasehold_{name}": (Kind.GAUGE, text) for name, text in _MEMBER_GAUGES.items()},
    **{f"leasehold_shard_{name}": (Kind.GAUGE, text) for name, text in _SHARD_GAUGES.items()},
    **{f"leasehold_shard_{name}": (Kind.COUNTER, text) for name, text in SHARD_COUNTERS.items()},
    "leasehold_kinesis_calls": (
        Kind.COUNTER,
        "Calls to Kinesis, by operation and outcome (ok, throttled, failed).",
    ),
    "leasehold_shard_handler_seconds": (Kind.SUMMARY, "Time in handlers that returned."),
}


class MemberSeries:
    """Counts events, and shows the state of a member as metrics."""

    def __init__(self) -> None:
        self._lag_tracker = LagTracker()
        self._totals: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()  # by operation and outcome
        self._shard_counters: dict[LeaseKey, Counter[str]] = {}
        self._handler_times: dict[LeaseKey, _HandlerTime] = {}
        self._member: MemberStarted | None = None
        self._fleet: FleetRefreshed | None = None
        self._decided: FleetDecided | None = None
        self._is_leading = False
        self._findings: tuple[Finding, ...] = ()
        self._shards: dict[StreamIdentifier | None, int] = {}
        self._renewed_ms: int | None = None

    def observe(self, event: Event, now_ms: int) -> None:
        """Process one event."""
        self._lag_tracker.observe(event, now_ms)
        self._update(event, now_ms)

    def families(self, now_ms: int) -> Iterator[Family]:
        """All metrics at this time."""
        yield from self._member_families(now_ms)
        yield from self._fleet_families()
        yield from self._shard_families(now_ms)

    def _update(self, event: Event, now_ms: int) -> None:
        match event:
            case MemberStarted() | MemberStopped() | ShardsSynced() | LeasesRenewed():
                self._update_state(event, now_ms)
            case (
                FleetRefreshed() | FleetDecided() | LeadershipTaken() | LeadershipEnded() | FindingsReviewed()
            ):
                self._update_fleet(event)
            case DeaggregationFailed(dropped=dropped):
                self._totals["dropped_records"] += dropped
            case LeaseLost() | LeaseReleased() | ShardEnded():
                self._totals[_COUNTER_OF_EVENT[type(event)]] += 1
                self._remove_shard(event.shard_key)
            case (
                LeaseTaken()
                | ShardStalled()
                | GapFound()
                | RecordDeadLettered()
                | RecordSkipped()
                | OperationFailed()
            ):
                self._totals[_COUNTER_OF_EVENT[type(event)]] += 1
            case (
                PageRead()
                | BatchHandled()
                | HandlerFailed()
                | ReadFailed()
                | ReadThrottled()
                | IteratorExpired()
                | Subscribed()
                | SubscriptionLost()
                | Checkpointed()
            ):
                # A handler may return after its lease was lost. Such an event must not add the shard again.
                if event.shard_key in self._lag_tracker:
                    self._update_shard(event)
            case StreamRecreated() | StreamsChanged() | LeaseRestarted() | HandoffRequested():
                pass  # no metrics
            case ShardBlockedOnParents() | ReadingStarted() | ProcessorCalled() | LeaseDeleted():
                pass
            case SubscriptionEnded() | WorkerFailed() | LeaseAssigned() | FleetUpgraded() | FanOutRefused():
                pass
            case KinesisCallsCounted(counts=counts):
                self._count_calls(counts)
            case HandoffWithdrawn() | FindingBegan() | FindingEnded():
                pass
            case RowRejected() | RowRecovered() | RowIgnored() | ConsumerFound() | FanOutResumed():
                pass
            case _:
                assert_never(event)

    def _count_calls(self, counts: Iterable[CallCount]) -> None:
        for each in counts:
            outcomes = {
                "ok": each.calls - each.throttled - each.failed,
                "throttled": each.throttled,
                "failed": each.failed,
            }
            for outcome, number in outcomes.items():
                self._calls[each.operation, outcome] += number

    def _update_state(
        self, event: MemberStarted | MemberStopped | ShardsSynced | LeasesRenewed, now_ms: int
    ) -> None:
        match event:
            case MemberStarted():
                self._member = event
            case MemberStopped():
                self._shard_counters.clear()
                self._handler_times.clear()
                self._fleet = None
            case ShardsSynced():
                self._shards[event.stream] = event.shards
            case LeasesRenewed(renewed=renewed, failed=failed):
                self._totals["renewals_failed"] += failed
                if renewed:
                    self._renewed_ms = now_ms

    def _update_fleet(
        self, event: FleetRefreshed | FleetDecided | LeadershipTaken | LeadershipEnded | FindingsReviewed
    ) -> None:
        match event:
            case FleetRefreshed():
                self._fleet = event if event.speaks_for_fleet else None
            case FleetDecided():
                self._decided = event
                self._totals["leases_assigned"] += event.assigned
                self._totals["handoffs_requested"] += event.handed_off
                self._totals["assignments_failed"] += event.failed
            case LeadershipTaken():
                self._is_leading = True
            case LeadershipEnded():
                # The next leader publishes what only a leader knows.
                self._is_leading = False
                self._fleet = self._decided = None
                self._shards.clear()
            case FindingsReviewed(findings=findings):
                self._findings = findings

    def _update_shard(
        self,
        event: PageRead
        | BatchHandled
        | HandlerFailed
        | ReadFailed
        | ReadThrottled
        | IteratorExpired
        | Subscribed
        | SubscriptionLost
        | Checkpointed,
    ) -> None:
        counts = self._shard_counters.setdefault(event.shard_key, Counter())
        match event:
            case PageRead():
                counts["records_read"] += event.records
                counts["bytes_read"] += event.size_bytes
            case BatchHandled():
                counts["records_handled"] += event.records
                counts["bytes_handled"] += event.size_bytes
                time = self._handler_times.setdefault(event.shard_key, _HandlerTime())
                time.calls += 1
                time.total_ms += event.time_ms
            case HandlerFailed():
                counts["handler_failures"] += 1
            case ReadFailed() | ReadThrottled():
                counts["read_failures"] += 1
            case IteratorExpired():
                counts["iterators_expired"] += 1
            case Subscribed():
                counts["subscriptions"] += 1
            case SubscriptionLost():
                counts["subscriptions_lost"] += 1
            case Checkpointed():
                counts["checkpoints"] += 1

    def _remove_shard(self, shard: LeaseKey) -> None:
        self._shard_counters.pop(shard, None)
        self._handler_times.pop(shard, None)

    def _member_families(self, now_ms: int) -> Iterator[Family]:
        if self._member:
            names = ("application", "stream", "worker")
            labels = tuple(str(getattr(self._member, name)) for name in names)
            yield _family("member", [Sample(1, labels)], names)
        for name in MEMBER_COUNTERS:
            yield _family(name, [Sample(self._totals[name])])
        yield _family("leases_held", [Sample(len(self._lag_tracker))])
        if self._renewed_ms is not None:
            yield _family("renewal_age_seconds", [Sample((now_ms - self._renewed_ms) / 1000)])
        found = Counter((finding.code, finding.severity.value) for finding in self._findings)
        samples = [Sample(number, labels) for labels, number in sorted(found.items())]
        yield _family("findings", samples, ("code", "severity"))
        calls = [Sample(number, labels) for labels, number in sorted(self._calls.items())]
        yield _family("kinesis_calls", calls, ("operation", "outcome"))

    def _fleet_families(self) -> Iterator[Family]:
        yield _family("leader", [Sample(int(self._is_leading))])
        if (fleet := self._fleet) is not None:
            yield _family("fleet_leases", [Sample(fleet.leases)])
            yield _family("fleet_unclaimed_leases", [Sample(fleet.unclaimed)])
            yield _family("fleet_workers", [Sample(fleet.workers)])
        if (decided := self._decided) is not None:
            failing = decided.failing_workers + decided.unreadable_reports
            yield _family("leader_unassigned_leases", [Sample(decided.left_free)])
            yield _family("leader_failing_workers", [Sample(failing)])
            yield _family("leader_decision_seconds", [Sample(decided.time_ms / 1000)])
        if self._shards:
            shards = [
                Sample(number, () if stream is None else (stream,)) for stream, number in self._shards.items()
            ]
            yield _family("stream_shards", shards, SHARD_LABELS[1:])

    def _shard_families(self, now_ms: int) -> Iterator[Family]:
        gauges: dict[str, list[Sample]] = {name: [] for name in _SHARD_GAUGES}
        for shard, progress in self._lag_tracker:
            labels = _labels(shard)
            if (lag_ms := progress.lag_ms(now_ms)) is not None:
                gauges["lag_seconds"].append(Sample(lag_ms / 1000, labels))
            gauges["idle_seconds"].append(Sample((now_ms - progress.last_progress_ms) / 1000, labels))
            gauges["records_in_flight"].append(Sample(progress.records_in_flight, labels))
        for name, samples in gauges.items():
            yield _family(f"shard_{name}", samples, SHARD_LABELS)
        for name in SHARD_COUNTERS:
            counts = [
                Sample(self._shard_counters.get(shard, Counter())[name], _labels(shard))
                for shard, _ in self._lag_tracker
            ]
            yield _family(f"shard_{name}", counts, SHARD_LABELS)
        times = [
            Sample(time.total_ms / 1000, _labels(shard), time.calls)
            for shard, time in self._handler_times.items()
        ]
        yield _family("shard_handler_seconds", times, SHARD_LABELS)


def _labels(key: LeaseKey) -> tuple[str, ...]:
    """The label values of a shard. A member of one stream omits the last label."""
    stream, shard = parse_lease_key(key)
    return (shard,) if stream is None else (shard, stream)


def _family(name: str, samples: Iterable[Sample], label_names: tuple[str, ...] = ()) -> Family:
    kind, text = FAMILIES[f"leasehold_{name}"]
    return Family(f"leasehold_{name}", text, kind, tuple(samples), label_names)
