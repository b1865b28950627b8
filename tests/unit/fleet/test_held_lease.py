"""A lease while it is held: what it reads of its family."""

import asyncio
import random

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.model import HoldingId, Lease, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.row_writes import Row
from leasehold.errors import UnavailableError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.lease_table import LeaseTable
from leasehold.settings import FleetSettings
from leasehold.simulation.loop import VirtualClock, run_virtually

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
                holding=HoldingId("h"),
            ),
            table=LeaseTable(_OneFailsOneHangs()),
            clock=VirtualClock(),
            rng=random.Random(1),
            observe=lambda _: None,
            settings=FleetSettings(),
            taken_at_ms=0,
            hear=lambda _: None,
        )
        with pytest.raises(UnavailableError):
            await held.parents_ended()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(scenario())
