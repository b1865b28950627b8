"""After the last fault the shards are balanced, and then no lease moves."""

from __future__ import annotations

from collections import Counter
from typing import Final

from leasehold.core.events import Event, LeaseTaken
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.process import ProcessState, SimulatedProcess

_BOUND_MS: Final = 180_000


def count_shards(world: WorldView) -> Counter[SimulatedProcess]:
    """Count the shards that each running process owns."""
    running = [each for each in world.processes if each.is_member and each.state is ProcessState.RUNNING]
    held = Counter(dict.fromkeys(running, 0))
    current = world.ownerships.current
    held.update(
        current[lease.key].process for lease in world.services.active_leases() if lease.key in current
    )
    return held


def is_balanced(world: WorldView) -> bool:
    """Return whether every active lease has a running owner, and the counts differ by at most one.

    A leader that balances by load does not even out the counts. While all processes restart at the same time, nothing
    is balanced.
    """
    held = count_shards(world)
    if not held:
        return False
    is_even = world.load is not None or max(held.values()) - min(held.values()) <= 1
    return sum(held.values()) == len(world.services.active_leases()) and is_even


class BalancedAndStable(Checker):
    """Waits for balance after the last fault, then reports every lease that moves in the steady state."""

    promise = "balanced-and-stable"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._all_done_ms: int | None = None
        self._faults_are_over = self._is_steady = False

    def faults_ended(self) -> None:
        self._faults_are_over = True

    def steady_state_began(self) -> None:
        self._is_steady = True

    def load_began(self) -> None:
        self._faults_are_over = False  # now the leader evens out the load, not the number of leases

    def steady_state_ended(self) -> None:
        self._is_steady = self._faults_are_over = False

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        # The owner of a merged shard gives it up now and then if the lease of the other parent is missing. Both may
        # have left the stream.
        if self._is_steady and isinstance(event, LeaseTaken) and self._is_in_stream(event.key):
            self.report(f"{process.name} took {event.shard} although the shards were balanced")

    def _is_in_stream(self, key: LeaseKey) -> bool:
        return self.world.services.streams.find_shard(key) is not None

    def time_passed(self) -> None:
        if not self._faults_are_over or self._is_steady or self.world.ledger.open_records:
            return
        now_ms = self.world.now_ms()
        self._all_done_ms = self._all_done_ms or now_ms
        if now_ms - self._all_done_ms > _BOUND_MS and not is_balanced(self.world):
            counts = sorted(count_shards(self.world).values())
            self.report(f"the processes own {counts} shards {_BOUND_MS} ms after all records were done")
            self._faults_are_over = False
