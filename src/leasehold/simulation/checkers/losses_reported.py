"""Records that left the stream before they were read are told of: no loss is silent."""

from __future__ import annotations

from leasehold.core.events import Event, GapFound, ReadingStarted, ShardEnded
from leasehold.core.model import ShardId
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery
from leasehold.simulation.process import SimulatedProcess


class LossesAreReported(Checker):
    """Whoever begins to read after a record whose successor is gone must say so before it goes on.

    What is trimmed under the eyes of a reader does not count: it is near the tip, and real streams keep a day.
    """

    promise = "losses-are-told"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._owed: set[tuple[SimulatedProcess, ShardId]] = set()

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        match event:
            case ReadingStarted(shard=shard, position=position):
                book = self.scene.ledger.shard(shard)
                is_gone = position.is_record and book.first_after(position) < book.gone
                (self._owed.add if is_gone else self._owed.discard)((process, shard))
            case GapFound(shard=shard):
                self._owed.discard((process, shard))
            case ShardEnded(shard=shard):
                self._demand(process, shard)

    def delivery_began(self, delivery: Delivery) -> None:
        self._demand(delivery.process, delivery.shard)

    def _demand(self, process: SimulatedProcess, shard: ShardId) -> None:
        if (process, shard) in self._owed:
            self.broken(f"{process.name} goes on with {shard} and has not told that records are missing")
