"""A clean stop leaves no task in the process and no owner in the table."""

from __future__ import annotations

import asyncio

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.process import ProcessState, SimulatedLoop, SimulatedProcess


class CleanStop(Checker):
    """Checks each process that ends, and the table after all have ended."""

    promise = "clean-stop"

    def process_exited(self, process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        if process.state is ProcessState.ENDED:
            left = loop.tasks_of(process)
            if left:
                self.report(f"{process.name} ended and left {len(left)} tasks: {left[0].get_coro()}")

    def all_stopped(self) -> None:
        for lease in self.world.services.leases():
            if lease.owner is not None and not lease.checkpoint.is_shard_end:
                self.report(f"{lease.key} still has the owner {lease.owner} after all processes have stopped")
