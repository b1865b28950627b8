"""Metrics in Prometheus' text format. Needs the extra `prometheus`; `status_server` serves the text.

The number of series is bounded by the leases of this member: the series of a shard appear when its lease is taken and
disappear when the lease is lost, released or ended. The counters are not prometheus_client's, because those keep
their values in files in its multi-process mode and cannot be removed there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    ConsumerFound,
    DeaggregationFailed,
    Event,
    FanOutRefused,
    FanOutResumed,
    FleetRefreshed,
    FleetUpgraded,
    GapFound,
    HandlerFailed,
    HandoffRequested,
    IteratorExpired,
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


class PrometheusMetrics(Collector):
    """An observer and the text that Prometheus scrapes. The two may be used from different threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._lag_tracker = LagTracker()
        self._totals: Counter[str] = Counter()
        self._shard_counters: dict[LeaseKey, Counter[str]] = {}
        self._handler_times: dict[LeaseKey, _HandlerTime] = {}
        self._member: MemberStarted | None = None
        self._fleet: FleetRefreshed | None = None
        self._shards: dict[StreamIdentifier | None, int] = {}
        self._renewed_ms: int | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def __call__(self, event: Event) -> None:
        """Process one event."""
        with self._lock:
            self._lag_tracker.observe(event, self._now_ms())
            self._update(event)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The current metrics; called by prometheus_client."""
        with self._lock:
            now_ms = self._now_ms()
            families = [*self._member_families(now_ms), *self._shard_families(now_ms)]
        yield from families

    def _update(self, event: Event) -> None:
        match event:
            case MemberStarted() | MemberStopped() | FleetRefreshed() | ShardsSynced() | LeasesRenewed():
                self._update_state(event)
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
            case (
                StreamRecreated()
                | StreamsChanged()
                | LeaseRestarted()
                | HandoffRequested()
                | ShardBlockedOnParents()
                | ReadingStarted()
                | ProcessorCalled()
                | LeaseDeleted()
                | SubscriptionEnded()
                | WorkerFailed()
            ):
                pass  # no metrics
            case LeaseAssigned() | LeadershipTaken() | LeadershipEnded() | FleetUpgraded() | FanOutRefused():
                pass
            case RowRejected() | RowRecovered() | RowIgnored() | ConsumerFound() | FanOutResumed():
                pass
            case _:
                assert_never(event)

    def _update_state(
        self, event: MemberStarted | MemberStopped | FleetRefreshed | ShardsSynced | LeasesRenewed
    ) -> None:
        match event:
            case MemberStarted():
                self._member = event
            case MemberStopped():
                self._shard_counters.clear()
                self._handler_times.clear()
            case FleetRefreshed():
                self._fleet = event
            case ShardsSynced():
                self._shards[event.stream] = event.shards
            case LeasesRenewed(renewed=renewed, failed=failed):
                self._totals["renewals_failed"] += failed
                if renewed:
                    self._renewed_ms = self._now_ms()

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

    def _member_families(self, now_ms: int) -> Iterator[Metric]:
        if self._member:
            labels = {name: getattr(self._member, name) for name in ("application", "stream", "worker")}
            yield InfoMetricFamily("leasehold_member", "Application, streams and id of this member.", labels)
        for name, text in MEMBER_COUNTERS.items():
            yield CounterMetricFamily(f"leasehold_{name}", text, self._totals[name])
        yield GaugeMetricFamily(
            "leasehold_leases_held", "Leases that this member serves.", len(self._lag_tracker)
        )
        if self._renewed_ms is not None:
            age = (now_ms - self._renewed_ms) / 1000
            yield GaugeMetricFamily("leasehold_renewal_age_seconds", "Time since the last heartbeat.", age)
        if self._fleet:
            yield GaugeMetricFamily("leasehold_fleet_leases", "Leases in the table.", self._fleet.leases)
            yield GaugeMetricFamily(
                "leasehold_fleet_unclaimed_leases", "Leases without a live owner.", self._fleet.unclaimed
            )
            yield GaugeMetricFamily(
                "leasehold_fleet_workers", "Workers that own leases.", self._fleet.workers
            )
        if self._shards:
            shards = GaugeMetricFamily(
                "leasehold_stream_shards", "Shards of the stream.", labels=SHARD_LABELS[1:]
            )
            for stream, number in self._shards.items():
                shards.add_metric([] if stream is None else [stream], number)
            yield shards

    def _shard_families(self, now_ms: int) -> Iterator[Metric]:
        lag = _gauge("lag_seconds", "How far the first record that is not done is behind the tip.")
        idle = _gauge("idle_seconds", "Time since the last progress.")
        in_flight = _gauge("records_in_flight", "User records of pages that are not completely done.")
        for shard, progress in self._lag_tracker:
            if (lag_ms := progress.lag_ms(now_ms)) is not None:
                lag.add_metric(_labels(shard), lag_ms / 1000)
            idle.add_metric(_labels(shard), (now_ms - progress.last_progress_ms) / 1000)
            in_flight.add_metric(_labels(shard), progress.records_in_flight)
        yield from (lag, idle, in_flight)
        for name, text in SHARD_COUNTERS.items():
            counter = CounterMetricFamily(f"leasehold_shard_{name}", text, labels=SHARD_LABELS)
            for shard, _ in self._lag_tracker:
                counter.add_metric(_labels(shard), self._shard_counters.get(shard, Counter())[name])
            yield counter
        times = SummaryMetricFamily(
            "leasehold_shard_handler_seconds", "Time in handlers that returned.", labels=SHARD_LABELS
        )
        for shard, time in self._handler_times.items():
            times.add_metric(_labels(shard), time.calls, time.total_ms / 1000)
        yield times


def _labels(key: LeaseKey) -> list[str]:
    """The label values of a shard. A member of one stream omits the last label."""
    stream, shard = parse_lease_key(key)
    return [shard] if stream is None else [shard, stream]


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"leasehold_shard_{name}", text, labels=SHARD_LABELS)
