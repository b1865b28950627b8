"""What two reads of a fleet have shown, as plain values. `explain_fleet` makes sentences of them.

The tables of a fleet contain no times that all members agree on. So the facts come in pairs: the rows are read twice,
some seconds apart, and what has not changed in between has stood still for at least that long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.model import Lease, LeaseKey, Shard, StreamIdentifier, WorkerId
from leasehold.errors import MalformedRowError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """The rows of a fleet, read at one time."""

    at_ms: int
    leases: tuple[Lease, ...]
    rejected: tuple[MalformedRowError, ...] = ()
    lock: LeaderLock | None = None
    reports: tuple[WorkerReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRead:
    """What one read at the checkpoint of a shard has shown.

    `behind_ms` is how far the checkpoint is behind the tip; None if it is unknown, then `problem` gives the reason.
    """

    at_ms: int
    behind_ms: int | None = None
    is_trimmed: bool = False
    is_throttled: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """One stream as Kinesis describes it. `shards` is None if the stream does not exist."""

    name: str
    shards: tuple[Shard, ...] | None
    retention_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFacts:
    """Everything that `explain_fleet` knows.

    `lags` has the reads of each shard, oldest first. `worker_problems` are the sentences of `/health`, by lease key;
    those of a whole worker have its address as their key.
    """

    before: TableRead
    after: TableRead
    wall_s: int
    has_leader: bool
    has_index: bool = True
    has_two_layouts: bool = False
    streams: Mapping[StreamIdentifier | None, StreamFacts] = field(default_factory=dict)
    lags: Mapping[LeaseKey, tuple[LagRead, ...]] = field(default_factory=dict)
    worker_problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def watched_ms(self) -> int:
        """The time between the two reads."""
        return self.after.at_ms - self.before.at_ms

    def report_of(self, worker: WorkerId) -> WorkerReport | None:
        """The last report of a worker."""
        return next((report for report in self.after.reports if report.worker == worker), None)
