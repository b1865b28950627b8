"""The report of a member that has stopped is deleted."""

import asyncio
import random
from types import SimpleNamespace
from typing import cast

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import REPORT_EVERY_MS
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import WorkerId
from leasehold.fleet.assignment.worker_reporter import WorkerReporter
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.tasks import cancel_and_wait


class _LateAnswers(MemoryRows):
    """A store that applies a write at once and responds later."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        answer = await super().write(write)
        await asyncio.sleep(0.5)
        return answer


def test_a_report_in_flight_at_a_stop_is_deleted() -> None:
    """A report without a response is deleted too. Otherwise a leader would assign leases to the stopped member."""

    async def scenario() -> None:
        rows, clock = _LateAnswers(), VirtualClock()
        reporter = WorkerReporter(
            coordinator_rows=CoordinatorRows(rows),
            layout=TableLayout.SINGLE_TABLE,
            worker=WorkerId("w-1"),
            meter=None,
            held_leases=cast(HeldLeases, SimpleNamespace(is_healthy=True)),
            operations=Operations(clock, random.Random(1), lambda _: None),
        )
        reporting = asyncio.ensure_future(reporter.run())
        first = None
        while (row := await rows.get("w-1")) is None or row == (first := first or row):
            assert clock.now_ms() < 2 * REPORT_EVERY_MS
            await clock.sleep_ms(100)
        await cancel_and_wait(reporting)  # the second report is in the table, and its answer is not here
        await reporter.withdraw()
        assert await rows.get("w-1") is None

    run_in_virtual_time(scenario())
