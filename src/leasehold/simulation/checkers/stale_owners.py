"""A former owner neither changes the progress of the lease nor delivers records of its shard."""

from __future__ import annotations

from leasehold.config.settings import milliseconds
from leasehold.core.leases.heartbeats import tick_max_ms
from leasehold.core.leases.lease_row import CHECKPOINT, CHECKPOINT_SUB, PENDING, PENDING_SUB
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, LeaseChange, Ownership, session_in
from leasehold.simulation.environment.process import ProcessState, SimulatedProcess

_PROGRESS = (CHECKPOINT, CHECKPOINT_SUB, PENDING, PENDING_SUB)


class StaleOwnersStop(Checker):
    """Only the owner in the row may move the checkpoint and deliver records."""

    promise = "stale-owners-stop"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._deliveries: dict[LeaseKey, list[Delivery]] = {}
        self._owners: dict[LeaseKey, Ownership] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        row, shard = change.row, LeaseKey(change.row.key)
        owner = self._owners.get(shard)
        if row.by is not None and row.before is not None and row.after is not None:
            moved = any(row.before.get(name) != row.after.get(name) for name in _PROGRESS)
            begins = session_in(row.before) != session_in(row.after)
            if moved and not begins and (owner is None or owner.process is not row.by.member):
                self.report(
                    f"{row.by.name} moved {row.key}, whose owner is {owner.process.name if owner else 'no process'}"
                )
        current = self.world.ownerships.current.get(shard)
        if current is not owner:
            self._check_handlers(shard, owner)
            if current is None:
                self._owners.pop(shard, None)
            else:
                self._owners[shard] = current

    def delivery_began(self, delivery: Delivery) -> None:
        ownership = delivery.ownership
        if ownership is None:
            self.report(
                f"{delivery.process.name} delivers from {delivery.shard} with fencing token {delivery.fencing_token}"
            )
            return
        if ownership.ended_ms is not None and not self._is_excused(ownership):
            late_ms = self.world.now_ms() - ownership.ended_ms
            self.report(
                f"{delivery.process.name} delivers from {delivery.shard} {late_ms} ms after it lost the lease"
            )
        self._deliveries.setdefault(delivery.shard, []).append(delivery)

    def _is_excused(self, ownership: Ownership) -> bool:
        """An owner learns of a forced handoff or a destroyed row with its next heartbeat."""
        assert ownership.ended_ms is not None
        within_ms = milliseconds(self.world.settings.fleet.lease_valid_for)
        return ownership.was_forced and self.world.now_ms() - ownership.ended_ms <= within_ms

    def _check_handlers(self, shard: LeaseKey, owner: Ownership | None) -> None:
        """Check that no handler of a running process still has records of the former session."""
        deliveries = self._deliveries.get(shard, [])
        deliveries[:] = [each for each in deliveries if not each.is_over]
        for delivery in deliveries:
            if (
                delivery.ownership is owner
                and owner is not None
                and not owner.was_forced
                and delivery.process.state is ProcessState.RUNNING
                and not self._has_just_woken(delivery.process)
            ):
                self.report(
                    f"{delivery.process.name} lost {shard} while its handler had records since "
                    f"{delivery.began_ms} ms"
                )

    def _has_just_woken(self, process: SimulatedProcess) -> bool:
        """The timers of a suspended machine stop. A handler continues at once when it wakes up, and the member notices
        with its next tick of heartbeats that the lease has expired.
        """
        woken_ms, tick_ms = (
            process.clock.woken_ms,
            tick_max_ms(milliseconds(self.world.settings.fleet.renew_every)),
        )
        return woken_ms is not None and self.world.now_ms() - woken_ms <= tick_ms
