"""Members that rarely refresh still begin their new leases in time."""

import random
from collections.abc import Awaitable, Callable

from leasehold.adapters.memory.faults import StoreFault
from leasehold.core.events import LeaseReleased, LeaseTaken
from leasehold.core.leases.row_writes import Equals, UpdateRow, text
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.fleet.assignment.nudger import Nudger
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import LEADER_SETTINGS, World, deliver, even_shards, leaders


class _WorldWithSlowShards(World):
    """A world in which some shards take long to drain, and refreshes of some members fail for a while."""

    drains_ms: dict[ShardId, int]
    without_scans: set[WorkerId]

    def _fault_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        fault = super()._fault_for(worker, call, key)
        return StoreFault.THROTTLED if call == "scan" and worker in self.without_scans else fault

    def nudger(self) -> Nudger:
        """Return a nudger of a member outside the fleet."""
        return Nudger(self.table, Operations(self.clock, random.Random(1), lambda _: None))

    def at_ms(self, kind: type[LeaseTaken | LeaseReleased], key: LeaseKey) -> int | None:
        """When an event of this kind was last reported for a lease."""
        times = (
            at_ms
            for log in self.events.values()
            for at_ms, event in log
            if isinstance(event, kind) and event.key == key
        )
        return max(times, default=None)

    def gap_ms(self, key: LeaseKey) -> int:
        """How long the lease had no owner when its owner last changed."""
        taken_ms, released_ms = self.at_ms(LeaseTaken, key), self.at_ms(LeaseReleased, key)
        assert taken_ms is not None
        assert released_ms is not None
        assert taken_ms >= released_ms, f"{key} was released, and has no owner"
        return taken_ms - released_ms


async def _slowly(world: World, worker: WorkerId, held: HeldLease) -> None:
    assert isinstance(world, _WorldWithSlowShards)
    await deliver(world, worker, held)
    await world.clock.sleep_ms(world.drains_ms.get(held.shard, 100))


def run_at_rest(
    scenario: Callable[[_WorldWithSlowShards, list[WorkerId]], Awaitable[None]], *, members: int, shards: int
) -> _WorldWithSlowShards:
    """Run a test in a fleet without recent changes. The test gets the members, the leader first."""
    world = _WorldWithSlowShards(even_shards(shards), serve=_slowly, settings=LEADER_SETTINGS)
    world.drains_ms, world.without_scans = {}, set()

    async def main() -> None:
        names = [world.start(f"m{number}") for number in range(members)]
        await world.until(lambda: len(world.readers()) == shards, within_s=90)
        await world.clock.sleep_ms(150_000)
        leader = leaders(world)[-1]
        await scenario(world, [leader, *(name for name in names if name != leader)])
        await world.stop_all()

    run_in_virtual_time(main())
    return world


def test_each_next_owner_is_nudged_when_its_lease_is_released() -> None:
    """Leases that are released late, because their shard takes long to drain, are included."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        leaving = members[1]
        mine = [shard for shard, reader in world.readers().items() if reader == leaving]
        world.drains_ms = dict(zip(mine, (100, 6_000, 8_000, 12_000, 25_000), strict=True))
        await world.stop(leaving)
        await world.clock.sleep_ms(30_000)
        for shard in mine:
            assert world.gap_ms(LeaseKey(shard)) <= 3_000

    run_at_rest(scenario, members=6, shards=30)


def test_a_member_waits_for_a_lease_in_handoff_in_a_large_table() -> None:
    """Members find leases in handoff in the index, and refresh until the lease is theirs."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        source, to = members[1], members[-1]
        leases = (await world.table.list()).leases
        lease = next(each for each in leases if each.owner == source and not each.is_in_handoff)
        world.drains_ms[lease.shard_id] = 8_000
        await world.table.request_handoff(lease, to)
        await world.nudger().nudge({to}, leases)
        await world.clock.sleep_ms(30_000)
        assert world.readers()[lease.shard_id] == to
        assert world.gap_ms(lease.key) <= 3_000

    run_at_rest(scenario, members=4, shards=210)


def test_a_failed_refresh_is_retried() -> None:
    """If the refreshes after a nudge fail, the lease is begun soon after refreshes succeed again."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        source, to = members[1], members[-1]
        leases = (await world.table.list()).leases
        lease = next(each for each in leases if each.owner == source)
        world.without_scans = {to}
        await world.table.assign(lease, to)
        await world.nudger().nudge({to}, leases)
        await world.clock.sleep_ms(8_000)
        world.without_scans = set()
        repaired_ms = world.clock.now_ms()
        await world.until(lambda: (world.at_ms(LeaseTaken, lease.key) or 0) >= repaired_ms, within_s=4)
        assert world.readers().get(lease.shard_id, to) == to

    run_at_rest(scenario, members=8, shards=32)


def test_members_refresh_on_their_own_under_a_java_leader() -> None:
    """It does not nudge. Half a minute after it took the lock, its followers refresh regularly."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        java = {"ownerName": text("java"), "leaseDuration": text("120000")}
        for beat in range(5):
            version = {"recordVersionNumber": text(f"java-{beat}")}
            exists = (Equals("leaseKey", text("Leader")),)
            write = UpdateRow(key="Leader", when=exists, set={**java, **version}, proof=())
            await world.rows.write(write)
            await world.clock.sleep_ms(10_000)
        before = dict(world.calls)
        await world.clock.sleep_ms(18_000)
        for member in members:
            assert world.calls[member, "scan"] - before[member, "scan"] >= 6

    run_at_rest(scenario, members=5, shards=15)


def test_a_fleet_survives_half_of_its_members() -> None:
    """The leader and the first standbys die. The others lead and read all shards within 90 seconds."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        for member in members[:4]:
            await world.kill(member)
        await world.clock.sleep_ms(1_000)
        await world.until(lambda: len(world.readers()) == 24, within_s=90)

    run_at_rest(scenario, members=8, shards=24)


def test_a_fleet_at_rest_refreshes_rarely() -> None:
    """Of four members with three leases each, the leader refreshes every four seconds, and the others rarely."""

    async def scenario(world: _WorldWithSlowShards, members: list[WorkerId]) -> None:
        before = dict(world.calls)
        await world.clock.sleep_ms(300_000)
        refreshes = {member: world.calls[member, "scan"] - before[member, "scan"] for member in members}
        writes = sum(world.calls[member, "write"] - before[member, "write"] for member in members)
        assert refreshes[members[0]] <= 90
        assert sum(refreshes.values()) - refreshes[members[0]] <= 75
        assert writes <= 12 * 60 + 40 + 40 + 10

    run_at_rest(scenario, members=4, shards=12)
