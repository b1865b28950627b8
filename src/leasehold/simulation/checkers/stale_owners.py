"""Whoever lost a lease can write nothing to it, and gives nothing more to its handler."""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.leases.lease_row import CHECKPOINT, CHECKPOINT_SUB, PENDING, PENDING_SUB
from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery, LeaseChange, Ownership, session_in
from leasehold.simulation.process import ProcessState

_PROGRESS = (CHECKPOINT, CHECKPOINT_SUB, PENDING, PENDING_SUB)


class StaleOwnersStop(Checker):
    """The row says who holds a lease; nobody else may move it or be given its records."""

    promise = "stale-owners-stop"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._open: dict[ShardId, list[Delivery]] = {}
        self._holders: dict[ShardId, Ownership] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        row, shard = change.row, ShardId(change.row.key)
        holder = self._holders.get(shard)
        if row.by is not None and row.before is not None and row.after is not None:
            moved = any(row.before.get(name) != row.after.get(name) for name in _PROGRESS)
            begins = session_in(row.before) != session_in(row.after)
            if moved and not begins and (holder is None or holder.process is not row.by):
                self.broken(
                    f"{row.by.name} moved {row.key}, which {holder.process.name if holder else 'nobody'} holds"
                )
        current = self.scene.ownerships.current.get(shard)
        if current is not holder:
            self._check_handlers(shard, holder)
            if current is None:
                self._holders.pop(shard, None)
            else:
                self._holders[shard] = current

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None:
            self.broken(f"{delivery.process.name} gives {delivery.shard} away with token {delivery.token}")
            return
        if ownership.ended_ms is not None and not self._is_excused(ownership):
            late_ms = self.scene.now_ms() - ownership.ended_ms
            self.broken(
                f"{delivery.process.name} gives {delivery.shard} away {late_ms} ms after it lost the lease"
            )
        self._open.setdefault(delivery.shard, []).append(delivery)

    def _is_excused(self, ownership: Ownership) -> bool:
        """Overruled owners and destroyed rows are found out with the next heartbeat."""
        assert ownership.ended_ms is not None
        within_ms = milliseconds(self.scene.settings.fleet.lease_valid_for)
        return ownership.was_forced and self.scene.now_ms() - ownership.ended_ms <= within_ms

    def _check_handlers(self, shard: ShardId, holder: Ownership | None) -> None:
        """When a lease changes hands, no handler of a running process still has records of the old holding."""
        deliveries = self._open.get(shard, [])
        deliveries[:] = [each for each in deliveries if not each.is_over]
        for delivery in deliveries:
            if (
                delivery.ownership is holder
                and holder is not None
                and not holder.was_forced
                and delivery.process.state is ProcessState.RUNNING
            ):
                self.broken(
                    f"{delivery.process.name} lost {shard} while its handler has records since "
                    f"{delivery.began_ms} ms"
                )
