"""A calm fleet makes no more calls than its settings explain: the published budget of docs/simulation.md."""

from __future__ import annotations

from collections import Counter
from typing import Final

from leasehold.config.settings import Mode, milliseconds
from leasehold.core.coordinator.worker_metrics import REPORT_EVERY_MS
from leasehold.fleet.assignment.refresh_schedule import STANDBY_REFRESH_LOCKS
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.network import Dependency
from leasehold.simulation.process import ProcessState

_HOUR_MS: Final = 3_600_000
_SLACK: Final = 1.25


class CallsWithinBudget(Checker):
    """Counts from the beginning of the calm to its end."""

    promise = "calls-within-budget"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._before: dict[Dependency, int] = {}
        self._since_ms = 0
        self._budget: dict[Dependency, float] = {}
        self._rest = 0

    def steady_state_began(self) -> None:
        self._since_ms = self.scene.now_ms()
        self._before = {each: self._calls(each) for each in (Dependency.LEASES, Dependency.STREAM)}
        self._budget = self._budget_per_hour()
        # Finished leases are deleted in the calm, each after a look at its shard and its family.
        self._rest = 50 + 3 * sum(lease.checkpoint.is_shard_end for lease in self.scene.leases())

    def steady_state_ended(self) -> None:
        hours = (self.scene.now_ms() - self._since_ms) / _HOUR_MS
        for dependency, before in self._before.items():
            made, allowed = self._calls(dependency) - before, self._budget[dependency] * hours + self._rest
            if made > allowed:
                self.broken(
                    f"{made} calls to {dependency.value} in {hours * 60:.1f} calm minutes, {allowed:.0f} are allowed"
                )

    def _budget_per_hour(self) -> dict[Dependency, float]:
        """Heartbeats, which take checkpoints along, a shard; looks, audits and cleanups a member; polls a shard."""
        fleet, read = self.scene.settings.fleet, self.scene.settings.read
        shards = len(self.scene.readable_leases())
        members = sum(process.state is ProcessState.RUNNING for process in self.scene.processes)
        rounds = _per_hour(milliseconds(fleet.audit_every)) + _per_hour(milliseconds(fleet.clean_up_every))
        polls = _per_hour(milliseconds(read.idle_poll_every))
        looks = self._looks_when_led(members) if fleet.mode is Mode.LEADER else self._looks_of_peers(members)
        beats = shards * _per_hour(milliseconds(fleet.renew_every))
        return {
            Dependency.LEASES: _SLACK * (looks + beats + members * rounds),
            Dependency.STREAM: _SLACK * (shards * polls + members * rounds),
        }

    def _looks_of_peers(self, members: int) -> float:
        return members * _per_hour(milliseconds(self.scene.settings.fleet.refresh_every))

    def _looks_when_led(self, members: int) -> float:
        """The leader looks and beats, everyone reports and stands by, and looks in between who holds few leases."""
        fleet = self.scene.settings.fleet
        lead = _per_hour(milliseconds(fleet.leader_refresh_every)) + 2 * _per_hour(
            milliseconds(fleet.leader_lock_duration)
        )
        held = Counter(lease.owner for lease in self.scene.readable_leases())
        per_lease = _per_hour(milliseconds(fleet.renew_every))
        ears = [_per_hour(milliseconds(fleet.refresh_every)) - per_lease * held[owner] for owner in held]
        lacking = sum(max(0.0, ear) for ear in ears)
        idle = max(0, members - len(held)) * _per_hour(milliseconds(fleet.refresh_every))
        standby = _per_hour(milliseconds(fleet.leader_lock_duration * STANDBY_REFRESH_LOCKS))
        return lead + lacking + idle + members * (_per_hour(REPORT_EVERY_MS) + standby)

    def _calls(self, dependency: Dependency) -> int:
        return sum(count for (where, _), count in self.scene.network.calls.items() if where is dependency)


def _per_hour(every_ms: int) -> float:
    return _HOUR_MS / every_ms
