"""After the last fault, every active lease gets an owner within a bound that follows from the settings."""

from __future__ import annotations

from typing import Final

from leasehold.config.settings import Mode, milliseconds
from leasehold.core.model import LeaseKey
from leasehold.fleet.maintenance.lease_maintenance import JOIN_RETRY_MS
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.process import Role
from leasehold.simulation.environment.streams import StreamChoice

_MEMBERS: Final = frozenset({Role.WORKER, Role.READER})


class EveryShardOwned(Checker):
    """A shard is owned while its row has the session of a process that is alive."""

    promise = "every-shard-owned"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._faults_are_over = False
        self._unowned_since_ms: dict[LeaseKey, int] = {}

    def faults_ended(self) -> None:
        self._faults_are_over = True

    def steady_state_ended(self) -> None:
        self._faults_are_over = False

    def time_passed(self) -> None:
        if not self._faults_are_over:
            return
        now_ms, fleet = self.world.now_ms(), self.world.settings.fleet
        # Members refresh at intervals, may lose races, and cool down after a failure.
        slack_ms = milliseconds(fleet.refresh_every * 4 + fleet.cooldown_after_failure) + 2_000
        bound_ms = milliseconds(fleet.failover_after + 2 * fleet.renew_every) + slack_ms
        if fleet.mode is Mode.LEADER:
            # A leader may have to be elected first, and it may assign the lease to a dead member at first.
            bound_ms += milliseconds(fleet.leader_lock_duration + fleet.failover_after)
        if self.world.services.streams.plan.choice is not StreamChoice.ONE:
            # A member may have to discover and join the stream first, and join it again after a failure.
            bound_ms += milliseconds(self.world.settings.identity.discover_streams_every) + JOIN_RETRY_MS
        if not any(each.is_alive and each.role in _MEMBERS for each in self.world.processes):
            # Between two bounded runs of a query there is no member. The next one has seen no lease before.
            self._unowned_since_ms.clear()
            return
        current = self.world.ownerships.current
        unowned = [
            lease
            for lease in self.world.services.active_leases()
            if lease.key not in current or not current[lease.key].process.is_alive
        ]
        self._unowned_since_ms = {
            lease.key: self._unowned_since_ms.get(lease.key, now_ms) for lease in unowned
        }
        for key, since_ms in self._unowned_since_ms.items():
            if now_ms - since_ms > bound_ms:
                self.report(f"{key} has had no owner for {now_ms - since_ms} ms; {bound_ms} are allowed")
