"""Metrics for Prometheus, as text. Needs the extra `prometheus`; who serves the text is decided elsewhere.

The number of series is bounded by what this member holds: a shard appears when its lease is taken and disappears when
it is lost, released or ended. The counters are our own and not prometheus_client's, whose values live in files when a
program runs in its multi-process mode, and cannot be taken away there.
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
    DeaggregationFailed,
    Event,
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
    RowRejected,
    ShardBlockedOnParents,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    WorkerFailed,
)
from leasehold.core.model import LeaseKey, StreamIdentifier, parse_lease_key
from leasehold.core.observing.lag import LagTracker

# What is counted for the member as a whole, from its start.
MEMBER_COUNTERS: Final = {
    "leases_taken": "Leases that this member began to serve.",
    "leases_lost": "Leases that this member lost against its will: records are read twice.",
    "leases_released": "Leases that this member let go in good order.",
    "renewals_failed": "Heartbeats that did not succeed.",
    "shards_ended": "Shards that were done to their end.",
    "shards_stalled": "Shards that were given up because they made no progress.",
    "gaps": "Places where records may have been trimmed before they were read, and be lost.",
    "dropped_records": "User records of aggregates that could not be delivered.",
    "dead_letters": "Records that were put aside.",
    "skipped_records": "Records that were passed over, as the settings say.",
    "operations_failed": "Steps of the member that failed and were tried again.",
}

_COUNTED: Final[Mapping[type[Event], str]] = {
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

# What is counted for each shard, while it is held.
SHARD_COUNTERS: Final = {
    "records_read": "User records read.",
    "bytes_read": "Bytes of user records read.",
    "records_handled": "User records that handlers have done.",
    "bytes_handled": "Bytes of user records that handlers have done.",
    "handler_failures": "Times that a handler raised.",
    "read_failures": "Reads that failed or were throttled.",
    "iterators_expired": "Iterators that were too old.",
    "checkpoints": "Checkpoints written.",
}


# The second only in a member of several streams.
SHARD_LABELS: Final = ("shard", "stream")


@dataclass(slots=True)
class _HandlerTime:
    calls: int = 0
    total_ms: int = 0


class PrometheusMetrics(Collector):
    """An observer, and the text that Prometheus scrapes; the two may be used from different threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._lags = LagTracker()
        self._totals: Counter[str] = Counter()
        self._of_shard: dict[LeaseKey, Counter[str]] = {}
        self._handler_times: dict[LeaseKey, _HandlerTime] = {}
        self._member: MemberStarted | None = None
        self._fleet: FleetRefreshed | None = None
        self._shards: dict[StreamIdentifier | None, int] = {}
        self._renewed_ms: int | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def __call__(self, event: Event) -> None:
        """Take one event into account."""
        with self._lock:
            self._lags.observe(event, self._now_ms())
            self._note(event)

    def text(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: all metrics at this moment."""
        with self._lock:
            now_ms = self._now_ms()
            families = [*self._of_member(now_ms), *self._of_shards(now_ms)]
        yield from families

    def _note(self, event: Event) -> None:
        match event:
            case MemberStarted():
                self._member = event
            case FleetRefreshed():
                self._fleet = event
            case ShardsSynced():
                self._shards[event.stream] = event.shards
            case LeasesRenewed(renewed=renewed, failed=failed):
                self._totals["renewals_failed"] += failed
                if renewed:
                    self._renewed_ms = self._now_ms()
            case DeaggregationFailed(dropped=dropped):
                self._totals["dropped_records"] += dropped
            case LeaseLost() | LeaseReleased() | ShardEnded():
                self._totals[_COUNTED[type(event)]] += 1
                self._forget(event.shard_key)
            case (
                LeaseTaken()
                | ShardStalled()
                | GapFound()
                | RecordDeadLettered()
                | RecordSkipped()
                | OperationFailed()
            ):
                self._totals[_COUNTED[type(event)]] += 1
            case (
                PageRead()
                | BatchHandled()
                | HandlerFailed()
                | ReadFailed()
                | ReadThrottled()
                | IteratorExpired()
                | Checkpointed()
            ):
                # A handler may return after its lease is gone; that must not bring the shard's series back.
                if event.shard_key in self._lags:
                    self._note_of_shard(event)
            case MemberStopped():
                self._of_shard.clear()
                self._handler_times.clear()
            case (
                RowRejected()
                | HandoffRequested()
                | ShardBlockedOnParents()
                | ReadingStarted()
                | ProcessorCalled()
                | LeaseDeleted()
                | LeaseAssigned()
                | LeadershipTaken()
                | LeadershipEnded()
                | FleetUpgraded()
                | WorkerFailed()
            ):
                pass  # news, not numbers
            case _:
                assert_never(event)

    def _note_of_shard(
        self,
        event: PageRead
        | BatchHandled
        | HandlerFailed
        | ReadFailed
        | ReadThrottled
        | IteratorExpired
        | Checkpointed,
    ) -> None:
        counts = self._of_shard.setdefault(event.shard_key, Counter())
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
            case Checkpointed():
                counts["checkpoints"] += 1

    def _forget(self, shard: LeaseKey) -> None:
        self._of_shard.pop(shard, None)
        self._handler_times.pop(shard, None)

    def _of_member(self, now_ms: int) -> Iterator[Metric]:
        if self._member:
            labels = {name: getattr(self._member, name) for name in ("application", "stream", "worker")}
            yield InfoMetricFamily("leasehold_member", "Who this is.", labels)
        for name, text in MEMBER_COUNTERS.items():
            yield CounterMetricFamily(f"leasehold_{name}", text, self._totals[name])
        yield GaugeMetricFamily("leasehold_leases_held", "Leases that this member serves.", len(self._lags))
        if self._renewed_ms is not None:
            age = (now_ms - self._renewed_ms) / 1000
            yield GaugeMetricFamily("leasehold_renewal_age_seconds", "Since the last heartbeat.", age)
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

    def _of_shards(self, now_ms: int) -> Iterator[Metric]:
        lag = _gauge("lag_seconds", "How far the first record that is not done is behind the tip.")
        idle = _gauge("idle_seconds", "How long nothing got done, or there was nothing to do.")
        in_hand = _gauge("records_in_flight", "User records of pages that are not done to their end.")
        for shard, progress in self._lags:
            if (lag_ms := progress.lag_ms(now_ms)) is not None:
                lag.add_metric(_labels(shard), lag_ms / 1000)
            idle.add_metric(_labels(shard), (now_ms - progress.last_progress_ms) / 1000)
            in_hand.add_metric(_labels(shard), progress.records_in_flight)
        yield from (lag, idle, in_hand)
        for name, text in SHARD_COUNTERS.items():
            counter = CounterMetricFamily(f"leasehold_shard_{name}", text, labels=SHARD_LABELS)
            for shard, _ in self._lags:
                counter.add_metric(_labels(shard), self._of_shard.get(shard, Counter())[name])
            yield counter
        times = SummaryMetricFamily(
            "leasehold_shard_handler_seconds", "Time in handlers that returned.", labels=SHARD_LABELS
        )
        for shard, time in self._handler_times.items():
            times.add_metric(_labels(shard), time.calls, time.total_ms / 1000)
        yield times


def _labels(key: LeaseKey) -> list[str]:
    """The values of the labels; the last one is left out, and so is not there, in a member of one stream."""
    stream, shard = parse_lease_key(key)
    return [shard] if stream is None else [shard, stream]


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"leasehold_shard_{name}", text, labels=SHARD_LABELS)
