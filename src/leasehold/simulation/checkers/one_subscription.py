"""A process has at most one subscription to a shard. Two would replace each other, and each keep a connection open."""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.process import SimulatedProcess


class OneSubscription(Checker):
    """Counts the open subscriptions of each process."""

    promise = "one-subscription-a-shard"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._open: set[tuple[SimulatedProcess, LeaseKey]] = set()

    def subscription_opened(self, process: SimulatedProcess, shard: LeaseKey) -> None:
        if (process, shard) in self._open:
            self.report(f"{process.name} subscribes to {shard}, and has a subscription to it already")
        self._open.add((process, shard))

    def subscription_closed(self, process: SimulatedProcess, shard: LeaseKey) -> None:
        self._open.discard((process, shard))
