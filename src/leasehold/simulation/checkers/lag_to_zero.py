"""After the last fault, all records are done within a bound."""

from __future__ import annotations

from typing import Final

from leasehold.core.model import LeaseKey, lease_key, parse_lease_key
from leasehold.simulation.checkers.base import Checker, Report, WorldView

_BOUND_MS: Final = 240_000
_DESTROYED_BOUND_MS: Final = 900_000
# The average time of a batch: a handler (25 ms), a pin, an object and a checkpoint (20 ms each).
_BATCH_MS: Final = 85
# The time from the end of a parent to the first record of its children: the leader has to assign them, and after a
# merge the end of one parent waits for the other, with pauses that grow.
_GENERATION_MS: Final = 10_000


class LagToZero(Checker):
    """Counts open records. The bound is longer if rows were destroyed, because an audit must restore them first."""

    promise = "lag-to-zero"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._faults_ended_ms: int | None = None
        self._backlog = self._generations = 0

    def faults_ended(self) -> None:
        self._faults_ended_ms = self.world.now_ms()
        self._backlog = self.world.ledger.open_records
        self._generations = self._count_generations()

    def load_began(self) -> None:
        self.steady_state_ended()

    def steady_state_ended(self) -> None:
        self._faults_ended_ms = None

    def time_passed(self) -> None:
        if self._faults_ended_ms is None:
            return
        bound_ms = bound_after_faults_ms(
            self._backlog, self._generations, were_rows_destroyed=self.world.rows_were_destroyed
        )
        if self.world.now_ms() - self._faults_ended_ms > bound_ms and self.world.ledger.open_records:
            self.report(
                f"{self.world.ledger.open_records} records are not done {bound_ms} ms after the last fault"
            )
            self._faults_ended_ms = None

    def _count_generations(self) -> int:
        """The longest way from a shard with open records up to a shard without parents."""
        ledgers = self.world.ledger.shards.items()
        return max((self._count_above(key) for key, ledger in ledgers if ledger.open_records), default=0)

    def _count_above(self, shard: LeaseKey) -> int:
        count, generation = 0, {shard}
        while generation := {parent for each in generation for parent in self._parents_of(each)}:
            count += 1
        return count

    def _parents_of(self, shard: LeaseKey) -> list[LeaseKey]:
        state = self.world.services.streams.find_shard(shard)
        stream, _ = parse_lease_key(shard)
        return [] if state is None else [lease_key(parent, stream) for parent in state.parents]


def bound_after_faults_ms(backlog: int, generations: int, *, were_rows_destroyed: bool) -> int:
    """How long after the last fault all records must be done, if `backlog` records were open then.

    With a small limit of bytes, every large record is a batch of its own. After reshards the shards may be a chain, in
    which each waits for its parent. So the batches may have to be handled one after the other, and the leases of each
    of the `generations` taken after those before it.

    >>> bound_after_faults_ms(3_000, 0, were_rows_destroyed=False)
    495000
    """
    recovery_ms = _DESTROYED_BOUND_MS if were_rows_destroyed else _BOUND_MS
    return recovery_ms + backlog * _BATCH_MS + generations * _GENERATION_MS
