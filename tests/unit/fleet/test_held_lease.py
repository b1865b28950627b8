"""A lease while it is held: what it reads of its family, and what its heartbeats give and take."""

import asyncio
import random

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings
from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.errors import UnavailableError
from leasehold.fleet.held_lease import HeldLease, OnResponse
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time

PARENTS = (ShardId("s-0"), ShardId("s-1"))


class _OneFailsOneHangs(MemoryRows):
    """Of two rows, one cannot be read, and the other takes an hour."""

    async def get(self, key: str) -> Row | None:
        if key == PARENTS[0]:
            raise UnavailableError("no answer")
        await asyncio.sleep(3_600)
        return None


def test_no_read_runs_on_after_its_sibling_failed() -> None:
    """Whoever is told of the failure may stop, and then nothing of it is left behind (found by seed 70)."""

    async def scenario() -> None:
        held = HeldLease(
            Lease(
                key=lease_key(ShardId("s-2")),
                shard_id=ShardId("s-2"),
                checkpoint=TRIM_HORIZON,
                parents=frozenset(PARENTS),
                owner=WorkerId("w"),
                session=LeaseSessionId("h"),
            ),
            table=LeaseTable(_OneFailsOneHangs()),
            operations=Operations(VirtualClock(), random.Random(1), lambda _: None),
            settings=FleetSettings(),
            taken_at_ms=0,
            on_response=lambda _: None,
        )
        with pytest.raises(UnavailableError):
            await held.wait_for_parents()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_in_virtual_time(scenario())


class _AnswersLost(MemoryRows):
    """Applies the next write, lets something happen, and says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: RowWrite | None = None

    async def write(self, write: RowWrite) -> Applied | Refused:
        answer = await super().write(write)
        if self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await super().write(happens)
            raise UnavailableError("no answer")
        return answer


async def _held(rows: MemoryRows, on_response: OnResponse = lambda _: None) -> HeldLease:
    """A lease of ours, just taken."""
    table = LeaseTable(rows)
    free = Lease(key=LeaseKey("s-2"), shard_id=ShardId("s-2"), checkpoint=TRIM_HORIZON)
    await table.create(free)
    lease = await table.take(free, WorkerId("w"), LeaseSessionId("h"))
    assert isinstance(lease, Lease)
    return HeldLease(
        lease,
        table=table,
        operations=Operations(VirtualClock(), random.Random(1), lambda _: None),
        settings=FleetSettings(),
        taken_at_ms=0,
        on_response=on_response,
    )


def test_a_handoff_is_heard_of_in_whatever_way_the_row_is_read() -> None:
    """Also when the answer to a heartbeat was lost, and the row that settles it shows a handoff (found by seed 62)."""

    async def scenario() -> None:
        rows = _AnswersLost()
        held = await _held(rows)
        rows.meanwhile = lease_rules.request_handoff(held.lease, WorkerId("other"))
        await held.renew()
        assert held.lease.is_in_handoff
        assert held.draining.is_set()

    run_in_virtual_time(scenario())


def test_a_heartbeat_brings_word() -> None:
    """What another member left in the lease is heard once, with the next answer."""

    async def scenario() -> None:
        heard: list[bool] = []
        rows = MemoryRows()
        held = await _held(rows, heard.append)
        await held.renew()
        await rows.write(lease_rules.nudge(held.lease, "look"))
        await held.renew()
        await held.renew()
        await rows.write(lease_rules.nudge(held.lease, "look again"))
        await held.checkpoint(Position("7"))
        assert heard == [False, True, False, True]

    run_in_virtual_time(scenario())


def test_a_heartbeat_takes_along_what_is_done() -> None:
    """One write instead of two; without anything to store it is a heartbeat alone."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        done = [Position("7")]

        async def store() -> bool:
            if not done:
                return False
            await held.checkpoint(done.pop())
            return True

        held.use_heartbeats_for_checkpoints(store)
        before = held.lease.counter
        await held.renew()
        assert (held.lease.checkpoint, held.lease.counter) == (Position("7"), before + 1)
        await held.renew()
        assert (held.lease.checkpoint, held.lease.counter) == (Position("7"), before + 2)

    run_in_virtual_time(scenario())


def test_only_a_write_proves_a_lease() -> None:
    """Another pin than the one that is done, or none, is left as it is, and says nothing about whose the lease is."""

    async def scenario() -> None:
        held = await _held(MemoryRows())
        last = held.last_write
        await held.promote(Position("7"))
        assert held.last_write is last

    run_in_virtual_time(scenario())
