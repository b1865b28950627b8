"""The report of a member that has stopped is deleted."""

import asyncio
import random
from types import SimpleNamespace
from typing import cast

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.worker_metrics import REPORT_EVERY_MS
from leasehold.core.leases.row_writes import DeleteRow, RowWrite
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


class _LateWrites(MemoryRows):
    """A store that applies reports half a second after they were sent, also if the sender no longer waits."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        async def apply_later() -> Applied | Refused:
            await asyncio.sleep(0 if isinstance(write, DeleteRow) else 0.5)
            return await super(_LateWrites, self).write(write)

        return await asyncio.shield(asyncio.ensure_future(apply_later()))


def make_reporter(rows: MemoryRows, clock: VirtualClock) -> WorkerReporter:
    return WorkerReporter(
        coordinator_rows=CoordinatorRows(rows),
        layout=TableLayout.SINGLE_TABLE,
        worker=WorkerId("w-1"),
        meter=None,
        held_leases=cast(HeldLeases, SimpleNamespace(is_healthy=True)),
        operations=Operations(clock, random.Random(1), lambda _: None),
    )


def test_a_report_that_arrives_late_is_waited_for() -> None:
    """Otherwise it would arrive after it was deleted, and other members would give leases to the stopped one."""

    async def scenario() -> None:
        rows, clock = _LateWrites(), VirtualClock()
        reporter = make_reporter(rows, clock)
        reporting = asyncio.ensure_future(reporter.run())
        await clock.sleep_ms(
            600
        )  # the update of a report that does not exist is refused, and the report created
        await reporter.finish_write()
        await cancel_and_wait(reporting)
        await reporter.withdraw()
        await clock.sleep_ms(10_000)
        assert await rows.get("w-1") is None

    run_in_virtual_time(scenario())


def test_a_report_in_flight_at_a_stop_is_deleted() -> None:
    """A report without a response is deleted too. Otherwise a leader would assign leases to the stopped member."""

    async def scenario() -> None:
        rows, clock = _LateAnswers(), VirtualClock()
        reporter = make_reporter(rows, clock)
        reporting = asyncio.ensure_future(reporter.run())
        first = None
        while (row := await rows.get("w-1")) is None or row == (first := first or row):
            assert clock.now_ms() < 2 * REPORT_EVERY_MS
            await clock.sleep_ms(100)
        await cancel_and_wait(reporting)  # the second report is in the table, and its answer is not here
        await reporter.withdraw()
        assert await rows.get("w-1") is None

    run_in_virtual_time(scenario())
