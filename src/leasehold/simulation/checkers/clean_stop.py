"""A stop in good order leaves nothing behind: no task in the process, no owner in the table."""

from __future__ import annotations

import asyncio

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.process import ProcessState, SimulatedLoop, SimulatedProcess


class CleanStop(Checker):
    """Looks at each process that ended by itself, and at the table in the end."""

    promise = "clean-stop"

    def process_gone(self, process: SimulatedProcess) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        if process.state is ProcessState.ENDED:
            left = loop.tasks_of(process)
            if left:
                self.broken(f"{process.name} ended and left {len(left)} tasks: {left[0].get_coro()}")

    def all_stopped(self) -> None:
        for lease in self.scene.leases():
            if lease.owner is not None and not lease.checkpoint.is_shard_end:
                self.broken(f"{lease.key} still has the owner {lease.owner} after all have stopped")
