"""A process runs until it is told to stop, and no error goes unseen."""

from __future__ import annotations

from leasehold.core.events import Event, OperationFailed
from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.process import ProcessState, SimulatedProcess


class NoBugs(Checker):
    """An error of ours ends a member, and its leases expire: never because of what the world did."""

    promise = "runs-until-told-to-stop"

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        # Only of errors that are not ours is the type told alone.
        if isinstance(event, OperationFailed) and event.error.isidentifier():
            self.broken(f"{process.name}: {event.operation} failed with {event.error}")

    def process_gone(self, process: SimulatedProcess) -> None:
        main = process.main
        if process.state is not ProcessState.ENDED or main is None:
            return
        error = None if main.cancelled() else main.exception()
        if error is not None:
            self.broken(f"{process.name} ended with {error!r}")
        elif not process.is_stopping:
            self.broken(f"{process.name} ended by itself: {main.result()!r}")
