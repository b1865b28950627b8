"""A command gets leases from living, dead and deaf owners in a fleet on virtual time, and gives them to others."""

import asyncio
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.config.settings import FleetSettings
from leasehold.core.events import HandoffWithdrawn, LeaseLost
from leasehold.core.leases.row_writes import Equals, UpdateRow, number, text
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.core.position import Position
from leasehold.core.steering.capture import CaptureLimits
from leasehold.core.steering.release_plan import ReleaseRequest
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import RowStore
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.steering.lease_capture import CapturePorts, CaptureResult, LeaseCapture
from leasehold.steering.release import plan_release, release_leases
from tests.unit.fleet.world import LEADER_SETTINGS, SETTINGS, World, assert_never_interleaved, even_shards

LIMITS = CaptureLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
TIMEOUT_MS = 120_000


def new_capture(rows: RowStore, clock: VirtualClock) -> LeaseCapture:
    ports = CapturePorts(table=LeaseTable(rows), clock=clock, rng=random.Random(1))
    return LeaseCapture(ports, WorkerId("leasehold-test"), LIMITS)


async def release(
    rows: RowStore, clock: VirtualClock, request: ReleaseRequest, timeout_ms: int = TIMEOUT_MS
) -> tuple[CaptureResult, dict[LeaseKey, WorkerId | None]]:
    capture = new_capture(rows, clock)
    planned = await plan_release(capture.ports.table, clock, request)
    return await release_leases(capture, planned, timeout_ms=timeout_ms)


@pytest.mark.parametrize("settings", [SETTINGS, LEADER_SETTINGS], ids=["peers", "leader"])
def test_a_drained_worker_hands_over_and_nothing_is_lost(settings: FleetSettings) -> None:
    """Its shards are read by the others within seconds, one reader at a time, and no lease is taken by force."""

    async def scenario() -> None:
        world = World(even_shards(6), settings=settings)
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [2, 2, 2], within_s=120)
        result, given = await release(world.rows, world.clock, ReleaseRequest(worker=WorkerId("a")))
        assert len(given) == 2
        assert not result.kept
        assert WorkerId("a") not in given.values()
        await world.until(lambda: len(world.readers()) == 6, within_s=20)
        assert world.events_of(LeaseLost) == []
        assert_never_interleaved(world)
        await world.stop_all()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("settings", [SETTINGS, LEADER_SETTINGS], ids=["peers", "leader"])
def test_a_slow_owner_that_declines_keeps_its_session(settings: FleetSettings) -> None:
    """Its batches take 100 s. It declines three times, hands over when a batch is done, and no batch is repeated."""

    async def deliver_slowly(world: World, worker: WorkerId, held: HeldLease) -> None:
        while not held.draining.is_set():
            end_ms = world.clock.now_ms() + 100_000
            while world.clock.now_ms() < end_ms and held.is_valid():
                held.note_progress()
                world.deliveries[held.shard].append((world.clock.now_ms(), worker))
                await world.clock.sleep_ms(100)

    async def scenario() -> None:
        world = World(even_shards(2), settings=settings, serve=deliver_slowly)
        for name in "ab":
            world.start(name)
        await world.until(lambda: world.shares() == [1, 1], within_s=600)
        await world.clock.sleep_ms(5_000)
        key = LeaseKey(world.shards[0].id)
        names = set()

        async def watch_names() -> None:
            while True:
                row = await world.table.get(key)
                if row is not None and row.is_in_handoff:
                    names.add(row.owner)
                await world.clock.sleep_ms(100)

        lost = len(world.events_of(LeaseLost))
        watching = asyncio.create_task(watch_names())
        _, given = await release(world.rows, world.clock, ReleaseRequest(shards=(key,)), timeout_ms=240_000)
        watching.cancel()
        assert key in given
        assert len(names) >= 3, names
        await world.until(lambda: len(world.readers()) == 2, within_s=60)
        assert len(world.events_of(LeaseLost)) == lost
        assert_never_interleaved(world)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_leader_withdraws_the_request_of_a_dead_command() -> None:
    """The owner neither hands over nor declines, like Java during a long batch. It keeps its lease and session."""

    async def deliver_in_one_batch(world: World, worker: WorkerId, held: HeldLease) -> None:
        while held.is_valid():
            held.note_progress()
            world.deliveries[held.shard].append((world.clock.now_ms(), worker))
            await world.clock.sleep_ms(100)

    async def scenario() -> None:
        world = World(even_shards(2), settings=LEADER_SETTINGS)
        world.start("leader")
        await world.until(lambda: world.shares() == [2], within_s=60)
        world.settings = replace(LEADER_SETTINGS, handoff_timeout=timedelta(hours=1))
        world.serve = deliver_in_one_batch
        owner = world.start("owner")
        await world.until(lambda: world.shares() == [1, 1], within_s=240)
        lease = next(each for each in (await world.table.list()).leases if each.owner == owner)
        await world.table.request_handoff(lease, WorkerId("leasehold-reset-dead"))
        await world.until(lambda: world.events_of(HandoffWithdrawn) != [], within_s=120)
        await world.clock.sleep_ms(60_000)
        row = await world.table.get(lease.key)
        assert row is not None
        assert (row.owner, row.checkpoint_owner, row.session) == (owner, None, lease.session)
        assert world.events_of(HandoffWithdrawn) == [
            HandoffWithdrawn(lease.key, owner, WorkerId("leasehold-reset-dead"))
        ]
        assert world.events_of(LeaseLost) == []
        for worker in ("leader", "owner"):
            await world.kill(WorkerId(worker))

    run_in_virtual_time(scenario())


def test_a_killed_command_leaves_no_lease_stuck() -> None:
    """The leases that carry its name expire, and the fleet reads all shards again."""

    async def scenario(last_write: int) -> None:
        world = World(even_shards(4))
        for name in "ab":
            world.start(name)
        await world.until(lambda: world.shares() == [2, 2], within_s=60)
        writes = 0

        def fault_for(call: str, _key: str) -> StoreFault | None:
            nonlocal writes
            writes += call == "write"
            if call == "write" and writes > last_write:
                raise asyncio.CancelledError
            return None

        with pytest.raises(asyncio.CancelledError):
            await release(FaultyRows(world.rows, fault_for), world.clock, ReleaseRequest(is_all=True))
        await world.until(lambda: len(world.readers()) == 4, within_s=90)
        await world.clock.sleep_ms(60_000)
        assert len(world.readers()) == 4
        assert_never_interleaved(world)
        await world.stop_all()

    for last_write in (1, 4, 6, 9):
        run_in_virtual_time(scenario(last_write))


async def one_lease(owner: str | None) -> tuple[World, Lease]:
    world = World(even_shards(1))
    shard = world.shards[0].id
    lease = Lease(key=LeaseKey(shard), shard_id=shard, checkpoint=Position("100"))
    await world.table.create(lease)
    if owner is not None:
        taken = await world.table.take(lease, WorkerId(owner), LeaseSessionId("session"))
        assert isinstance(taken, Lease)
        lease = taken
    return world, lease


async def renew_as_kcl_2(world: World, lease: Lease) -> None:
    """Renew like KCL 2.x, which knows the counter only, until the counter is another's."""
    counter = lease.counter
    while True:
        await world.clock.sleep_ms(3_300)
        write = UpdateRow(
            key=lease.key,
            when=(Equals("leaseCounter", number(counter)),),
            set={"leaseCounter": number(counter + 1)},
            proof=(Equals("leaseOwner", text("java")),),
        )
        if type(await world.rows.write(write)).__name__ == "Refused":
            return
        counter += 1


def test_an_owner_that_ignores_requests_loses_the_lease_after_the_handoff_timeout() -> None:
    """KCL 1.x and 2.x renew during a handoff and never end it: their lease is taken, and they notice."""

    async def scenario() -> None:
        world, lease = await one_lease("java")
        owner = asyncio.create_task(renew_as_kcl_2(world, lease))
        began_ms = world.clock.now_ms()
        _, given = await release(world.rows, world.clock, ReleaseRequest(is_all=True))
        assert given == {lease.key: None}
        assert 40_000 < world.clock.now_ms() - began_ms < 45_000
        await asyncio.wait_for(owner, 10)
        row = await world.table.get(lease.key)
        assert row is not None
        assert (row.owner, row.checkpoint_owner, row.checkpoint) == (None, None, Position("100"))

    run_in_virtual_time(scenario())


def test_a_dead_owner_is_not_waited_for_longer_than_the_failover_time() -> None:
    """Its counter does not move."""

    async def scenario() -> None:
        world, lease = await one_lease("dead")
        began_ms = world.clock.now_ms()
        _, given = await release(world.rows, world.clock, ReleaseRequest(shards=(lease.shard_id,)))
        assert given == {lease.key: None}
        assert 10_000 < world.clock.now_ms() - began_ms < 12_000

    run_in_virtual_time(scenario())


def test_an_owner_that_does_not_hand_over_in_time_is_named() -> None:
    """The command gives up after its timeout, withdraws its request, and says whom it waited for."""

    async def scenario() -> None:
        world, lease = await one_lease("java")
        owner = asyncio.create_task(renew_as_kcl_2(world, lease))
        result, given = await release(world.rows, world.clock, ReleaseRequest(is_all=True), timeout_ms=5_000)
        assert not given
        assert [(each.key, each.owner) for each in result.kept] == [(lease.key, "java")]
        row = await world.table.get(lease.key)
        assert row is not None
        assert (row.owner, row.checkpoint_owner, row.session) == ("java", None, "session")
        owner.cancel()

    run_in_virtual_time(scenario())


def test_a_lease_that_moves_by_itself_is_left_to_its_new_owner() -> None:
    """A leader has just moved it: it would be taken from the worker that has begun to read it."""

    async def scenario() -> None:
        world, lease = await one_lease("anna")
        capture = new_capture(world.rows, world.clock)
        planned = await plan_release(
            capture.ports.table, world.clock, ReleaseRequest(worker=WorkerId("anna"))
        )
        moved = await world.table.take(lease, WorkerId("bert"), LeaseSessionId("another"))
        result, given = await release_leases(capture, planned, timeout_ms=TIMEOUT_MS)
        assert given == {lease.key: "bert"}
        assert not result.done
        assert await world.table.get(lease.key) == moved

    run_in_virtual_time(scenario())


def test_no_lease_is_given_to_a_worker_that_was_killed_after_its_last_report() -> None:
    """Its report is fresh for a minute. Its leases are not renewed, and it has as few as the others."""

    async def scenario() -> None:
        world = World(even_shards(6), settings=LEADER_SETTINGS)
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [2, 2, 2], within_s=120)
        await world.kill(WorkerId("b"))
        _, given = await release(world.rows, world.clock, ReleaseRequest(worker=WorkerId("c")))
        assert len(given) == 2
        assert set(given.values()) == {WorkerId("a")}
        await world.until(lambda: len(world.readers()) == 6, within_s=120)
        assert_never_interleaved(world)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_lease_that_was_handed_to_a_killed_command_is_released() -> None:
    """The owner answers the request of a reset that was killed. The lease is taken from that command, not left."""

    async def scenario() -> None:
        world, lease = await one_lease("anna")
        killed = WorkerId("leasehold-reset-host-1:17:0a1b2c3d")
        capture = new_capture(world.rows, world.clock)
        planned = await plan_release(capture.ports.table, world.clock, ReleaseRequest(is_all=True))
        await world.table.take(lease, killed, LeaseSessionId("another"))
        result, given = await release_leases(capture, planned, timeout_ms=TIMEOUT_MS)
        assert given == {lease.key: None}
        assert not result.kept
        row = await world.table.get(lease.key)
        assert row is not None
        assert row.owner is None

    run_in_virtual_time(scenario())
