"""A member that is denied access says so: the log and the health endpoint are made of its events."""

from __future__ import annotations

from typing import Final

from leasehold.core.events import (
    Event,
    FanOutRefused,
    LeaseLost,
    LeasesRenewed,
    OperationFailed,
    ReadFailed,
    SubscriptionLost,
)
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.process import ProcessState, SimulatedProcess

# A call may be one of several attempts, and only the last failure is reported.
_WITHIN_MS: Final = 30_000


class RefusalsAreTold(Checker):
    """Expects an event about a failure soon after a call to the leases or the stream was refused."""

    promise = "refusals-are-told"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._untold_since_ms: dict[SimulatedProcess, int] = {}

    def call_refused(self, process: SimulatedProcess, dependency: Dependency) -> None:
        if process.is_member and dependency in {Dependency.LEASES, Dependency.STREAM}:
            self._untold_since_ms.setdefault(process, self.world.now_ms())

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        match event:
            case OperationFailed() | ReadFailed() | LeaseLost() | SubscriptionLost() | FanOutRefused():
                self._untold_since_ms.pop(process, None)
            case LeasesRenewed(failed=failed) if failed:
                self._untold_since_ms.pop(process, None)

    def process_exited(self, process: SimulatedProcess) -> None:
        self._untold_since_ms.pop(process, None)

    def time_passed(self) -> None:
        for process, since_ms in list(self._untold_since_ms.items()):
            if process.state is not ProcessState.RUNNING or process.clock.suspended_ms:
                del self._untold_since_ms[process]  # it had no time to say anything
            elif self.world.now_ms() - since_ms > _WITHIN_MS:
                self.report(f"{process.name} was denied access at {since_ms} ms, and has not reported it")
