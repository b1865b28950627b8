"""Tells the fleet how busy this member is, as long as it can serve leases.

A member that is not well (its heartbeats fail, or it cannot read) takes its report back: a leader that went by a
fresh report would give it leases that nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import REPORT_EVERY_MS, LoadSamples, WorkerReport, cpu_report
from leasehold.core.model import WorkerId
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import LoadMeter

SAMPLE_EVERY_MS: Final = 1_000
FIRST_SAMPLE_MS: Final = 500  # a meter needs two readings for a first figure


@dataclass(slots=True, kw_only=True)
class WorkerReporter:
    """One member's report. `meter` is None where nothing is measured: then throughput alone counts."""

    coordinator_rows: CoordinatorRows
    place: TableLayout
    worker: WorkerId
    meter: LoadMeter | None
    held_leases: HeldLeases
    operations: Operations
    _samples: LoadSamples = field(default_factory=LoadSamples)
    _last: WorkerReport | None = None
    _unanswered: WorkerReport | None = None  # it may be in the table, or on its way
    _due_ms: int = 0

    async def run(self) -> None:
        """Measure every second, report every thirty, until cancelled."""
        if self.meter is not None:
            await self.meter.percent()
            await self.operations.clock.sleep_ms(FIRST_SAMPLE_MS)
        while True:
            if self.meter is not None:
                self._samples = self._samples.with_sample(await self.meter.percent())
            await self.operations.attempt("report", self._report_if_due)
            await self.operations.clock.sleep_ms(SAMPLE_EVERY_MS)

    async def _report_if_due(self) -> None:
        if not self.held_leases.is_healthy:
            await self.withdraw()
        elif self.operations.clock.now_ms() >= self._due_ms:
            self._samples = self._samples.with_average()
            figures = self._samples if self.meter is not None else None
            now_s = self.operations.clock.wall_ms() // 1000
            report = cpu_report(self.worker, figures, now_s)
            self._unanswered = report
            await self.coordinator_rows.report(self.place, report)
            self._unanswered = None
            self._last, self._due_ms = report, self.operations.clock.now_ms() + REPORT_EVERY_MS

    async def withdraw(self) -> None:
        """Take the report back, so that nobody counts on us; it comes again when all is well."""
        told = [report for report in (self._unanswered, self._last) if report is not None]
        self._last = self._unanswered = None
        self._due_ms = 0
        for report in told:
            await self.coordinator_rows.withdraw_report(self.place, report)
