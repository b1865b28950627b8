"""A healthy fleet shares the shards evenly, and then moves none of them any more."""

from __future__ import annotations

from collections import Counter
from typing import Final

from leasehold.core.events import Event, LeaseTaken
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.process import ProcessState, SimulatedProcess

_BOUND_MS: Final = 180_000


def shares(scene: WorldView) -> Counter[SimulatedProcess]:
    """How many shards each running process serves."""
    running = [each for each in scene.processes if each.state is ProcessState.RUNNING]
    held = Counter(dict.fromkeys(running, 0))
    current = scene.ownerships.current
    held.update(
        current[lease.shard_id].process for lease in scene.readable_leases() if lease.shard_id in current
    )
    return held


def is_balanced(scene: WorldView) -> bool:
    """Whether every shard that can be read is served, and nobody has two more than another."""
    held = shares(scene)
    return sum(held.values()) == len(scene.readable_leases()) and max(held.values()) - min(held.values()) <= 1


class BalancedAndStable(Checker):
    """Waits for balance after the last fault, then for a hundred rounds of nothing."""

    promise = "balanced-and-still"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._caught_up_ms: int | None = None
        self._healed = self._calm = False

    def faults_ended(self) -> None:
        self._healed = True

    def steady_state_began(self) -> None:
        self._calm = True

    def steady_state_ended(self) -> None:
        self._calm = self._healed = False

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if self._calm and isinstance(event, LeaseTaken):
            self.broken(f"{process.name} took {event.shard} in a fleet that was balanced")

    def time_passed(self) -> None:
        if not self._healed or self._calm or self.scene.ledger.open_records:
            return
        now_ms = self.scene.now_ms()
        self._caught_up_ms = self._caught_up_ms or now_ms
        if now_ms - self._caught_up_ms > _BOUND_MS and not is_balanced(self.scene):
            counts = sorted(shares(self.scene).values())
            self.broken(f"shares are {counts} {_BOUND_MS} ms after everything was read")
            self._healed = False
