"""Members with a leader: every shard is read, by one member at a time, through starts, stops, kills and lost
connections.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, Mode
from leasehold.core.assignment.leader_assignment import LeaderLimits, LeaderPlan, LeaderView, plan_assignment
from leasehold.core.assignment.rebalancing import Balancing
from leasehold.core.coordinator.kcl_rows import LEADER_KEY
from leasehold.core.coordinator.worker_metrics import cpu_report, create_report
from leasehold.core.events import (
    FleetRefreshed,
    HandoffRequested,
    LeadershipEnded,
    LeaseAssigned,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
)
from leasehold.core.leases.row_writes import PutRow, Row
from leasehold.core.model import WorkerId
from leasehold.fleet.held_lease import HeldLease
from leasehold.ports import LoadMeter
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import (
    LEADER_SETTINGS,
    SETTINGS,
    World,
    assert_never_interleaved,
    deliver,
    even_shards,
    leaders,
)

MIGRATED: Row = {
    "leaseKey": {"S": "Migration3.0"},
    "entityType": {"S": "CLIENT_VERSION_MIGRATION"},
    "cv": {"S": "CLIENT_VERSION_3X"},
}


def run_test(scenario: Callable[[World], Awaitable[None]], shards: int = 12) -> World:
    """Run a test in a new world of members with a leader, and stop the members that still run."""
    world = World(even_shards(shards), settings=LEADER_SETTINGS)

    async def main() -> None:
        await scenario(world)
        await world.stop_all()

    run_in_virtual_time(main())
    assert_never_interleaved(world)
    return world


def test_a_lone_member_leads_itself() -> None:
    """It takes the lock and assigns every lease to itself within a few seconds."""

    async def scenario(world: World) -> None:
        world.start("a")
        await world.until(lambda: len(world.readers()) == 12, within_s=8)

    assert leaders(run_test(scenario)) == ["a"]


def test_members_that_start_together_share_evenly_without_later_moves() -> None:
    """Four members with sixteen shards get four each, with one move a lease, and no move in the next ten minutes."""

    async def scenario(world: World) -> None:
        for name in "abcd":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4, 4], within_s=15)
        await world.clock.sleep_ms(600_000)
        assert len(world.events_of(LeaseTaken)) == 16
        assert world.events_of(LeaseLost) == []
        assert len(leaders(world)) == 1

    run_test(scenario, shards=16)


def test_new_members_get_their_share_by_handoff_with_the_fewest_moves() -> None:
    """One member has twelve leases, then two more join: eight leases move, once each, and no member loses one."""

    async def scenario(world: World) -> None:
        world.start("a")
        await world.until(lambda: len(world.readers()) == 12, within_s=10)
        world.start("b")
        world.start("c")
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=240)
        assert world.events_of(LeaseLost) == []
        assert len(world.events_of(LeaseTaken)) == 12 + 8
        assert len(world.events_of(HandoffRequested)) >= 8

    run_test(scenario)


def test_a_killed_member_is_replaced_within_fifteen_seconds() -> None:
    """Its leases are assigned to the other members in one decision, once they have been silent for the failover
    time.
    """

    async def scenario(world: World) -> None:
        members = [world.start(name) for name in "abc"]
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=15)
        dying = next(worker for worker in members if worker not in leaders(world))
        await world.kill(dying)
        await world.until(lambda: world.shares() == [6, 6], within_s=15)
        assert len(world.events_of(LeaseTaken)) == 12 + 4

    run_test(scenario)


def test_a_killed_leader_is_replaced_within_thirty_seconds() -> None:
    """Another member leads, and the shards of the dead member are read again."""

    async def scenario(world: World) -> None:
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=15)
        await world.kill(leaders(world)[0])
        await world.until(lambda: world.shares() == [6, 6], within_s=30)
        assert len(leaders(world)) == 2

    run_test(scenario)


@pytest.mark.parametrize("leads", [True, False])
def test_shards_of_a_stopped_member_are_read_again_within_two_seconds(leads: bool) -> None:
    """A member that stops releases its leases and the leader lock, and deletes its report. Others read on within
    two seconds.
    """

    async def scenario(world: World) -> None:
        members = [world.start(name) for name in "abc"]
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=15)
        leaving = next(worker for worker in members if (worker in leaders(world)) == leads)
        await world.stop(leaving)
        await world.until(lambda: world.shares() == [6, 6], within_s=2)
        assert world.events_of(LeaseLost) == []
        assert await world.rows.get(leaving) is None

    run_test(scenario)


def test_a_stopped_fleet_leaves_only_free_leases() -> None:
    """It leaves no lock, no reports and no owners, so the next fleet starts at once in any mode."""

    async def scenario(world: World) -> None:
        for name in "ab":
            world.start(name)
        await world.until(lambda: world.shares() == [6, 6], within_s=15)
        await world.stop_all()
        rows = await world.rows.scan()
        assert len(rows) == 12
        assert all("leaseOwner" not in row for row in rows)

    run_test(scenario)


def test_leases_that_go_to_a_member_which_has_stopped_meanwhile_are_released() -> None:
    """The batch of the first takes longer than the whole stop of the second, which it has chosen as next owner."""

    async def drain_slowly(world: World, worker: WorkerId, held: HeldLease) -> None:
        await deliver(world, worker, held)
        await world.clock.sleep_ms(5_000 if worker == "a" else 0)

    async def scenario(world: World) -> None:
        world.serve = drain_slowly
        first, second = world.start("a"), world.start("b")
        await world.until(lambda: world.shares() == [6, 6], within_s=15)
        first_stop = asyncio.create_task(world.stop(first))
        await world.clock.sleep_ms(1_000)
        await world.stop(second)
        await first_stop
        assert any(
            isinstance(event, LeaseReleased) and event.to == second for _, event in world.events[first]
        )
        assert all("leaseOwner" not in row for row in await world.rows.scan())

    run_test(scenario)


def test_a_leader_that_is_cut_off_is_replaced_and_comes_back_as_a_follower() -> None:
    """Two members never lead at once. When the first one is connected again, it serves what it is assigned."""

    async def scenario(world: World) -> None:
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=15)
        first = leaders(world)[0]
        world.cut_off.add(first)
        await world.until(lambda: world.shares() == [6, 6], within_s=40)
        world.cut_off.remove(first)
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=240)
        assert len(leaders(world)) == 2
        ended = [event for event in world.events_of(LeadershipEnded) if isinstance(event, LeadershipEnded)]
        assert [event.worker for event in ended] == [first]

    run_test(scenario)


def test_a_leader_whose_decisions_fail_resigns() -> None:
    """Leases that cannot be written make it resign, and it leaves the lock to others for a while."""

    async def scenario(world: World) -> None:
        for name in "abc":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=15)
        dying = next(name for name in "abc" if name not in leaders(world))
        theirs = {shard for shard, reader in world.readers().items() if reader == dying}
        world.unwritable |= theirs
        await world.kill(WorkerId(dying))
        await world.until(lambda: len(leaders(world)) >= 2, within_s=60)
        assert leaders(world)[0] != leaders(world)[1]
        world.unwritable -= theirs
        await world.until(lambda: world.shares() == [6, 6], within_s=60)

    run_test(scenario)


def test_a_rolling_replacement_moves_each_lease_once() -> None:
    """Old members stop one after the other, each shortly after its replacement has started."""

    async def scenario(world: World) -> None:
        old = [world.start(f"old{number}") for number in range(4)]
        await world.until(lambda: world.shares() == [3, 3, 3, 3], within_s=15)
        for number, leaving in enumerate(old):
            world.start(f"new{number}")
            await world.clock.sleep_ms(5_000)
            await world.stop(leaving)
            await world.clock.sleep_ms(25_000)
        await world.until(lambda: world.shares() == [3, 3, 3, 3], within_s=60)
        assert len(world.events_of(LeaseTaken)) == 12 + 12
        assert world.events_of(LeaseLost) == []

    run_test(scenario)


def test_a_lock_without_a_heartbeat_is_taken_over() -> None:
    """The lock of a leader that died long ago is taken over, even if its duration is years."""

    async def scenario(world: World) -> None:
        row: Row = {
            "leaseKey": {"S": LEADER_KEY},
            "entityType": {"S": "LEADER"},
            "ownerName": {"S": "java-1"},
            "leaseDuration": {"S": "99999999999"},
            "recordVersionNumber": {"S": "7f3c1a52"},
        }
        await world.rows.write(PutRow(LEADER_KEY, row))
        world.start("a")
        await world.clock.sleep_ms(590_000)
        assert leaders(world) == []
        await world.until(lambda: len(world.readers()) == 12, within_s=30)

    run_test(scenario)


def test_auto_joins_a_fleet_with_a_leader_and_leads_a_new_one() -> None:
    """Without any row, and with Java's row for 3.x, members get their leases from a leader."""
    for rows in ((), (MIGRATED,)):

        async def scenario(world: World, rows: tuple[Row, ...] = rows) -> None:
            world.settings = replace(SETTINGS, mode=Mode.AUTO)
            for row in rows:
                await world.rows.write(PutRow(row["leaseKey"]["S"], row))
            world.start("a")
            world.start("b")
            await world.until(lambda: world.shares() == [6, 6], within_s=15)
            assert len(world.events_of(LeaseAssigned)) == 12

        run_test(scenario)


def test_auto_joins_a_fleet_of_three_tables() -> None:
    """Lock and reports are in the tables of KCL 3.0 to 3.4, and the lease table contains only leases."""

    async def scenario(world: World) -> None:
        world.settings = replace(SETTINGS, mode=Mode.AUTO)
        migration: Row = {"key": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}
        world.coordinator = MemoryRows([migration], key_attribute="key")
        world.metrics = MemoryRows(key_attribute="wid")
        world.start("a")
        world.start("b")
        await world.until(lambda: world.shares() == [6, 6], within_s=15)
        assert all("leaseCounter" in row for row in await world.rows.scan())
        assert [row["wid"]["S"] for row in await world.metrics.scan()] == ["a", "b"]
        lock = await world.coordinator.get(LEADER_KEY)
        assert lock is not None
        assert lock["ownerName"]["S"] == leaders(world)[0]
        await world.kill(leaders(world)[0])
        await world.until(lambda: world.shares() == [12], within_s=30)

    run_test(scenario)


def test_auto_joins_peers_and_follows_them_to_a_leader() -> None:
    """A fleet with owners and no leader is joined as a peer. When a Java member upgrades the fleet, every member
    follows.
    """

    async def scenario(world: World) -> None:
        world.settings = replace(SETTINGS, mode=Mode.PEER)
        first = world.start("peer")
        await world.until(lambda: len(world.readers()) == 12, within_s=10)
        world.settings = replace(SETTINGS, mode=Mode.AUTO)
        world.start("a")
        world.start("b")
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=60)
        assert leaders(world) == []
        await world.stop(first)
        await world.rows.write(PutRow("Migration3.0", MIGRATED))
        await world.until(lambda: len(leaders(world)) == 1, within_s=70)
        await world.until(lambda: world.shares() == [6, 6], within_s=30)

    run_test(scenario)


def test_a_member_reads_few_rows_in_a_large_fleet() -> None:
    """Members that do not lead query the index for their leases, and do not scan a large table."""

    async def scenario(world: World) -> None:
        for name in "ab":
            world.start(name)
        await world.until(lambda: len(world.readers()) == 210, within_s=20)
        await world.clock.sleep_ms(5_000)
        before = dict(world.calls)
        await world.clock.sleep_ms(70_000)
        follower = next(name for name in "ab" if name not in leaders(world))
        assert world.calls[follower, "scan"] == before[follower, "scan"]
        assert world.calls[follower, "keys_owned_by"] - before[follower, "keys_owned_by"] >= 6

    run_test(scenario, shards=210)


def test_no_leader_assigns_to_a_member_that_cannot_read() -> None:
    """A member that releases shards without reading a page deletes its report, and other members get its shards."""

    async def scenario(world: World) -> None:
        async def serve(_: World, worker: WorkerId, held: object) -> None:
            if worker == "sick":
                raise OSError("no route to Kinesis")
            await healthy(world, worker, held)  # type: ignore[arg-type]

        healthy, world.serve = world.serve, serve
        world.settings = replace(LEADER_SETTINGS, cooldown_after_failure=timedelta(seconds=20))
        world.start("sick")
        world.start("well")
        await world.until(lambda: world.shares() == [12], within_s=120)
        assert set(world.readers().values()) == {"well"}

    run_test(scenario)


def test_a_shard_that_ends_while_its_member_stops_gets_no_next_owner() -> None:
    """Nothing is left to read of it, although a next owner was chosen when the stop began."""

    async def scenario(world: World) -> None:
        async def serve(_: World, worker: WorkerId, held: HeldLease) -> None:
            await deliver(world, worker, held)
            await held.finish(())

        world.serve = serve
        world.start("a")
        world.start("b")
        await world.until(lambda: world.shares() == [1, 1], within_s=120)
        await world.stop(WorkerId("a"))
        (ended,) = [lease for lease in (await world.table.list()).leases if lease.checkpoint.is_shard_end]
        assert ended.owner is None

    run_test(scenario, shards=2)


class _HalfLoad(LoadMeter):
    """A member that is always half busy."""

    async def percent(self) -> float | None:
        return 50.0


def test_a_leader_decides_by_its_settings_and_reports_its_range() -> None:
    """Each setting of balancing reaches the decision, and the member's limit reaches its report."""
    seen: list[LeaderLimits] = []

    def decide(view: LeaderView, limits: LeaderLimits) -> LeaderPlan:
        seen.append(limits)
        return plan_assignment(view, limits)

    settings = replace(
        LEADER_SETTINGS,
        max_kbps=700,
        balance_threshold=20,
        balance_step=60,
        balance_every=timedelta(minutes=1),
        balance_overshoot=False,
        newest_report_weight=0.25,
        max_utilisation=80,
    )
    world = World(even_shards(2), settings=settings, decide=decide, meter=_HalfLoad())

    async def story() -> None:
        worker = world.start("a")
        await world.until(lambda: len(world.readers()) == 2, within_s=8)
        row = await world.rows.get(worker)
        assert row is not None
        assert row["opr"] == {"M": {"C": {"L": [{"N": "80"}]}}}
        await world.stop_all()

    run_in_virtual_time(story())
    assert seen[0].balancing == Balancing(threshold=0.2, step=0.6, every_ms=60_000, may_overshoot=False)
    assert (seen[0].kbps_max, seen[0].newest_weight) == (700, 0.25)


def test_a_leader_deletes_reports_that_are_older_than_a_day() -> None:
    """As in the KCL, whose setting for it is a day. A worker that was away for less time keeps its report."""
    hour_s = 3_600

    async def scenario(world: World) -> None:
        wall_s = world.clock.wall_ms() // 1000
        for worker, age_s in (("away", 23.5 * hour_s), ("gone", 24.5 * hour_s)):
            report = cpu_report(WorkerId(worker), None, int(wall_s - age_s))
            await world.rows.write(create_report(report, "leaseKey"))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 2, within_s=8)
        await world.clock.sleep_ms(10_000)
        assert await world.rows.get("away") is not None
        assert await world.rows.get("gone") is None

    run_test(scenario, shards=2)


class _SlowScans(MemoryRows):
    """A table that takes 300 ms to be read."""

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        await asyncio.sleep(0.3)
        return await super().scan(segments=segments, is_consistent=is_consistent)


@pytest.mark.parametrize("settings", [SETTINGS, LEADER_SETTINGS], ids=["peer", "leader"])
def test_a_refresh_reports_the_time_that_the_scan_took(settings: FleetSettings) -> None:
    world = World(even_shards(2), settings=settings)
    world.rows = _SlowScans()

    async def story() -> None:
        world.start("a")
        await world.until(lambda: len(world.readers()) == 2, within_s=12)
        await world.stop_all()

    run_in_virtual_time(story())
    refreshed = [event for event in world.events_of(FleetRefreshed) if isinstance(event, FleetRefreshed)]
    assert {event.time_ms for event in refreshed} == {300}
