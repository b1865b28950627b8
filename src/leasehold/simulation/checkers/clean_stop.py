"""A clean stop leaves no task in the process and no owner in the table."""

from __future__ import annotations

import asyncio

from leasehold.core.events import Event, LeaseLost, LeaseTaken, OperationFailed
from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.process import ProcessState, SimulatedLoop, SimulatedProcess


class CleanStop(Checker):
    """Checks each process that ends, and the table after all have ended.

    A lease of a former stream may keep a name: that of an owner that lost it, could not release it or got no response
    when it took it, or of the next owner, to which it was handed over when the stream disappeared. Nobody serves it, so
    nobody releases it.
    """

    promise = "clean-stop"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._lost: set[LeaseKey] = set()

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:  # noqa: ARG002 - part of the hook
        match event:
            case LeaseLost(key=key):
                self._lost.add(key)
            case OperationFailed(operation=operation) if operation.startswith(("release ", "take ")):
                self._lost.add(LeaseKey(operation.partition(" ")[2]))
            case LeaseTaken(key=key):
                self._lost.discard(key)

    def process_exited(self, process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        if process.state is ProcessState.ENDED:
            left = loop.tasks_of(process)
            if left:
                self.report(f"{process.name} ended and left {len(left)} tasks: {left[0].get_coro()}")

    def all_stopped(self) -> None:
        followed = self.world.services.streams.followed_ids
        for lease in self.world.services.leases():
            is_excused = lease.stream not in followed and not self._was_served(lease.key)
            if lease.owner is not None and not lease.checkpoint.is_shard_end and not is_excused:
                self.report(f"{lease.key} still has the owner {lease.owner} after all processes have stopped")

    def _was_served(self, key: LeaseKey) -> bool:
        """Return whether the last owner of a lease served it until its clean stop."""
        current = self.world.ownerships.current.get(key)
        return current is not None and current.process.state is ProcessState.ENDED and key not in self._lost
