"""After the last fault, the lag of every shard goes to zero."""

from __future__ import annotations

from typing import Final

from leasehold.simulation.checkers.base import Checker, Report, WorldView

_BOUND_MS: Final = 240_000
_DESTROYED_BOUND_MS: Final = 900_000


class LagToZero(Checker):
    """Measured in records that nobody has done. Destroyed rows wait for the auditor first."""

    promise = "lag-to-zero"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._healed_ms: int | None = None

    def faults_ended(self) -> None:
        self._healed_ms = self.scene.now_ms()

    def steady_state_ended(self) -> None:
        self._healed_ms = None

    def time_passed(self) -> None:
        if self._healed_ms is None:
            return
        bound_ms = _DESTROYED_BOUND_MS if self.scene.rows_were_destroyed else _BOUND_MS
        if self.scene.now_ms() - self._healed_ms > bound_ms and self.scene.ledger.open_records:
            self.broken(
                f"{self.scene.ledger.open_records} records are not done {bound_ms} ms after the last fault"
            )
            self._healed_ms = None
