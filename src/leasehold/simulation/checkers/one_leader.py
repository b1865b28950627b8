"""At most one member leads at a time."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.config.settings import milliseconds
from leasehold.core.coordinator.kcl_rows import LEADER_KEY
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import LeaseChange
from leasehold.simulation.environment.process import SimulatedProcess


@dataclass(frozen=True, slots=True)
class _Leadership:
    """A leader, and until when it may believe that it leads."""

    process: SimulatedProcess
    until_ms: int


class OneLeaderAtATime(Checker):
    """Follows the leader lock. A leader leads for one duration after it sent a heartbeat, or until it resigns."""

    promise = "one-leader-at-a-time"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._current: _Leadership | None = None

    def lease_changed(self, change: LeaseChange) -> None:
        row = change.row
        if row.key != LEADER_KEY:
            return
        if row.by is None or row.after is None or row.sent_ms is None:
            self._current = None  # the leader resigned, or the row was destroyed
            return
        last = self._current
        if last is not None and last.process is not row.by and row.at_ms < last.until_ms:
            self.report(
                f"{row.by.name} takes the leader lock, and {last.process.name} leads for another "
                f"{last.until_ms - row.at_ms} ms"
            )
        duration_ms = milliseconds(self.world.settings.fleet.leader_lock_duration)
        self._current = _Leadership(row.by, row.sent_ms + duration_ms)
