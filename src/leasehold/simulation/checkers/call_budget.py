"""A calm fleet makes no more calls than its settings explain: the published budget of docs/simulation.md."""

from __future__ import annotations

from typing import Final

from leasehold.settings import milliseconds
from leasehold.simulation.checkers.base import Checker, Report, Scene
from leasehold.simulation.network import Dependency
from leasehold.simulation.process import ProcessState

_HOUR_MS: Final = 3_600_000
_SLACK: Final = 1.25


class CallsWithinBudget(Checker):
    """Counts from the beginning of the calm to its end."""

    promise = "calls-within-budget"

    def __init__(self, scene: Scene, report: Report) -> None:
        super().__init__(scene, report)
        self._before: dict[Dependency, int] = {}
        self._since_ms = 0
        self._budget: dict[Dependency, float] = {}

    def calmed(self) -> None:
        self._since_ms = self.scene.now_ms()
        self._before = {each: self._calls(each) for each in (Dependency.LEASES, Dependency.STREAM)}
        self._budget = self._budget_per_hour()

    def calm_ends(self) -> None:
        hours = (self.scene.now_ms() - self._since_ms) / _HOUR_MS
        for dependency, before in self._before.items():
            made, allowed = self._calls(dependency) - before, self._budget[dependency] * hours + 50
            if made > allowed:
                self.broken(
                    f"{made} calls to {dependency.value} in {hours * 60:.1f} calm minutes, {allowed:.0f} are allowed"
                )

    def _budget_per_hour(self) -> dict[Dependency, float]:
        """Heartbeats and checkpoints a shard; looks, audits and cleanups a member; polls a shard."""
        fleet, read = self.scene.settings.fleet, self.scene.settings.read
        shards = len(self.scene.readable_leases())
        members = sum(process.state is ProcessState.RUNNING for process in self.scene.processes)
        looks = _per_hour(milliseconds(fleet.look_every))
        rounds = _per_hour(milliseconds(fleet.audit_every)) + _per_hour(milliseconds(fleet.clean_up_every))
        beats = _per_hour(milliseconds(fleet.renew_every))
        polls = _per_hour(milliseconds(read.idle_poll_every))
        return {
            Dependency.LEASES: _SLACK * (members * (looks + rounds) + shards * beats),
            Dependency.STREAM: _SLACK * (shards * polls + members * rounds),
        }

    def _calls(self, dependency: Dependency) -> int:
        return sum(count for (where, _), count in self.scene.network.calls.items() if where is dependency)


def _per_hour(every_ms: int) -> float:
    return _HOUR_MS / every_ms
