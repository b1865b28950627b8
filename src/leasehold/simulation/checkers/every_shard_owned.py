"""After the last fault, every shard that can be read is owned within the failover time and two renewals."""

from __future__ import annotations

from leasehold.config.settings import Mode, milliseconds
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView


class EveryShardOwned(Checker):
    """A shard is owned while its row names a holding of a process that runs."""

    promise = "every-shard-owned"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._healed = False
        self._unowned_since_ms: dict[LeaseKey, int] = {}

    def faults_ended(self) -> None:
        self._healed = True

    def steady_state_ended(self) -> None:
        self._healed = False

    def time_passed(self) -> None:
        if not self._healed:
            return
        now_ms, fleet = self.scene.now_ms(), self.scene.settings.fleet
        # A member looks once in a while, races are lost, and what was given up rests for a while.
        slack_ms = milliseconds(fleet.refresh_every * 4 + fleet.cooldown_after_failure) + 2_000
        bound_ms = milliseconds(fleet.failover_after + 2 * fleet.renew_every) + slack_ms
        if fleet.mode is Mode.LEADER:
            # A leader may have to be found first, and the first whom it gives a lease may be dead.
            bound_ms += milliseconds(fleet.leader_lock_duration + fleet.failover_after)
        owned = self.scene.ownerships.current
        unowned = [
            lease
            for lease in self.scene.readable_leases()
            if lease.shard_id not in owned or not owned[lease.shard_id].process.is_alive
        ]
        self._unowned_since_ms = {
            lease.key: self._unowned_since_ms.get(lease.key, now_ms) for lease in unowned
        }
        for key, since_ms in self._unowned_since_ms.items():
            if now_ms - since_ms > bound_ms:
                self.broken(
                    f"{key} has had no owner for {now_ms - since_ms} ms, {bound_ms} at most are allowed"
                )
