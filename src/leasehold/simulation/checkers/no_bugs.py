"""A process runs until it is asked to stop, and no fault makes it fail."""

from __future__ import annotations

from leasehold.core.events import Event, MemberStarted, OperationFailed
from leasehold.errors import ConfigError
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.process import ProcessState, Role, SimulatedProcess


class NoBugs(Checker):
    """A programming error ends a member. No fault of the environment may cause one.

    A worker that is denied access before it has joined the fleet may end, with an error that names the cause.
    """

    promise = "runs-until-stopped"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._refused: set[SimulatedProcess] = set()
        self._joined: set[SimulatedProcess] = set()

    def call_refused(self, process: SimulatedProcess, dependency: Dependency) -> None:  # noqa: ARG002 - part of the hook
        self._refused.add(process)

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, MemberStarted):
            self._joined.add(process)
        # Service failures are reported with a message; unexpected errors only with the name of their class.
        if isinstance(event, OperationFailed) and event.error.isidentifier():
            self.report(f"{process.name}: {event.operation} failed with {event.error}")

    def process_exited(self, process: SimulatedProcess) -> None:
        main = process.main
        if process.state is not ProcessState.ENDED or main is None:
            return
        error = None if main.cancelled() else main.exception()
        may_fail = process in self._refused and process not in self._joined
        if isinstance(error, ConfigError) and may_fail:
            return
        if error is not None:
            self.report(f"{process.name} ended with {error!r}")
        elif not process.is_stopping and process.role is not Role.DRIVER:
            self.report(f"{process.name} ended without being asked to: {main.result()!r}")
