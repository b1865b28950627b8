"""After the last fault, all records are done within a bound."""

from __future__ import annotations

from typing import Final

from leasehold.simulation.checkers.base import Checker, Report, WorldView

_BOUND_MS: Final = 240_000
_DESTROYED_BOUND_MS: Final = 900_000
# The average time of a batch: a handler (25 ms), a pin, an object and a checkpoint (20 ms each).
_BATCH_MS: Final = 85


class LagToZero(Checker):
    """Counts open records. The bound is longer if rows were destroyed, because an audit must restore them first."""

    promise = "lag-to-zero"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._faults_ended_ms: int | None = None
        self._backlog = 0

    def faults_ended(self) -> None:
        self._faults_ended_ms = self.world.now_ms()
        self._backlog = self.world.ledger.open_records

    def load_began(self) -> None:
        self.steady_state_ended()

    def steady_state_ended(self) -> None:
        self._faults_ended_ms = None

    def time_passed(self) -> None:
        if self._faults_ended_ms is None:
            return
        bound_ms = bound_after_faults_ms(self._backlog, were_rows_destroyed=self.world.rows_were_destroyed)
        if self.world.now_ms() - self._faults_ended_ms > bound_ms and self.world.ledger.open_records:
            self.report(
                f"{self.world.ledger.open_records} records are not done {bound_ms} ms after the last fault"
            )
            self._faults_ended_ms = None


def bound_after_faults_ms(backlog: int, *, were_rows_destroyed: bool) -> int:
    """How long after the last fault all records must be done, if `backlog` records were open then.

    With a small limit of bytes, every large record is a batch of its own. After reshards the shards may be a chain, in
    which each waits for its parent. So the batches may have to be handled one after the other.

    >>> bound_after_faults_ms(3_000, were_rows_destroyed=False)
    495000
    """
    recovery_ms = _DESTROYED_BOUND_MS if were_rows_destroyed else _BOUND_MS
    return recovery_ms + backlog * _BATCH_MS
