"""Records that were trimmed before they were read are reported: no loss is silent."""

from __future__ import annotations

from leasehold.core.events import Event, GapFound, ReadingStarted, ShardEnded
from leasehold.core.model import LeaseKey
from leasehold.core.position import SHARD_END, Position
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery
from leasehold.simulation.environment.process import Role, SimulatedProcess
from leasehold.simulation.environment.query_history import DeliveredSlice


class LossesAreReported(Checker):
    """A process that starts to read where records were trimmed must report a gap before it delivers a record.

    Records that are trimmed while a process reads the shard do not count: real streams keep records for a day, and such
    a reader is near the tip. An executor may read a shard twice at the same time, for two attempts at a task: the gap
    counts as reported if one of them has reported it. They may also be attempts at two batches, which start at two
    positions: each must report its own.
    """

    promise = "losses-are-reported"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._gaps_to_report: set[tuple[SimulatedProcess, LeaseKey, Position]] = set()
        self._reported: set[tuple[SimulatedProcess, LeaseKey, Position]] = set()

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        match event:
            case ReadingStarted(shard_key=shard, position=position):
                shard_ledger = self.world.ledger.shard(shard)
                is_trimmed = (
                    position.is_record and shard_ledger.index_after(position) < shard_ledger.trimmed_before
                )
                start = (process, shard, position)
                if process.role is not Role.EXECUTOR:
                    self._forget(process, shard)  # a member reads a shard once at a time
                must_report = is_trimmed and start not in self._reported
                (self._gaps_to_report.add if must_report else self._gaps_to_report.discard)(start)
            case GapFound(shard_key=shard, gap=gap):
                self._forget(process, shard, up_to=gap.after)
                self._reported.add((process, shard, gap.after))
            case ShardEnded(shard_key=shard):
                self._require_report(process, shard)

    def delivery_began(self, delivery: Delivery) -> None:
        self._require_report(delivery.process, delivery.shard)

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        if not delivered.continues_poll:
            self._require_report(delivered.by, delivered.shard, delivered.start)

    def _forget(self, process: SimulatedProcess, shard: LeaseKey, up_to: Position = SHARD_END) -> None:
        self._gaps_to_report -= {
            (by, of, start)
            for by, of, start in self._gaps_to_report
            if (by, of) == (process, shard) and start <= up_to
        }

    def _require_report(
        self, process: SimulatedProcess, shard: LeaseKey, start: Position | None = None
    ) -> None:
        """Report a gap that was not reported: of the reading from `start`, or of any."""
        open_gaps = [position for by, of, position in self._gaps_to_report if (by, of) == (process, shard)]
        if start in open_gaps or (start is None and open_gaps):
            self.report(f"{process.name} delivers from {shard} and has not reported the trimmed records")


class DataLossStopsTheQuery(Checker):
    """With failOnDataLoss, a task that finds a gap fails, and delivers nothing from this shard."""

    promise = "data-loss-stops-the-query"

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        if delivered.has_gap and delivered.by in self.world.query.fail_on_data_loss:
            self.report(f"{delivered.by.name} delivers from {delivered.shard} although records were trimmed")
