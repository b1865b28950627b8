"""After the last fault, all records are done within a bound."""

from __future__ import annotations

from typing import Final

from leasehold.simulation.checkers.base import Checker, Report, WorldView

_BOUND_MS: Final = 240_000
_DESTROYED_BOUND_MS: Final = 900_000


class LagToZero(Checker):
    """Counts open records. The bound is longer if rows were destroyed, because an audit must restore them first."""

    promise = "lag-to-zero"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._faults_ended_ms: int | None = None

    def faults_ended(self) -> None:
        self._faults_ended_ms = self.world.now_ms()

    def steady_state_ended(self) -> None:
        self._faults_ended_ms = None

    def time_passed(self) -> None:
        if self._faults_ended_ms is None:
            return
        bound_ms = _DESTROYED_BOUND_MS if self.world.rows_were_destroyed else _BOUND_MS
        if self.world.now_ms() - self._faults_ended_ms > bound_ms and self.world.ledger.open_records:
            self.report(
                f"{self.world.ledger.open_records} records are not done {bound_ms} ms after the last fault"
            )
            self._faults_ended_ms = None
