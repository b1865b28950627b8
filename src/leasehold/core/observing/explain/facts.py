"""What two reads of a fleet have shown, as plain values. `explain_fleet` makes sentences of them.

The tables of a fleet contain no times that all members agree on. So the facts come in pairs: the rows are read twice,
some seconds apart, and what has not changed in between has stood still for at least that long.

A fleet may have ten thousand shards, and many findings about one shard need a view of all. Such views are computed
once for each value (`cached_property`), so the time to explain a fleet grows with its size and not with its square.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from leasehold.core.command_name import parse_command
from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, WorkerReport
from leasehold.core.finding import Finding
from leasehold.core.leases.lease_view import leases_without_heartbeat
from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, StreamIdentifier, WorkerId, shard_number
from leasehold.core.position import Position
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph
from leasehold.errors import MalformedRowError, ShardListError


@dataclass(frozen=True, kw_only=True)
class TableRead:
    """The rows of a fleet, read at one time."""

    at_ms: int
    leases: tuple[Lease, ...]
    rejected: tuple[MalformedRowError, ...] = ()
    lock: LeaderLock | None = None
    reports: tuple[WorkerReport, ...] = ()

    @cached_property
    def by_key(self) -> Mapping[LeaseKey, Lease]:
        """The leases by their key."""
        return {lease.key: lease for lease in self.leases}

    @cached_property
    def reports_by_worker(self) -> Mapping[WorkerId, WorkerReport]:
        """The report of each worker."""
        return {report.worker: report for report in self.reports}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRead:
    """What one read at the checkpoint of a shard has shown.

    `behind_ms` is how far the checkpoint is behind the tip; None if it is unknown, then `problem` gives the reason.
    `is_emptied`: the record there was trimmed, and no later one is retained; nothing is lost if the shard was idle.
    `position` is the checkpoint that was read. A member that looks at its own shards has `progress_ms` instead: when
    the shard last made progress.
    """

    at_ms: int
    behind_ms: int | None = None
    is_trimmed: bool = False
    is_emptied: bool = False
    is_throttled: bool = False
    problem: str = ""
    position: Position | None = None
    progress_ms: int | None = None

    def has_moved_since(self, earlier: LagRead) -> bool:
        """Whether the shard moved after an earlier read; also if that is not known."""
        if self.progress_ms is not None:
            return self.progress_ms > earlier.at_ms
        return self.position is None or self.position != earlier.position


@dataclass(frozen=True, kw_only=True)
class StreamFacts:
    """One stream as Kinesis describes it. `shards` is None if they were not listed, or if the stream is missing.

    Shards must be listed after the leases were read: an older list could lack the shards of newer leases. If it is
    older than the newest read of the table, `leases_at_list` has the leases from just before it, and what the list
    shows counts only if it was so then and is still so.
    """

    name: str
    shards: tuple[Shard, ...] | None
    retention_ms: int | None = None
    is_missing: bool = False
    leases_at_list: tuple[Lease, ...] | None = None

    @cached_property
    def shard_ids(self) -> frozenset[ShardId]:
        """The ids of the listed shards; empty if they are not known."""
        return frozenset(shard.id for shard in self.shards or ())

    def never_had(self, shard: ShardId) -> bool:
        """Whether a shard that is not listed never was one of this stream.

        Kinesis numbers shards as it creates them, and the newest shard of a stream is always listed.
        """
        number = shard_number(shard)
        return self._newest is not None and (number is None or number > self._newest)

    @cached_property
    def _newest(self) -> int | None:
        """The number of the newest listed shard; None if there is none, or if an id is not one of Kinesis's."""
        numbers = [shard_number(shard) for shard in self.shard_ids]
        return (
            max((each for each in numbers if each is not None), default=None) if None not in numbers else None
        )

    @cached_property
    def graph(self) -> ShardGraph | None:
        """The families of the listed shards; None if they are not known, or contradict each other during a reshard."""
        try:
            return None if self.shards is None else shard_graph(self.shards)
        except ShardListError:
            return None  # the next list is right

    @cached_property
    def listed_leases(self) -> Mapping[LeaseKey, Lease] | None:
        """The leases from before an older list by their key; None if the list is the newest read."""
        if self.leases_at_list is None:
            return None
        return {lease.key: lease for lease in self.leases_at_list}

    def is_older_than(self, lease: Lease) -> bool:
        """Whether the list may be older than this lease."""
        return self.listed_leases is not None and lease.key not in self.listed_leases


@dataclass(frozen=True, kw_only=True)
class FleetFacts:
    """Everything that `explain_fleet` knows.

    `lags` has the reads of each shard, oldest first. `worker_findings` are what workers say in `/health`, by lease key;
    those about a whole worker have its address as their key. `worker_idle_ms` has the shards that these workers find
    healthy, and for how long each had made no progress; None if no worker was asked. With `own_worker`, the findings
    come from the member that looks at itself: it knows whether a shard makes progress, so an unmoved checkpoint alone
    says nothing.
    """

    before: TableRead
    after: TableRead
    wall_s: int
    has_leader: bool
    has_index: bool = True
    has_two_layouts: bool = False
    streams: Mapping[StreamIdentifier | None, StreamFacts] = field(default_factory=dict)
    lags: Mapping[LeaseKey, tuple[LagRead, ...]] = field(default_factory=dict)
    worker_findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    worker_idle_ms: Mapping[str, int] | None = None
    own_worker: WorkerId | None = None

    @property
    def watched_ms(self) -> int:
        """The time between the two reads."""
        return self.after.at_ms - self.before.at_ms

    def report_of(self, worker: WorkerId) -> WorkerReport | None:
        """The last report of a worker."""
        return self.after.reports_by_worker.get(worker)

    @cached_property
    def silent(self) -> frozenset[LeaseKey]:
        """The owned, unfinished leases without a heartbeat between the two reads."""
        return leases_without_heartbeat(self.before.leases, self.after.leases)

    @cached_property
    def renewing_owners(self) -> frozenset[WorkerId]:
        """The owners of an unfinished lease that is not silent. Heartbeats of one round are seconds apart."""
        return frozenset(
            lease.actual_owner
            for lease in self.after.leases
            if lease.actual_owner is not None
            and lease.key not in self.silent
            and not lease.checkpoint.is_shard_end
        )

    @cached_property
    def active_workers(self) -> frozenset[WorkerId]:
        """The workers that others see to be active, and the member itself that looks: it may have no leases."""
        return self.seen_workers if self.own_worker is None else self.seen_workers | {self.own_worker}

    @cached_property
    def seen_workers(self) -> frozenset[WorkerId]:
        """The workers that sent a heartbeat or a report between the two reads, or whose last report is fresh.

        A fresh report says nothing about a worker that has leases and renewed none of them: it died after the report.
        """
        reporting = {
            report.worker for report in self.after.reports if not self.is_report_expired(report.worker)
        }
        silent = self.silent_owners if self.watched_ms else frozenset()
        return self.heard_workers | (reporting - silent)

    @cached_property
    def silent_owners(self) -> frozenset[WorkerId]:
        """The owners of unfinished leases that renewed none of them between the two reads."""
        owners = {self.after.by_key[key].actual_owner for key in self.silent}
        return frozenset(owner for owner in owners if owner is not None) - self.renewing_owners

    @cached_property
    def heard_workers(self) -> frozenset[WorkerId]:
        """The workers that sent a heartbeat or a report between the two reads. A command that holds leases is none."""
        before = self.before.by_key
        renewing = {
            lease.actual_owner
            for lease in self.after.leases
            if lease.key not in before
            or (before[lease.key].counter, before[lease.key].session) != (lease.counter, lease.session)
        }
        reporting = {
            report.worker
            for report in self.after.reports
            if not self.is_report_expired(report.worker) and self._is_new(report)
        }
        return frozenset(
            worker for worker in renewing | reporting if worker is not None and parse_command(worker) is None
        )

    def _is_new(self, report: WorkerReport) -> bool:
        earlier = self.before.reports_by_worker.get(report.worker)
        return earlier is None or earlier.updated_s != report.updated_s

    def is_report_expired(self, worker: WorkerId) -> bool:
        """Whether the last report of a worker is too old for a living one; False without a report."""
        report = self.report_of(worker)
        return report is not None and (self.wall_s - report.updated_s) * 1000 > EXPIRED_AFTER_MS
