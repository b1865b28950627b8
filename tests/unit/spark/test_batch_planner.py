"""Generations of a query on virtual time: what is planned, what is replayed, and what a lease tells in between."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import QueryOffset, ReadStart
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.model import InitialPosition, LeaseKey, ShardId, WorkerId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import OffsetMismatchError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from tests.unit.spark.query_world import QUERY_ID, QueryRun, QueryWorld, until

FIRST = ShardId("shardId-000000000000")
FROM_START = QuerySettings(initial=InitialPosition(TRIM_HORIZON))


async def running(world: QueryWorld) -> QueryRun:
    run = QueryRun(world)
    await run.start()
    return run


def test_an_idle_stream_is_planned_once_and_then_left_alone() -> None:
    """The first batch settles where shards begin; none without records follows, even when iterators expire."""

    async def main() -> None:
        world = QueryWorld()
        run = await running(world)
        assert await world.run_batch(run)
        assert set(world.log.committed.starts) == set(await world.open_shards())
        for _ in range(3):
            await world.clock.sleep_ms(400_000)
            assert not await world.run_batch(run)
        world.put(1)
        await world.drain(run, lambda: not world.missing(), within_s=5)
        assert world.log.commits == 2
        await run.stop()

    run_in_virtual_time(main())


def test_a_batch_takes_no_more_than_its_limit_and_the_rest_comes_at_once() -> None:
    """What a limit has left over is known from the pin: it takes no look at the shard to go on."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits(records=12))
        world.put(60)
        run = await running(world)
        began_ms = world.clock.now_ms()
        while world.missing():
            assert await world.run_batch(run)
        assert world.clock.now_ms() - began_ms < 1000
        assert max(map(len, world.log.batches.values())) <= 12
        await run.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_every_batch_begins_where_the_last_one_ended() -> None:
    """The offset log is a copy of the lease table."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(5)
        run = await running(world)
        await world.run_batch(run)
        lease = await world.table.get(LeaseKey(FIRST))
        assert lease is not None
        assert lease.pin is not None
        world.put(5)
        await world.drain(run, lambda: not world.missing())
        assert world.log.offsets[-1].starts[FIRST] == ReadStart(lease.pin.end)
        await run.stop()
        stopped = await world.table.get(LeaseKey(FIRST))
        assert stopped is not None
        assert stopped.owner is None

    run_in_virtual_time(main())


def test_a_clean_stop_after_a_committed_batch_leaves_nothing_to_redo() -> None:
    """A bounded run ends with a plan that finds nothing: by then all pins are promoted."""

    async def main() -> None:
        world = QueryWorld()
        world.put(20)
        run = await running(world)
        run.planner.is_available_now = True
        await world.drain(run, lambda: not world.missing())
        while not await run.planner.has_read_all_available():
            assert await run.next_plans() is None
            await world.clock.sleep_ms(200)
        await run.stop()
        listing = await world.table.list()
        assert [lease.pin for lease in listing.leases] == [None, None]

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_known", [True, False])
def test_a_stop_leaves_to_be_redone_what_is_not_known_to_be_committed(is_known: bool) -> None:
    """Between two batches only Spark knows; where it has told, the next owner goes on after the last one."""

    async def main() -> None:
        world = QueryWorld()
        world.put(30)
        run = await running(world)
        for _ in range(2):
            await world.run_batch(run)
        pinned = {lease.key: lease for lease in (await world.table.list()).leases}
        await run.stop(world.log.committed.generation_id if is_known else None)
        for stopped in (await world.table.list()).leases:
            pin = pinned[stopped.key].pin
            assert pin is not None
            assert (stopped.pin is None) == is_known
            assert (stopped.checkpoint == pin.end) == is_known
        again = await running(world)
        await world.drain(again, lambda: not world.missing())
        await again.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_stop_within_a_batch_leaves_its_pins() -> None:
    """What the batch before it has delivered is committed, and nothing more."""

    async def main() -> None:
        world = QueryWorld()
        world.put(30)
        run = await running(world)
        await world.run_batch(run)
        before = world.log.committed.generation_id
        for plan in await run.next_plans() or ():
            await world.attempt(plan).result()
        pins = [lease.pin for lease in (await world.table.list()).leases]
        await run.stop(before)
        assert [lease.pin for lease in (await world.table.list()).leases] == pins

    run_in_virtual_time(main())


@pytest.mark.parametrize("keeps_coming", [False, True])
def test_a_bounded_run_reads_children_too_and_ends(keeps_coming: bool) -> None:
    """Whatever was there when it began, behind however many reshards; what arrives all the time does not hold it up."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(20)
        await world.split(FIRST)
        world.put(20)
        await world.split((await world.open_shards())[0])
        world.put(20)
        wanted = set(range(world.produced))
        run = await running(world)
        run.planner.is_available_now = True
        for _ in range(100):
            if keeps_coming:
                world.put(3)
            if await world.run_batch(run):
                continue
            if await run.planner.has_read_all_available():
                break
            await world.clock.sleep_ms(250)
        else:
            pytest.fail("the run does not end")
        assert wanted <= set(world.sink.numbers())
        await run.stop()

    run_in_virtual_time(main())


def test_a_bounded_run_reads_on_after_the_batch_of_an_earlier_run() -> None:
    """That one had read to the tip of its time; what has arrived since was there when this run began."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits())
        world.put(20)
        first = await running(world)
        plans = await first.next_plans()
        assert plans
        for plan in plans:
            await world.attempt(plan).result()
        await first.kill()
        world.put(20)
        second = await running(world)
        second.planner.is_available_now = True
        while await world.run_batch(second) or not await second.planner.has_read_all_available():
            await world.clock.sleep_ms(250)
        await second.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_killed_run_is_replaced_at_once() -> None:
    """The next run of the same query frees its leases; others would have to wait until they are silent for long."""

    async def main() -> None:
        world = QueryWorld()
        world.put(20)
        first = await running(world)
        plans = await first.next_plans()
        assert plans
        await first.kill()
        began_ms = world.clock.now_ms()
        second = await running(world)
        await world.drain(second, lambda: not world.missing())
        assert world.clock.now_ms() - began_ms < 5000
        late = [await world.attempt(plan).result() for plan in plans]
        assert late == [None, None], "a task of the killed run could still pin"
        await second.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_replay_has_the_same_rows() -> None:
    """Whatever has arrived since; and what was not pinned comes in the batch after it."""

    async def main() -> None:
        world = QueryWorld()
        world.put(10)
        first = await running(world)
        plans = await first.next_plans()
        assert plans
        pinned = await world.attempt(plans[0]).result()
        assert pinned is not None
        await first.kill()
        world.put(10)
        second = await running(world)
        again = await second.next_plans()
        assert again is not None
        replayed = [await world.attempt(plan).result() for plan in again]
        assert [each.records for each in replayed if each] == [pinned.records]
        world.deliver(replayed)
        world.commit(replayed)
        await world.drain(second, lambda: not world.missing())
        await second.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_latest_is_remembered_while_another_member_has_the_shard() -> None:
    """The offset log keeps the moment, also over batches in which the query did not hold the lease."""

    async def main() -> None:
        world = QueryWorld(settings=replace(FROM_START, initial=InitialPosition(LATEST)))
        run = await running(world)
        await world.run_batch(run)
        first_ms = world.log.committed.starts[FIRST].timestamp_ms
        stolen = await world.steal(FIRST)
        assert stolen is not None
        await world.clock.sleep_ms(8000)
        while (
            FIRST in {plan.lease.shard_id for plan in await run.next_plans() or ()}
            or not world.log.is_pending
        ):
            world.put(1)
            await world.clock.sleep_ms(1000)
        assert world.log.offsets[-1].starts[FIRST] == ReadStart(AT_TIMESTAMP, first_ms)
        await run.stop()

    run_in_virtual_time(main())


def test_children_follow_when_their_parent_is_delivered_and_committed() -> None:
    """A split in mid-stream loses nothing, and no child is read before its parent's end is committed."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(30)
        await world.split(FIRST)
        world.put(30)
        run = await running(world)
        begun: list[set[ShardId]] = []
        while world.missing():
            plans = await run.next_plans()
            if plans is None:
                await world.clock.sleep_ms(500)
                continue
            begun.append({plan.lease.shard_id for plan in plans})
            done = [await world.attempt(plan).result() for plan in plans]
            world.deliver(done)
            world.commit(done)
        await run.stop()
        world.check_once()
        assert all(shards == {FIRST} for shards in begun[:3])  # 30 records, 12 a batch
        assert FIRST not in set().union(*begun[3:])

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("choice", "expected"),
    [(OnLeasesBehind.OFFSETS, Counter(range(20, 30))), (OnLeasesBehind.LEASES, Counter(range(30)))],
)
def test_a_lost_lease_table_is_told_or_settled_as_the_options_say(
    choice: OnLeasesBehind, expected: Counter[int]
) -> None:
    """By default both positions are named, and the ways out; then either side may be chosen."""

    async def main() -> None:
        world = QueryWorld(shards=1, limits=BatchLimits())
        world.put(20)
        run = await running(world)
        await world.run_batch(run)
        world.put(5)
        await world.drain(run, lambda: not world.missing())
        await run.stop()
        for lease in (await world.table.list()).leases:
            await world.table.delete(lease)
        world.put(5)
        run = await running(world)
        known = world.log.committed.starts[FIRST]
        with pytest.raises(OffsetMismatchError, match=f"up to {known} .* is at TRIM_HORIZON.*onLeasesBehind"):
            await run.next_plans()
        await run.stop()
        world.settings = replace(world.settings, on_leases_behind=choice)
        world.sink.ranges.clear()
        run = await running(world)
        await world.drain(run, lambda: 29 in world.sink.numbers())
        assert world.sink.numbers() == expected
        await run.stop()

    run_in_virtual_time(main())


def test_an_old_checkpoint_location_is_told() -> None:
    """The lease table knows of generations of this query that its own log does not."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(50)
        run = await running(world)
        for _ in range(3):
            await world.run_batch(run)
        await run.stop()
        del world.log.offsets[1:]
        world.log.commits = 1
        run = await running(world)
        with pytest.raises(OffsetMismatchError, match=r"generation 3 of this query is delivered .* old copy"):
            await run.next_plans()
        await run.stop()

    run_in_virtual_time(main())


def test_single_shards_begin_where_the_options_say() -> None:
    """And the others where a new fleet begins."""

    async def main() -> None:
        world = QueryWorld(shards=1, per_aggregate=1)
        numbers = world.put(10)
        world.settings = replace(FROM_START, starting={FIRST: ReadStart(Position(numbers[6]))})
        run = await running(world)
        await world.drain(run, lambda: 9 in world.sink.numbers())
        assert world.sink.numbers() == Counter(range(7, 10))
        await run.stop()

    run_in_virtual_time(main())


def test_a_lease_that_is_asked_for_goes_after_its_batch() -> None:
    """A graceful handoff waits for the commit of what is under way, and leaves nothing to redo."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(5)
        run = await running(world)
        plans = await run.next_plans()
        assert plans
        lease = await world.table.get(LeaseKey(FIRST))
        assert lease is not None
        await world.table.request_handoff(lease, WorkerId("asker"))
        await world.clock.sleep_ms(8000)
        done = [await world.attempt(plan).result() for plan in plans]
        assert done[0] is not None
        world.deliver(done)
        world.commit(done)
        assert await run.next_plans() is None

        async def is_handed_over() -> bool:
            now = await world.table.get(LeaseKey(FIRST))
            assert now is not None
            return now.owner == "asker" and not now.is_in_handoff and now.pin is None

        await until(world.clock, is_handed_over)
        await run.stop()

    run_in_virtual_time(main())


def test_a_query_without_shards_has_nothing_to_plan() -> None:
    """As a member of a full fleet."""

    async def main() -> None:
        world = QueryWorld()
        run = QueryRun(world)
        assert await run.planner.plan(QueryOffset(GenerationId(QUERY_ID, 0), {}), BatchLimits()) is None
        assert run.planner.report() == {"shards": {}, "maxMillisBehind": None, "recordsRead": 0}

    run_in_virtual_time(main())


def test_slices_are_read_while_leases_are_renewed() -> None:
    """A batch that takes longer than a lease lives keeps its leases."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits())
        world.put(10)
        run = await running(world)
        plans = await run.next_plans()
        assert plans
        await asyncio.sleep(timedelta(minutes=30).total_seconds())
        done = [await world.attempt(plan).result() for plan in plans]
        assert sum(len(each.records) for each in done if each) == 10
        await run.stop()

    run_in_virtual_time(main())
