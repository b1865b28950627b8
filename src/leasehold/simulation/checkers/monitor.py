"""Runs all checkers, and keeps the promises that they report as broken."""

from __future__ import annotations

from collections.abc import Callable

from leasehold.simulation.checkers import CHECKERS
from leasehold.simulation.checkers.base import BrokenPromise, Checker, WorldView
from leasehold.simulation.environment.trace import WORLD, Trace


class PromiseMonitor:
    """Notifies every checker of what happens. `on_broken` is called for each broken promise."""

    def __init__(self, world: WorldView, trace: Trace) -> None:
        self.broken: list[BrokenPromise] = []
        self.on_broken: Callable[[], None] = lambda: None
        self._world = world
        self._trace = trace
        self._checkers = [kind(world, self.report) for kind in CHECKERS]

    def notify(self, call_hook: Callable[[Checker], None]) -> None:
        """Call a hook of every checker."""
        for checker in self._checkers:
            call_hook(checker)

    def report(self, promise: str, detail: str) -> None:
        """Record a broken promise."""
        if not self.broken:
            self._trace.add(WORLD, "BROKEN", "", f"{promise}: {detail}")
        self.broken.append(BrokenPromise(self._world.now_ms(), promise, detail))
        self.on_broken()
