"""A leader that balances by load relieves a busy worker of a steady load, and then does no harm."""

from __future__ import annotations

from collections import Counter
from typing import Final

from leasehold.core.events import Event, LeaseTaken
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.load import LoadPlan
from leasehold.simulation.environment.process import ProcessState, SimulatedProcess

# Throughput is evened out within two minutes, and a lease that was moved on the way stays for two. Then costs are
# learned and applied within five minutes, if the throughput is steady: each further move delays that by 150 seconds.
_RELIEVED_WITHIN_MS: Final = 540_000
# A move that would lower the highest load by less than this part of the mean is not expected.
_WORTH_IT: Final = 0.3
# Costs are estimates: a move may raise the load by this part of the mean, from which on it would be evened out.
_HARMFUL: Final = 0.1
# Of one lease, within twelve minutes: after its first move it stays for two minutes, then for eight.
_MOVES_MAX: Final = 3

_Loads = dict[SimulatedProcess, dict[LeaseKey, float]]


class LoadIsEven(Checker):
    """Compares the true loads of the workers, which the leader can only estimate.

    If the load is not steady, the leader may act on a fluctuation at any time: only the number of moves is limited.
    """

    promise = "busy-workers-are-relieved"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._began_ms: int | None = None
        self._moves: Counter[LeaseKey] = Counter()
        self._owners: dict[LeaseKey, SimulatedProcess] = {}

    def load_began(self) -> None:
        self._began_ms = self.world.now_ms()
        plan = self.world.load
        loads = {} if plan is None else _loads(self.world, plan)
        self._owners = {key: process for process, leases in loads.items() for key in leases}

    def load_ended(self) -> None:
        self._began_ms = None

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if self._began_ms is None or not isinstance(event, LeaseTaken):
            return
        self._moves[event.key] += 1
        source, self._owners[event.key] = self._owners.get(event.key), process
        if self._moves[event.key] > _MOVES_MAX:
            self.report(f"{event.key} has moved {self._moves[event.key]} times, and the load is the same")
        plan = self.world.load
        if source is not None and plan is not None and self._is_late():
            loads = _loads(self.world, plan)
            if is_harmful_move(loads, event.key, source, process):
                self.report(f"{event.key} moved from {source.name} to {process.name}, which raises the load")

    def time_passed(self) -> None:
        plan = self.world.load
        if plan is None or not self._is_late():
            return
        move = find_worthy_move(_loads(self.world, plan))
        if move is not None:
            self.report(move)

    def _is_late(self) -> bool:
        """Whether a steady load should have been evened out by now."""
        if self._began_ms is None or self.world.load is None or not self.world.load.is_steady:
            return False
        return self.world.now_ms() - self._began_ms > _RELIEVED_WITHIN_MS


def find_worthy_move(loads: _Loads) -> str | None:
    """Return what a leader should have done: a move of one lease that makes the highest load much lower.

    A worker with a single lease is left out: this lease makes each worker busy to which it moves.
    """
    totals = {process: sum(leases.values()) for process, leases in loads.items()}
    relievable = [process for process, leases in loads.items() if len(leases) > 1]
    busiest = max(relievable, key=lambda each: totals[each], default=None)
    if busiest is None:
        return None
    for key, weight in loads[busiest].items():
        for other, total in totals.items():
            costs = weight / busiest.slowness * other.slowness
            after = max(totals[busiest] - weight, total + costs)
            if other is not busiest and totals[busiest] - after > _WORTH_IT * _mean(loads):
                return (
                    f"{busiest.name} has a load of {totals[busiest]:.1f} and {other.name} {total:.1f}, although {key} "
                    f"with {weight:.1f} could move"
                )
    return None


def is_harmful_move(loads: _Loads, key: LeaseKey, source: SimulatedProcess, to: SimulatedProcess) -> bool:
    """Return whether a move that was made has raised the higher load of the two workers much."""
    if source not in loads or key not in loads.get(to, {}):
        return False  # the owner has ended, or the lease already moves on
    weight = loads[to][key]
    given, taken = sum(loads[source].values()), sum(loads[to].values())
    before = max(given + weight / to.slowness * source.slowness, taken - weight)
    return max(given, taken) - before > _HARMFUL * _mean(loads)


def _mean(loads: _Loads) -> float:
    return sum(sum(leases.values()) for leases in loads.values()) / max(1, len(loads))


def _loads(world: WorldView, plan: LoadPlan) -> _Loads:
    """Return the true load of each lease. A lease in handoff counts for its next owner."""
    running = [each for each in world.processes if each.is_member and each.state is ProcessState.RUNNING]
    by_worker = {process.worker: process for process in running}
    loads: _Loads = {process: {} for process in running}
    for lease in world.services.active_leases():
        owner = None if lease.owner is None else by_worker.get(lease.owner)
        if owner is not None:
            loads[owner][lease.key] = plan.weight_of(lease.shard_id) * owner.slowness
    return loads
