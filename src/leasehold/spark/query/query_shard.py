"""One shard of a query while the query's member holds its lease."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from leasehold.core.exactly_once.shard_phase import ShardPhase, Taken, TipProgress, require_transition
from leasehold.fleet.held_lease import HeldLease
from leasehold.spark.query.backlog_counter import BacklogCounter
from leasehold.spark.query.idle_probe import IdleProbe


@dataclass(slots=True, eq=False)
class QueryShard:
    """The lease server and the batch planner share it. Both run on one event loop."""

    held: HeldLease
    phase: ShardPhase = field(default_factory=Taken)
    tip: TipProgress = TipProgress.BEHIND
    probe: IdleProbe | None = None  # belongs to the current phase, if that is Idle
    backlog: BacklogCounter | None = None  # belongs to the current phase, if that is Ready
    millis_behind: int | None = None
    failures: int = 0  # in a row, of what the lease server does for the shard
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, phase: ShardPhase) -> None:
        """Enter another phase, and wake the lease server."""
        require_transition(self.phase, phase)
        self.phase, self.probe, self.backlog = phase, None, None
        self.changed.set()

    def reach_tip(self, tip: TipProgress) -> None:
        """Raise the progress towards the tip. It never falls."""
        self.tip = max(self.tip, tip)
