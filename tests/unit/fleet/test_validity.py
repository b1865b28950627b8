"""A lease and the leader lock are valid from before their last write was sent, and a lease is released last."""

import asyncio
import random

from leasehold.adapters.memory.faults import StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.events import LeaseLost, LeaseReleased, LeaseTaken, ShardStalled
from leasehold.core.leases.heartbeats import tick_max_ms
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.assignment.leader_election import LeaderElection
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations
from leasehold.fleet.table.coordinator_rows import CoordinatorRows
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import LEADER_SETTINGS, World, deliver, even_shards, leaders

RESPONSE_MS = 3_000
SETTINGS = FleetSettings()
VALID_MS = milliseconds(SETTINGS.lease_valid_for)
LOCK_MS = milliseconds(SETTINGS.leader_lock_duration)


class SlowResponses(MemoryRows):
    """Applies a write at once, and responds three seconds later."""

    async def write(self, write: RowWrite) -> Applied | Refused:
        outcome = await super().write(write)
        await asyncio.sleep(RESPONSE_MS / 1000)
        return outcome


async def _hold(clock: VirtualClock) -> HeldLease:
    """Take a lease in a table that responds slowly."""
    table = LeaseTable(SlowResponses())
    free = Lease(key=LeaseKey("s-2"), shard_id=ShardId("s-2"), checkpoint=TRIM_HORIZON)
    await table.create(free)
    lease = await table.take(free, WorkerId("w"), LeaseSessionId("session"))
    assert isinstance(lease, Lease)
    return HeldLease(
        lease,
        table=table,
        operations=Operations(clock, random.Random(1), lambda _: None),
        settings=SETTINGS,
        taken_at_ms=clock.now_ms(),
        on_response=lambda _: None,
    )


async def _require_valid_until(held: HeldLease, until_ms: int, clock: VirtualClock) -> None:
    await clock.sleep_ms(until_ms - 1 - clock.now_ms())
    assert held.is_valid()
    await clock.sleep_ms(1)
    assert not held.is_valid()


def test_a_write_proves_a_lease_from_the_time_at_which_it_was_sent() -> None:
    """Other members count from when the row changed, which may be long before the response."""

    async def scenario() -> None:
        clock = VirtualClock()
        held = await _hold(clock)
        sent_ms = clock.now_ms()
        await held.renew()
        assert clock.now_ms() == sent_ms + RESPONSE_MS
        await _require_valid_until(held, sent_ms + VALID_MS, clock)

    run_in_virtual_time(scenario())


def test_a_write_that_was_cancelled_may_be_the_one_that_was_applied() -> None:
    """The next write finds its own effect in the row. It proves the lease only from when the first one was sent."""

    async def scenario() -> None:
        clock = VirtualClock()
        held = await _hold(clock)
        sent_ms = clock.now_ms()
        renewal = asyncio.create_task(held.renew())
        await clock.sleep_ms(RESPONSE_MS // 2)
        renewal.cancel()
        await asyncio.wait([renewal])
        await held.renew()
        await _require_valid_until(held, sent_ms + VALID_MS, clock)

    run_in_virtual_time(scenario())


def test_a_new_lease_is_valid_from_the_time_at_which_the_take_was_sent() -> None:
    """A member whose heartbeats all fail stops in time, even if the response to its take was slow."""
    world = World(even_shards(1))
    world.rows = SlowResponses()
    world.table = LeaseTable(world.rows)

    async def scenario() -> None:
        member = world.start("a")
        await world.until(lambda: bool(world.events_of(LeaseTaken)), within_s=60)
        taken_ms = next(at_ms for at_ms, event in world.events[member] if isinstance(event, LeaseTaken))
        world.cut_off.add(member)
        await world.clock.sleep_ms(60_000)
        delivered_ms = [at_ms for log in world.deliveries.values() for at_ms, _ in log]
        assert max(delivered_ms) < taken_ms - RESPONSE_MS + VALID_MS
        await world.kill(member)

    run_in_virtual_time(scenario())


class SuspendedClock(VirtualClock):
    """The clock of a machine that was suspended. Timers have not counted this time."""

    suspended_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.suspended_ms


class NoResponses(MemoryRows):
    """From some time on, writes get no response for an hour."""

    is_silent = False

    async def write(self, write: RowWrite) -> Applied | Refused:
        outcome = await super().write(write)
        await asyncio.sleep(3_600 if self.is_silent else 0)
        return outcome


def test_a_member_that_was_suspended_stops_to_serve_within_a_tick_of_heartbeats() -> None:
    """Its timer for the expiry of the lease has stopped meanwhile, and a heartbeat that is in flight sends no other."""
    clock, rows = SuspendedClock(), NoResponses()
    world = World(even_shards(1), clock=clock)
    world.rows, world.table = rows, LeaseTable(rows)

    async def scenario() -> None:
        member = world.start("a")
        await world.until(lambda: bool(world.events_of(LeaseTaken)), within_s=60)
        renew_ms = milliseconds(SETTINGS.renew_every)
        await clock.sleep_ms(renew_ms * 3 // 2)
        rows.is_silent = True
        await clock.sleep_ms(renew_ms)
        assert not world.events_of(LeaseLost)
        clock.suspended_ms = VALID_MS
        await clock.sleep_ms(tick_max_ms(renew_ms) + 1)
        assert world.events_of(LeaseLost)
        await world.kill(member)

    run_in_virtual_time(scenario())


async def _elect(clock: VirtualClock) -> LeaderElection:
    """Let a member with a slow lock table become the leader."""
    operations = Operations(clock, random.Random(7), lambda _: None)
    rows = CoordinatorRows(SlowResponses())
    election = LeaderElection(rows, TableLayout.SINGLE_TABLE, WorkerId("ours"), SETTINGS, operations)
    await election.note_lock(None)
    assert election.is_leading
    return election


def test_leadership_begins_when_the_lock_was_requested() -> None:
    """Standbys count from when the lock changed, not from when the leader got the response."""

    async def scenario() -> None:
        clock = VirtualClock()
        election = await _elect(clock)
        await clock.sleep_ms(LOCK_MS - RESPONSE_MS - 1)
        assert election.is_leading
        await clock.sleep_ms(1)
        assert not election.is_leading

    run_in_virtual_time(scenario())


def test_leadership_continues_from_when_the_heartbeat_was_sent() -> None:
    """A heartbeat that took three seconds extends the leadership by three seconds less."""

    async def scenario() -> None:
        clock = VirtualClock()
        election = await _elect(clock)
        renewing = asyncio.create_task(election.run())
        sent_ms = clock.now_ms() + LOCK_MS // 2
        await clock.sleep_ms(LOCK_MS // 2 + RESPONSE_MS + 1)
        renewing.cancel()
        await clock.sleep_ms(sent_ms + LOCK_MS - clock.now_ms() - 1)
        assert election.is_leading
        await clock.sleep_ms(1)
        assert not election.is_leading

    run_in_virtual_time(scenario())


def test_leadership_ends_when_the_release_of_the_lock_is_sent() -> None:
    """Another member may lead before the response arrives."""

    async def scenario() -> None:
        clock = VirtualClock()
        election = await _elect(clock)
        resigning = asyncio.create_task(election.resign("it stops"))
        await clock.sleep_ms(1)
        assert not resigning.done()
        assert not election.is_leading
        await resigning

    run_in_virtual_time(scenario())


def test_a_lease_is_released_after_its_server_has_ended() -> None:
    """A stalled shard is served until its server has handled the cancellation. Only then is the lease free."""
    ended_ms: list[int] = []

    async def end_slowly(world: World, worker: WorkerId, held: HeldLease) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await world.clock.sleep_ms(2_000)
            ended_ms.append(world.clock.now_ms())

    world = World(even_shards(1), serve=end_slowly)

    async def scenario() -> None:
        member = world.start("a")
        await world.until(lambda: bool(world.events_of(LeaseReleased)), within_s=3_600)
        released_ms = next(at_ms for at_ms, event in world.events[member] if isinstance(event, LeaseReleased))
        assert released_ms >= ended_ms[0]
        assert len(world.events_of(ShardStalled)) == 1  # it is not renewed meanwhile
        await world.stop_all()

    run_in_virtual_time(scenario())


class _WorldWithRecordedWrites(World):
    """Keeps the keys that each member wrote, in order."""

    written: dict[WorkerId, list[str]]

    def _fault_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        if call == "write":
            self.written.setdefault(worker, []).append(key)
        return super()._fault_for(worker, call, key)


def test_a_leader_resigns_before_it_nudges_the_others() -> None:
    """A member that is nudged earlier refreshes while the old leader still has the lock, and sees no new leader."""
    world = _WorldWithRecordedWrites(even_shards(6), serve=deliver, settings=LEADER_SETTINGS)
    world.written = {}

    async def scenario() -> None:
        for name in ("a", "b", "c"):
            world.start(name)
        await world.until(lambda: len(world.readers()) == 6, within_s=60)
        await world.clock.sleep_ms(120_000)
        leader = leaders(world)[-1]
        others = {shard for shard, reader in world.readers().items() if reader != leader}
        await world.stop(leader)
        written = world.written[leader]
        report_deleted = len(written) - written[::-1].index(leader)
        first = next(key for key in written[report_deleted:] if key == "Leader" or key in others)
        assert first == "Leader"
        await world.stop_all()

    run_in_virtual_time(scenario())
