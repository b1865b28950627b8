"""The leases of one member, without the strategy that assigns them."""

import asyncio
import random
from contextlib import suppress
from functools import partial

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time

KEY = LeaseKey("s-1")
ME, OTHER = WorkerId("me"), WorkerId("other")


def test_a_handoff_that_a_scan_shows_is_confirmed_at_once() -> None:
    """The owner need not wait for its next heartbeat, which may be due in five seconds. Other requests are not ours."""

    async def scenario() -> None:
        clock, table, served = VirtualClock(), LeaseTable(MemoryRows()), list[HeldLease]()

        async def serve(held: HeldLease) -> None:
            served.append(held)
            await asyncio.Event().wait()

        free = Lease(key=KEY, shard_id=ShardId("s-1"), checkpoint=TRIM_HORIZON)
        await table.create(free)
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                operations = Operations(clock, random.Random(1), lambda _: None)
                leases = HeldLeases(
                    table=table, serve=serve, settings=FleetSettings(), operations=operations, group=group
                )
                assert await leases.begin(free, partial(table.take, free, ME), silent_ms=None)
                await clock.sleep_ms(100)
                (held,) = served
                await table.request_handoff(held.lease, OTHER)
                scanned = (await table.list()).leases
                before = held.lease.counter
                leases.confirm_handoffs(scanned)
                await clock.sleep_ms(100)
                assert held.draining.is_set()
                assert held.lease.owner == OTHER
                leases.confirm_handoffs(scanned)  # it is known: another heartbeat shows nothing new
                await clock.sleep_ms(100)
                assert held.lease.counter == before + 1
                raise asyncio.CancelledError

    run_in_virtual_time(scenario())
