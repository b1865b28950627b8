"""Reports how busy this member is, for as long as it can serve leases.

An unhealthy member (its heartbeats fail, or it cannot read) withdraws its report. Otherwise a leader would assign
leases to it that no member reads.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import (
    RANGE_MAX,
    REPORT_EVERY_MS,
    LoadSamples,
    WorkerReport,
    cpu_report,
)
from leasehold.core.model import WorkerId
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import LoadMeter
from leasehold.tasks import first_of

SAMPLE_EVERY_MS: Final = 1_000
WRITE_MAX_MS: Final = 3_000  # how long a stop waits for a report in flight
FIRST_SAMPLE_MS: Final = 500  # a meter needs two readings for its first value


@dataclass(slots=True, kw_only=True)
class WorkerReporter:
    """The report of one member. Without a `meter` it carries no CPU load, and a leader balances by throughput alone.

    `range_percent` is its operating range: above it, a leader relieves it.
    """

    coordinator_rows: CoordinatorRows
    layout: TableLayout
    worker: WorkerId
    meter: LoadMeter | None
    held_leases: HeldLeases
    operations: Operations
    range_percent: int = RANGE_MAX
    _samples: LoadSamples = field(default_factory=LoadSamples)
    _last: WorkerReport | None = None
    _in_flight: WorkerReport | None = None  # it may or may not have reached the table
    _due_ms: int = 0
    _no_write: asyncio.Event = field(default_factory=asyncio.Event)  # set while no write is in flight

    def __post_init__(self) -> None:
        self._no_write.set()

    async def run(self) -> None:
        """Measure every second and report every thirty, until cancelled."""
        clock = self.operations.clock
        if self.meter is not None:
            await self.meter.percent()
            await clock.sleep_ms(FIRST_SAMPLE_MS)
        while True:
            if self.meter is not None:
                self._samples = self._samples.with_sample(await self.meter.percent())
            await self.operations.attempt("report", self._report_if_due)
            await clock.sleep_ms(SAMPLE_EVERY_MS)

    async def finish_write(self) -> None:
        """Wait for a write in flight, for a limited time. A cancelled one could arrive after the withdrawal."""
        if not self._no_write.is_set():
            await first_of(self._no_write.wait(), self.operations.clock.sleep_ms(WRITE_MAX_MS))

    async def withdraw(self) -> None:
        """Delete the report. `run` writes a new one when the member is healthy."""
        written = [report for report in (self._in_flight, self._last) if report is not None]
        self._last = self._in_flight = None
        self._due_ms = 0
        for report in written:
            await self.coordinator_rows.withdraw_report(self.layout, report)

    async def _report_if_due(self) -> None:
        clock = self.operations.clock
        if not self.held_leases.is_healthy:
            await self.withdraw()
        elif clock.now_ms() >= self._due_ms:
            self._samples = self._samples.with_average()
            samples = self._samples if self.meter is not None else None
            report = cpu_report(self.worker, samples, clock.wall_ms() // 1000, self.range_percent)
            # Invariant: noted before the write. If cancelled, the write may or may not have reached the table.
            self._in_flight = report
            self._no_write.clear()
            try:
                await self.coordinator_rows.write_report(self.layout, report)
            finally:
                self._no_write.set()
            self._in_flight = None
            self._last, self._due_ms = report, clock.now_ms() + REPORT_EVERY_MS
