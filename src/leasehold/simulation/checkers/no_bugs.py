"""A process runs until it is asked to stop, and no fault makes it fail."""

from __future__ import annotations

from leasehold.core.events import Event, OperationFailed
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.process import ProcessState, Role, SimulatedProcess


class NoBugs(Checker):
    """A programming error ends a member. No fault of the environment may cause one."""

    promise = "runs-until-stopped"

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        # Service failures are reported with a message; unexpected errors only with the name of their class.
        if isinstance(event, OperationFailed) and event.error.isidentifier():
            self.report(f"{process.name}: {event.operation} failed with {event.error}")

    def process_exited(self, process: SimulatedProcess) -> None:
        main = process.main
        if process.state is not ProcessState.ENDED or main is None:
            return
        error = None if main.cancelled() else main.exception()
        if error is not None:
            self.report(f"{process.name} ended with {error!r}")
        elif not process.is_stopping and process.role is not Role.DRIVER:
            self.report(f"{process.name} ended without being asked to: {main.result()!r}")
