"""One shard of a query while the query's member holds its lease."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from leasehold.core.exactly_once.shard_phase import ShardPhase, Taken, TipProgress, require_transition
from leasehold.core.model import LeaseKey
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.streams import TrackedStream
from leasehold.spark.query.backlog_counter import BacklogCounter
from leasehold.spark.query.idle_probe import IdleProbe


@dataclass(slots=True)
class Delivered:
    """What the query has read of a shard since it took the lease. Rates are those of the last batch."""

    records: int = 0
    size_bytes: int = 0
    counted_ms: int | None = None
    records_per_s: float | None = None
    bytes_per_s: float | None = None

    def add(self, records: int, size_bytes: int, now_ms: int) -> None:
        """Count one batch. Its records were read in the time since the batch before."""
        elapsed_ms = None if self.counted_ms is None else now_ms - self.counted_ms
        if elapsed_ms:
            self.records_per_s = round(records * 1000 / elapsed_ms, 1)
            self.bytes_per_s = round(size_bytes * 1000 / elapsed_ms, 1)
        self.records += records
        self.size_bytes += size_bytes
        self.counted_ms = now_ms


@dataclass(slots=True, eq=False)
class QueryShard:
    """The lease server and the batch planner share it. Both run on one event loop."""

    held: HeldLease
    tracked: TrackedStream
    phase: ShardPhase = field(default_factory=Taken)
    tip: TipProgress = TipProgress.BEHIND
    probe: IdleProbe | None = None  # belongs to the current phase, if that is Idle
    has_waited_for_quota: bool = False  # in the current phase
    backlog: BacklogCounter | None = None  # belongs to the current phase, if that is Ready
    millis_behind: int | None = None
    delivered: Delivered = field(default_factory=Delivered)
    records_seen_ms: int | None = None  # when a poll found records; None: not in this run
    failures: int = 0  # in a row, of what the lease server does for the shard
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def key(self) -> LeaseKey:
        """The key of the lease. Shards of two streams have the same ids."""
        return self.held.lease.key

    def move(self, phase: ShardPhase) -> None:
        """Enter another phase, and wake the lease server."""
        require_transition(self.phase, phase)
        self.phase, self.probe, self.backlog = phase, None, None
        self.has_waited_for_quota = False
        self.changed.set()

    def reach_tip(self, tip: TipProgress) -> None:
        """Raise the progress towards the tip. It never falls."""
        self.tip = max(self.tip, tip)
