"""Members who hardly ever look at the table learn in time what was given to them."""

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
from tests.unit.fleet.assignment.test_leader_strategy import LED, leaders
from tests.unit.fleet.world import World, deliver, even_shards


class _WithSlowShards(World):
    """Some shards take a while to finish what they have in hand; looks of some members fail for a while."""

    drains_ms: dict[ShardId, int]
    blind: set[WorkerId]

    def _trouble_for(self, worker: WorkerId, call: str, key: str) -> StoreFault | None:
        trouble = super()._trouble_for(worker, call, key)
        return StoreFault.THROTTLED if call == "scan" and worker in self.blind else trouble

    def nudger(self) -> Nudger:
        """Somebody who leaves word."""
        return Nudger(self.table, Operations(self.clock, random.Random(1), lambda _: None))

    def at_ms(self, kind: type[LeaseTaken | LeaseReleased], key: LeaseKey) -> int | None:
        """When that was last told of a lease."""
        told = (
            at_ms
            for log in self.events.values()
            for at_ms, event in log
            if isinstance(event, kind) and event.key == key
        )
        return max(told, default=None)

    def gap_ms(self, key: LeaseKey) -> int:
        """How long the lease was nobody's when it last changed hands."""
        taken_ms, released_ms = self.at_ms(LeaseTaken, key), self.at_ms(LeaseReleased, key)
        assert taken_ms is not None
        assert released_ms is not None
        assert taken_ms >= released_ms, f"{key} was released, and is nobody's"
        return taken_ms - released_ms


async def _slowly(world: World, worker: WorkerId, held: HeldLease) -> None:
    assert isinstance(world, _WithSlowShards)
    await deliver(world, worker, held)
    await world.clock.sleep_ms(world.drains_ms.get(held.shard, 100))


def settled(
    story: Callable[[_WithSlowShards, list[WorkerId]], Awaitable[None]], *, members: int, shards: int
) -> _WithSlowShards:
    """Play a story in a fleet that has been at rest for a while; the members come with the leader first."""
    world = _WithSlowShards(even_shards(shards), serve=_slowly, settings=LED)
    world.drains_ms, world.blind = {}, set()

    async def play() -> None:
        names = [world.start(f"m{number}") for number in range(members)]
        await world.until(lambda: len(world.readers()) == shards, within_s=90)
        await world.clock.sleep_ms(150_000)
        leader = leaders(world)[-1]
        await story(world, [leader, *(name for name in names if name != leader)])
        await world.stop_all()

    run_in_virtual_time(play())
    return world


def test_each_heir_is_told_when_its_lease_comes() -> None:
    """Also of those that come late, because what a shard has in hand takes its time."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
        leaving = members[1]
        mine = [shard for shard, reader in world.readers().items() if reader == leaving]
        world.drains_ms = dict(zip(mine, (100, 6_000, 8_000, 12_000, 25_000), strict=True))
        await world.stop(leaving)
        await world.clock.sleep_ms(30_000)
        for shard in mine:
            assert world.gap_ms(LeaseKey(shard)) <= 3_000

    settled(story, members=6, shards=30)


def test_a_lease_on_its_way_is_waited_for_in_a_large_table() -> None:
    """Where members ask the index, they find what is being handed to them there, and look until it has come."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
        source, to = members[1], members[-1]
        leases = (await world.table.list()).leases
        lease = next(each for each in leases if each.owner == source and not each.is_in_handoff)
        world.drains_ms[lease.shard_id] = 8_000
        await world.table.request_handoff(lease, to)
        await world.nudger().nudge({to}, leases)
        await world.clock.sleep_ms(30_000)
        assert world.readers()[lease.shard_id] == to
        assert world.gap_ms(lease.key) <= 3_000

    settled(story, members=4, shards=210)


def test_a_look_that_failed_is_made_again() -> None:
    """Word came, and the looks that followed did not get through: the lease is begun soon after they do."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
        source, to = members[1], members[-1]
        leases = (await world.table.list()).leases
        lease = next(each for each in leases if each.owner == source)
        world.blind = {to}
        await world.table.assign(lease, to)
        await world.nudger().nudge({to}, leases)
        await world.clock.sleep_ms(8_000)
        world.blind = set()
        healed_ms = world.clock.now_ms()
        await world.until(lambda: (world.at_ms(LeaseTaken, lease.key) or 0) >= healed_ms, within_s=4)
        assert world.readers().get(lease.shard_id, to) == to

    settled(story, members=8, shards=32)


def test_nobody_listens_to_a_java_leader() -> None:
    """It leaves no word; whoever follows it looks all the time, half a minute after it took the lead at the latest."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
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

    settled(story, members=5, shards=15)


def test_a_fleet_survives_half_of_its_members() -> None:
    """The leader among them, and those who stand by first: the others lead and read, within a minute and a half."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
        for member in members[:4]:
            await world.kill(member)
        await world.clock.sleep_ms(1_000)
        await world.until(lambda: len(world.readers()) == 24, within_s=90)

    settled(story, members=8, shards=24)


def test_looks_of_a_fleet_at_rest_are_few() -> None:
    """Four members with three leases each: the leader looks every four seconds, the others to see who leads."""

    async def story(world: _WithSlowShards, members: list[WorkerId]) -> None:
        before = dict(world.calls)
        await world.clock.sleep_ms(300_000)
        looks = {member: world.calls[member, "scan"] - before[member, "scan"] for member in members}
        writes = sum(world.calls[member, "write"] - before[member, "write"] for member in members)
        assert looks[members[0]] <= 90
        assert sum(looks.values()) - looks[members[0]] <= 75
        assert writes <= 12 * 60 + 40 + 40 + 10

    settled(story, members=4, shards=12)
