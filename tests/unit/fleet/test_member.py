"""Peers share shards: every shard is read, by one member at a time, through starts, stops, kills and lost
connections.
"""

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from leasehold.config.settings import Mode, milliseconds
from leasehold.core.events import (
    FleetRefreshed,
    HandoffRequested,
    LeaseLost,
    LeaseReleased,
    LeasesRenewed,
    LeaseTaken,
    OperationFailed,
    RowIgnored,
    RowRecovered,
    RowRejected,
    ShardEnded,
    ShardStalled,
)
from leasehold.core.leases.row_writes import DeleteRow, PutRow, Row
from leasehold.core.model import ChildShard, HashRange, ShardId, WorkerId, lease_key
from leasehold.core.position import Position
from leasehold.errors import ConfigError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.world import SETTINGS, TICK_MS, World, assert_never_interleaved, deliver, even_shards


def test_a_lone_member_reads_everything() -> None:
    """Leases are created, taken and served within a few refreshes."""

    async def scenario() -> None:
        world = World(even_shards(16))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 16, within_s=5)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_members_that_start_together_share_evenly() -> None:
    """Four members with sixteen shards soon get four each, and then no lease moves."""

    async def scenario() -> None:
        world = World(even_shards(16))
        for name in "abcd":
            world.start(name)
        await world.until(lambda: world.shares() == [4, 4, 4, 4], within_s=30)
        moves = len(world.events_of(LeaseTaken))
        await world.clock.sleep_ms(120_000)
        assert len(world.events_of(LeaseTaken)) == moves
        assert world.events_of(LeaseLost) == []
        assert_never_interleaved(world)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_new_member_gets_its_share_by_handoff() -> None:
    """Balancing moves leases without a lost lease."""

    async def scenario() -> None:
        world = World(even_shards(12))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 12, within_s=10)
        world.start("b")
        await world.until(lambda: world.shares() == [6, 6], within_s=60)
        world.start("c")
        await world.until(lambda: world.shares() == [4, 4, 4], within_s=60)
        assert world.events_of(LeaseLost) == []
        assert len(world.events_of(HandoffRequested)) > 0
        assert_never_interleaved(world)
        await world.stop_all()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("mode", [Mode.PEER, Mode.LEADER])
def test_no_lease_is_taken_from_the_member_that_takes_it(mode: Mode) -> None:
    """A lease that was assigned or handed over has the name of the new owner already."""

    async def scenario() -> None:
        world = World(even_shards(4), settings=replace(SETTINGS, mode=mode))
        leaving = world.start("a")
        await world.until(lambda: len(world.readers()) == 4, within_s=60)
        world.start("b")
        await world.until(lambda: world.shares() == [2, 2], within_s=120)
        await world.kill(leaving)
        await world.until(lambda: world.shares() == [4], within_s=120)
        for worker, log in world.events.items():
            taken_from = {event.taken_from for _, event in log if isinstance(event, LeaseTaken)}
            assert worker not in taken_from
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_shards_of_a_stopped_peer_are_read_again_within_two_seconds() -> None:
    """After a member has stopped, each of its shards is read by another within two seconds."""

    async def scenario() -> None:
        world = World(even_shards(8))
        leaving, _ = world.start("a"), world.start("b")
        await world.until(lambda: world.shares() == [4, 4], within_s=30)
        await world.stop(leaving)
        await world.until(lambda: world.shares() == [8], within_s=2)
        assert world.events_of(LeaseLost) == []
        assert len(world.events_of(LeaseReleased)) >= 4
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_dead_members_shards_are_read_again() -> None:
    """After the failover time the other members take the shards of a dead member."""

    async def scenario() -> None:
        world = World(even_shards(9))
        dying = world.start("a")
        for name in "bc":
            world.start(name)
        await world.until(lambda: world.shares() == [3, 3, 3], within_s=30)
        await world.kill(dying)
        await world.until(lambda: world.shares() == [4, 5], within_s=15)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_member_that_is_cut_off_stops_before_others_begin() -> None:
    """A member that cannot reach the table stops delivering, on its own clock, before another member may take its
    shards.
    """

    async def scenario() -> None:
        world = World(even_shards(6))
        lonely, _ = world.start("a"), world.start("b")
        await world.until(lambda: world.shares() == [3, 3], within_s=30)
        world.cut_off.add(lonely)
        await world.until(lambda: world.shares() == [6], within_s=20)
        for log in world.deliveries.values():
            last_ms = max((at for at, worker in log if worker == lonely), default=0)
            first_ms = min((at for at, worker in log if worker != lonely and at > last_ms), default=None)
            if first_ms is not None:
                assert first_ms > last_ms
        assert_never_interleaved(world)
        world.cut_off.clear()
        await world.until(lambda: world.shares() == [3, 3], within_s=60)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_stalled_shard_is_released() -> None:
    """A shard without progress is not renewed for ever. It is reported, and another member gets it."""

    async def hang(world: World, worker: WorkerId, held: HeldLease) -> None:
        if worker == "a":
            await asyncio.Event().wait()
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(even_shards(1), hang, replace(SETTINGS, stalled_after=timedelta(minutes=1)))
        world.start("a")
        await world.clock.sleep_ms(5_000)
        world.start("b")
        await world.until(lambda: bool(world.events_of(ShardStalled)), within_s=70)
        await world.until(lambda: world.readers() != {}, within_s=3)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_shard_whose_serving_fails_moves_to_another_member() -> None:
    """If serving raises, the lease is released, and this member waits before it serves the shard again."""

    async def fail(world: World, worker: WorkerId, held: HeldLease) -> None:
        if worker == "a":
            raise ValueError("secret text of a stranger")
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(even_shards(2), fail)
        first = world.start("a")
        await world.clock.sleep_ms(30_000)
        failures = [event for event in world.events_of(OperationFailed) if isinstance(event, OperationFailed)]
        assert 2 <= len(failures) <= 6  # it rests after each failure, and longer each time
        assert {failure.error for failure in failures} == {"ValueError"}
        world.start("b")
        await world.until(lambda: world.shares() == [2], within_s=15)
        await world.stop(first)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_children_are_read_at_once() -> None:
    """The end of a shard creates the leases of its children, and the owner of the parent reads them next."""
    shards = even_shards(2)
    parent = shards[0]
    middle = parent.hash_range.end // 2
    children = [
        ChildShard(ShardId("shardId-000000000002"), (parent.id,), HashRange(0, middle)),
        ChildShard(
            ShardId("shardId-000000000003"), (parent.id,), HashRange(middle + 1, parent.hash_range.end)
        ),
    ]

    async def end_parent(world: World, worker: WorkerId, held: HeldLease) -> None:
        await held.wait_for_parents(world.stream)
        if held.shard == parent.id:
            await world.clock.sleep_ms(2_000)
            await held.checkpoint(Position("500"))
            await held.finish(children)
            return
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(shards, end_parent)
        world.start("a")
        await world.until(lambda: bool(world.events_of(ShardEnded)), within_s=10)
        await world.until(lambda: {child.id for child in children} <= world.readers().keys(), within_s=2)
        lease = await world.table.get(lease_key(parent.id))
        assert lease is not None
        assert lease.checkpoint.is_shard_end
        assert lease.children == {child.id for child in children}
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_merged_child_waits_for_both_parents() -> None:
    """The child starts only after both parents have ended, whichever ends first."""
    shards = even_shards(2)
    child = ChildShard(
        ShardId("shardId-000000000002"), (shards[0].id, shards[1].id), HashRange(0, 2**128 - 1)
    )

    async def end_parents(world: World, worker: WorkerId, held: HeldLease) -> None:
        await held.wait_for_parents(world.stream)
        if held.shard == child.id:
            await deliver(world, worker, held)
            return
        await world.clock.sleep_ms(2_000 if held.shard == shards[0].id else 40_000)
        held.note_progress()
        await held.finish([child])

    async def scenario() -> None:
        world = World(shards, end_parents)
        for name in "ab":
            world.start(name)
        await world.until(lambda: len(world.events_of(ShardEnded)) == 1, within_s=20)
        await world.clock.sleep_ms(20_000)
        assert world.readers() == {}
        await world.until(lambda: len(world.events_of(ShardEnded)) == 2, within_s=60)
        await world.until(lambda: world.readers().keys() == {child.id}, within_s=5)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_finished_leases_are_cleaned_up() -> None:
    """Once its children have checkpoints of their own, the lease of a finished shard is deleted."""
    shards = even_shards(1)
    parent = shards[0]
    children = [
        ChildShard(ShardId(f"shardId-00000000000{index}"), (parent.id,), hash_range)
        for index, hash_range in ((1, HashRange(0, 99)), (2, HashRange(100, 2**128 - 1)))
    ]

    async def end_parent(world: World, worker: WorkerId, held: HeldLease) -> None:
        if held.shard == parent.id:
            world.stream.shards = [
                replace(parent, ending_sequence_number="900"),
                *(replace(parent, id=c.id, hash_range=c.hash_range, parents=c.parents) for c in children),
            ]
            await held.finish(children)
            return
        await held.checkpoint(Position("1000"))
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(shards, end_parent)
        world.start("a")
        await world.clock.sleep_ms(270_000)
        leases = (await world.table.list()).leases
        assert {lease.shard_id for lease in leases} == {child.id for child in children}
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_lost_lease_row_is_found_by_the_audit() -> None:
    """A hole that several audits have seen causes a shard sync."""

    async def scenario() -> None:
        shards = even_shards(3)
        world = World(shards)
        world.start("a")
        await world.until(lambda: len(world.readers()) == 3, within_s=10)
        lease = await world.table.get(lease_key(shards[1].id))
        assert lease is not None
        assert await world.table.delete(lease)
        await world.until(lambda: len(world.readers()) == 2, within_s=10)
        assert [(event.owner, event.reason) for event in world.events_of(LeaseLost)] == [  # type: ignore[union-attr]
            (None, "its row was deleted")
        ]
        await world.until(lambda: len(world.readers()) == 3, within_s=400)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_nothing_is_created_while_a_row_cannot_be_read() -> None:
    """An unreadable lease of a child is not treated as absent. Otherwise its parent could be created again."""
    child = replace(even_shards(1)[0], id=ShardId("shardId-000000000001"), parents=(even_shards(1)[0].id,))
    parent = replace(even_shards(1)[0], ending_sequence_number="900")
    bad: Row = {"leaseKey": {"S": child.id}, "leaseCounter": {"S": "seven"}}

    async def scenario() -> None:
        world = World([parent, child])
        await world.rows.write(PutRow(child.id, bad))
        world.start("a")
        await world.clock.sleep_ms(900_000)  # many audits
        assert (await world.table.list()).leases == ()
        assert world.events_of(RowRejected)
        await world.rows.write(DeleteRow(key=child.id, when=()))
        await world.until(lambda: len(world.readers()) == 1, within_s=200)
        await world.stop_all()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("mode", [Mode.PEER, Mode.AUTO])
def test_a_note_in_a_new_table_blocks_nothing(mode: Mode) -> None:
    """A row with nothing of a lease is reported once, and every shard is read."""

    async def scenario() -> None:
        world = World(even_shards(4), settings=replace(SETTINGS, mode=mode))
        await world.rows.write(PutRow("note", {"leaseKey": {"S": "note"}}))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 4, within_s=20)
        await world.clock.sleep_ms(30_000)
        assert [event.key for event in world.events_of(RowIgnored)] == ["note"]  # type: ignore[union-attr]
        assert world.events_of(RowRejected) == []
        await world.stop_all()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("mode", [Mode.PEER, Mode.AUTO])
def test_an_unreadable_row_in_a_new_table_blocks_one_shard(mode: Mode) -> None:
    """All other shards are read. The reports begin and end with the row, and then its shard is read too."""
    shards = even_shards(4)
    bad = shards[2].id

    async def scenario() -> None:
        world = World(shards, settings=replace(SETTINGS, mode=mode))
        await world.rows.write(PutRow(bad, {"leaseKey": {"S": bad}}))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 3, within_s=20)
        assert bad not in world.readers()
        rejected = world.events_of(RowRejected)[0]
        assert isinstance(rejected, RowRejected)
        assert "repair or delete the row" in rejected.problem
        assert "are not started" in rejected.consequence
        assert world.events_of(RowRecovered) == []
        await world.rows.write(DeleteRow(key=bad, when=()))
        await world.until(lambda: len(world.readers()) == 4, within_s=60)
        assert world.events_of(RowRecovered) == [RowRecovered(bad)]
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_the_rejection_of_a_worker_report_ends_with_the_row() -> None:
    """Otherwise the health of the member would contain the row until the process restarts."""

    async def scenario() -> None:
        world = World(even_shards(2), settings=replace(SETTINGS, mode=Mode.AUTO))
        bad: Row = {"leaseKey": {"S": "b"}, "entityType": {"S": "WORKER_METRIC_STATS"}, "lut": {"S": "seven"}}
        await world.rows.write(PutRow("b", bad))
        world.start("a")
        await world.until(lambda: bool(world.events_of(RowRejected)), within_s=20)
        assert world.events_of(RowRecovered) == []
        await world.rows.write(DeleteRow(key="b", when=()))
        await world.until(lambda: bool(world.events_of(RowRecovered)), within_s=60)
        await world.clock.sleep_ms(60_000)
        assert world.events_of(RowRecovered) == [RowRecovered("b")]
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_waits_for_no_unreadable_row() -> None:
    """A child whose row cannot be read counts as created; its sibling is created and read."""
    parent = replace(even_shards(1)[0], ending_sequence_number="900")
    children = [
        replace(shard, id=ShardId(f"shardId-{number:012d}"), parents=(parent.id,))
        for number, shard in enumerate(even_shards(2), start=1)
    ]

    async def end_parent(world: World, worker: WorkerId, held: HeldLease) -> None:
        if held.shard == parent.id:
            await held.finish([ChildShard(each.id, each.parents, each.hash_range) for each in children])
        else:
            await deliver(world, worker, held)

    async def scenario() -> None:
        world = World([parent, *children], end_parent)
        await world.rows.write(PutRow(children[0].id, {"leaseKey": {"S": children[0].id}}))
        world.start("a")
        await world.until(lambda: set(world.readers()) == {children[1].id}, within_s=20)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_shard_with_a_slow_handler_is_not_taken_by_force() -> None:
    """A handler that takes ten minutes exceeds every handoff timeout. Its shard moves when it is done, without a
    lost lease.
    """

    async def slow(world: World, worker: WorkerId, held: HeldLease) -> None:
        if worker == "a":
            for _ in range(6000):
                assert not held.lost.is_set()
                held.note_progress()
                await world.clock.sleep_ms(TICK_MS)
            return
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(even_shards(2), slow)
        world.start("a")
        await world.clock.sleep_ms(5_000)
        world.start("b")
        await world.clock.sleep_ms(500_000)
        assert world.events_of(HandoffRequested)
        assert world.readers() == {}
        await world.until(lambda: len(world.readers()) >= 1, within_s=150)
        assert world.events_of(LeaseLost) == []
        await world.kill(WorkerId("a"))
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_row_that_cannot_be_written_costs_only_its_own_lease() -> None:
    """Heartbeats do not wait for each other."""

    async def scenario() -> None:
        shards = even_shards(8)
        world = World(shards)
        world.start("a")
        await world.until(lambda: len(world.readers()) == 8, within_s=10)
        world.unwritable.add(shards[3].id)
        await world.clock.sleep_ms(60_000)
        assert {event.shard for event in world.events_of(LeaseLost) if isinstance(event, LeaseLost)} == {
            shards[3].id
        }
        assert len(world.readers()) == 7
        world.unwritable.clear()
        await world.until(lambda: len(world.readers()) == 8, within_s=30)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_first_leases_are_all_created_in_spite_of_throttling() -> None:
    """Otherwise some shards would stay unread until an audit."""

    async def scenario() -> None:
        shards = even_shards(16)
        world = World(shards)
        world.unwritable.add(shards[4].id)
        world.start("a")
        await world.clock.sleep_ms(20_000)
        world.unwritable.clear()
        await world.until(lambda: len(world.readers()) == 16, within_s=20)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_member_that_cannot_read_leaves_the_shards_to_others() -> None:
    """One of three members never gets a page. It releases its shards, and retries less and less often."""

    async def sick(world: World, worker: WorkerId, held: HeldLease) -> None:
        if worker == "a":
            await asyncio.Event().wait()
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(even_shards(12), sick)
        for name in "abc":
            world.start(name)
        await world.clock.sleep_ms(300_000)
        unread = 0
        for _ in range(1200):
            await world.clock.sleep_ms(1_000)
            unread += 12 - len(world.readers())
        assert unread / (1200 * 12) < 0.05
        await world.kill(WorkerId("a"))
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_leases_that_are_lost_before_the_first_page_say_nothing_about_reading() -> None:
    """The table was out of reach for a while, and every lease expired. Then the member takes them all again."""

    async def read_later(world: World, worker: WorkerId, held: HeldLease) -> None:
        if not world.events_of(LeaseLost):
            await asyncio.Event().wait()
        await deliver(world, worker, held)

    async def scenario() -> None:
        world = World(even_shards(8), read_later)
        worker = world.start("a")
        await world.until(lambda: len(world.events_of(LeaseTaken)) == 8, within_s=10)
        world.cut_off.add(worker)
        await world.until(lambda: len(world.events_of(LeaseLost)) == 8, within_s=60)
        world.cut_off.clear()
        # The failover time of its own leases, the cooldown of each, and some refreshes.
        await world.until(lambda: len(world.readers()) == 8, within_s=30)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_member_waits_for_an_unavailable_table_at_its_start() -> None:
    """A member that cannot start reports it and retries."""

    async def scenario() -> None:
        world = World(even_shards(2))
        world.cut_off.add(WorkerId("a"))
        world.start("a")
        await world.clock.sleep_ms(60_000)
        assert world.events_of(OperationFailed)
        world.cut_off.clear()
        await world.until(lambda: len(world.readers()) == 2, within_s=15)
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_released_lease_is_not_written() -> None:
    """After the release, a late checkpoint is refused, and a late heartbeat does nothing."""
    kept: list[HeldLease] = []

    async def keep(world: World, worker: WorkerId, held: HeldLease) -> None:
        kept.append(held)
        await held.draining.wait()

    async def scenario() -> None:
        world = World(even_shards(1), keep)
        worker = world.start("a")
        await world.until(lambda: bool(kept), within_s=5)
        await world.stop(worker)
        row = await world.table.get(kept[0].lease.key)
        await kept[0].renew()
        with pytest.raises(LeaseLostError, match="was released"):
            await kept[0].checkpoint(Position("100"))
        assert not kept[0].is_valid()
        assert await world.table.get(kept[0].lease.key) == row

    run_in_virtual_time(scenario())


def test_a_peer_refuses_to_join_a_fleet_with_a_leader() -> None:
    """If a KCL 3.x leader assigns the leases, a member in peer mode refuses to start."""

    async def scenario() -> None:
        world = World(even_shards(2))
        migration = {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}
        await world.rows.write(PutRow("Migration3.0", migration))
        with pytest.raises(ConfigError, match="billing"):
            await world.stop(world.start("a"), at_once=False)
        assert (await world.table.list()).leases == ()

    run_in_virtual_time(scenario())


def test_invalid_settings_are_refused() -> None:
    """A setting with which healthy members would lose leases is an error that contains the remedy."""
    with pytest.raises(ConfigError, match="10 seconds"):
        replace(SETTINGS, failover_after=timedelta(milliseconds=200))
    with pytest.raises(ConfigError, match="refresh_every"):
        replace(SETTINGS, refresh_every=timedelta(seconds=9))
    with pytest.raises(ConfigError, match="max_leases"):
        replace(SETTINGS, max_leases=0)


def test_peers_refresh_at_random_within_a_quarter_of_the_interval() -> None:
    """Members that started together must not keep reading the table together, nor more often or rarely than set."""

    async def scenario() -> None:
        world = World(even_shards(2))
        worker = world.start("a")
        await world.clock.sleep_ms(15 * 60_000)
        await world.stop_all()
        times = [at_ms for at_ms, event in world.events[worker] if isinstance(event, FleetRefreshed)]
        pauses = [after - before for before, after in pairwise(times[2:])]  # the first ones take leases
        every_ms = milliseconds(SETTINGS.refresh_every)
        assert min(pauses) == pytest.approx(0.75 * every_ms, abs=0.02 * every_ms)
        assert max(pauses) == pytest.approx(1.25 * every_ms, abs=0.02 * every_ms)

    run_in_virtual_time(scenario())


def _rounds(world: World, since_ms: int = 0) -> list[tuple[int, int]]:
    """How many leases were renewed, and how many heartbeats failed, in each round of heartbeats."""
    log = [event for events in world.events.values() for at_ms, event in events if at_ms > since_ms]
    return [(event.renewed, event.failed) for event in log if isinstance(event, LeasesRenewed)]


def test_heartbeats_are_reported_once_in_each_interval() -> None:
    async def scenario() -> None:
        world = World(even_shards(5))
        world.start("a")
        await world.until(lambda: len(world.readers()) == 5, within_s=30)
        await world.clock.sleep_ms(10_000)
        since_ms = world.clock.now_ms()
        await world.clock.sleep_ms(20 * milliseconds(SETTINGS.renew_every))
        assert _rounds(world, since_ms) == [(5, 0)] * 20
        await world.stop_all()

    run_in_virtual_time(scenario())


def test_a_heartbeat_that_fails_is_reported() -> None:
    """One of five leases cannot be written until it is lost. The other four are renewed in each round."""

    async def scenario() -> None:
        shards = even_shards(5)
        world = World(shards)
        world.start("a")
        await world.until(lambda: len(world.readers()) == 5, within_s=30)
        await world.clock.sleep_ms(10_000)
        since_ms = world.clock.now_ms()
        world.unwritable.add(shards[1].id)
        await world.until(lambda: bool(world.events_of(LeaseLost)), within_s=15)
        await world.clock.sleep_ms(10_000)
        rounds = _rounds(world, since_ms)
        assert rounds[:1] == [(5, 0)]  # retried until the lease is lost
        assert [each for each in rounds if each != (5, 0)] == [(4, 1), (4, 0)]
        await world.stop_all()

    run_in_virtual_time(scenario())
