"""From when until when a member counts as the leader, if writes to the lock are slow."""

import asyncio
import random

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import milliseconds
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import WorkerId
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import SETTINGS

SLOW_MS = 4_000
DURATION_MS = milliseconds(SETTINGS.leader_lock_duration)


class _SlowResponses(MemoryRows):
    """Applies every write at once. Its response takes four seconds."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        outcome = await super().write(write)
        await asyncio.sleep(SLOW_MS / 1_000)
        return outcome


def _election(clock: VirtualClock) -> LeaderElection:
    rows = CoordinatorRows(_SlowResponses())
    operations = Operations(clock, random.Random(7), lambda _: None)
    return LeaderElection(rows, TableLayout.SINGLE_TABLE, WorkerId("me"), SETTINGS, operations)


def test_a_leader_leads_for_one_duration_from_before_it_acquired_the_lock() -> None:
    """Other members count from when the lock was written, which may be long before the response."""

    async def scenario() -> None:
        clock = VirtualClock()
        election = _election(clock)
        began_ms = clock.now_ms()
        await election.note_lock(None)
        assert election.is_leading
        await clock.sleep_ms(began_ms + DURATION_MS - 1 - clock.now_ms())
        assert election.is_leading
        await clock.sleep_ms(1)
        assert not election.is_leading

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("cool_down", [False, True])
def test_a_leader_that_resigns_does_not_lead_while_the_lock_is_being_released(cool_down: bool) -> None:
    """The next leader may lead before the response arrives. A request that is cancelled changes nothing about it."""

    async def scenario() -> None:
        election = _election(VirtualClock())
        await election.note_lock(None)
        resigning = asyncio.create_task(election.resign("a test", cool_down=cool_down))
        await asyncio.sleep(1)
        assert not resigning.done()
        assert not election.is_leading
        resigning.cancel()
        await asyncio.gather(resigning, return_exceptions=True)
        assert not election.is_leading

    run_in_virtual_time(scenario())
