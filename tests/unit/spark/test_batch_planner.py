"""The lease server and the batch planner of a query, on virtual time."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.exactly_once.pinned_batch import GenerationId, pin_metadata, pin_metadata_to_bytes
from leasehold.core.exactly_once.query_offset import QueryOffset, ReadStart
from leasehold.core.exactly_once.shard_phase import Ended, Idle, InBatch
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import InitialPosition, LeaseKey, ShardId, WorkerId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import UnavailableError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import Page
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query_settings import QuerySettings
from tests.unit.spark.query_world import QUERY_ID, QueryRun, QueryWorld, until

FIRST = ShardId("shardId-000000000000")
FROM_START = QuerySettings(initial=InitialPosition(TRIM_HORIZON))


async def start_run(world: QueryWorld) -> QueryRun:
    run = QueryRun(world)
    await run.start()
    return run


def test_an_idle_stream_causes_only_the_first_batch() -> None:
    """The first batch fixes where shards begin. No empty batch follows, even after iterators expire."""

    async def main() -> None:
        world = QueryWorld()
        run = await start_run(world)
        assert await world.run_batch(run)
        assert set(world.log.committed.in_stream(None).starts) == set(await world.open_shards())
        for _ in range(3):
            await world.clock.sleep_ms(400_000)
            assert not await world.run_batch(run)
        world.put(1)
        await world.drain(run, lambda: not world.missing(), within_s=5)
        assert world.log.commits == 2
        await run.stop()

    run_in_virtual_time(main())


def test_a_batch_respects_its_limit_and_the_next_follows_at_once() -> None:
    """The pin shows that a limit left records over, so the shard is not polled first."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits(records=12))
        world.put(60)
        run = await start_run(world)
        began_ms = world.clock.now_ms()
        while world.missing():
            assert await world.run_batch(run)
        assert world.clock.now_ms() - began_ms < 1000
        assert max(map(len, world.log.batches.values())) <= 12
        await run.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_every_batch_begins_at_the_end_of_the_last_one() -> None:
    """The offset log has the same position as the lease table."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(5)
        run = await start_run(world)
        await world.run_batch(run)
        lease = await world.table.get(LeaseKey(FIRST))
        assert lease is not None
        assert lease.pin is not None
        world.put(5)
        await world.drain(run, lambda: not world.missing())
        assert world.log.offsets[-1].starts[LeaseKey(FIRST)] == ReadStart(lease.pin.end)
        await run.stop()
        stopped = await world.table.get(LeaseKey(FIRST))
        assert stopped is not None
        assert stopped.owner is None

    run_in_virtual_time(main())


def test_a_stop_after_a_committed_batch_leaves_nothing_to_redeliver() -> None:
    """A bounded run ends with an empty plan. By then all pins are promoted."""

    async def main() -> None:
        world = QueryWorld()
        world.put(20)
        run = await start_run(world)
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
def test_a_stop_promotes_only_pins_that_are_known_to_be_committed(is_known: bool) -> None:
    """Between two batches only Spark knows. If it has reported the commit, the next owner continues after the pin."""

    async def main() -> None:
        world = QueryWorld()
        world.put(30)
        run = await start_run(world)
        for _ in range(2):
            await world.run_batch(run)
        pinned = {lease.key: lease for lease in (await world.table.list()).leases}
        await run.stop(world.log.committed.generation_id if is_known else None)
        for stopped in (await world.table.list()).leases:
            pin = pinned[stopped.key].pin
            assert pin is not None
            assert (stopped.pin is None) == is_known
            assert (stopped.checkpoint == pin.end) == is_known
        again = await start_run(world)
        await world.drain(again, lambda: not world.missing())
        await again.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_stop_within_a_batch_keeps_its_pins() -> None:
    """Only the batch before it is committed."""

    async def main() -> None:
        world = QueryWorld()
        world.put(30)
        run = await start_run(world)
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
    """It reads all records that existed at its start, across reshards. Later records do not delay its end."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(20)
        await world.split(FIRST)
        world.put(20)
        await world.split((await world.open_shards())[0])
        world.put(20)
        wanted = set(range(world.produced))
        run = await start_run(world)
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


@pytest.mark.parametrize("is_split_first", [False, True])
def test_a_bounded_run_does_not_wait_for_shards_that_it_leaves_to_the_next_run(is_split_first: bool) -> None:
    """The first shard gets records after its tip was read, and ends in a merge. The other parent has nothing more.

    The merged shard waits for the first one: its lease exists, or, after a split, not even that of its other parent.
    """

    async def main() -> None:
        world = QueryWorld(shards=2, limits=BatchLimits())
        world.put(20)
        run = await start_run(world)
        run.planner.is_available_now = True
        while await world.run_batch(run) or not await run.planner.has_read_all_available():
            await world.clock.sleep_ms(250)
        world.put_at(0)
        lower, upper = await world.open_shards()
        if is_split_first:
            await world.split(lower)
            upper, _, lower = await world.open_shards()
        world.merge(lower, upper)
        world.put(20)
        await world.clock.sleep_ms(10_000)
        await until(world.clock, run.planner.has_read_all_available)
        assert not await world.run_batch(run)
        final = run.planner.plan_final(world.log.committed)
        assert final is not None
        await run.stop()
        checkpoints = {lease.shard_id: lease.checkpoint for lease in (await world.table.list()).leases}
        assert all(
            start.position == checkpoints[shard] for shard, start in final.in_stream(None).starts.items()
        )
        assert upper in final.in_stream(None).shards, "the log does not know how far the run has read"
        await world.read_all_available()
        world.check_once()

    run_in_virtual_time(main())


def test_a_bounded_run_ends_when_it_has_read_as_many_shards_as_it_may() -> None:
    """The lease of the other shard stays free, and this member never takes it."""

    async def main() -> None:
        settings = QuerySettings(initial=InitialPosition(TRIM_HORIZON), max_leases=1)
        world = QueryWorld(shards=2, limits=BatchLimits(), settings=settings)
        world.put(20)
        run = await start_run(world)
        run.planner.is_available_now = True
        while await world.run_batch(run):
            await world.clock.sleep_ms(250)
        await until(world.clock, run.planner.has_read_all_available)
        assert sorted(lease.owner is None for lease in (await world.table.list()).leases) == [False, True]
        await run.stop()

    run_in_virtual_time(main())


def test_a_bounded_run_continues_after_the_batch_of_an_earlier_run() -> None:
    """The earlier run read to the tip of its time. Records that arrived since existed when this run began."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits())
        world.put(20)
        first = await start_run(world)
        plans = await first.next_plans()
        assert plans
        for plan in plans:
            await world.attempt(plan).result()
        await first.kill()
        world.put(20)
        second = await start_run(world)
        second.planner.is_available_now = True
        while await world.run_batch(second) or not await second.planner.has_read_all_available():
            await world.clock.sleep_ms(250)
        await second.stop()
        world.check_once()

    run_in_virtual_time(main())


@pytest.mark.parametrize("with_last_records", [False, True])
def test_a_bounded_run_reads_the_children_of_a_shard_that_an_earlier_run_has_read(
    with_last_records: bool,
) -> None:
    """Its first poll returns the last delivered record, which does not show that the shard has ended since."""

    async def main() -> None:
        world = QueryWorld(shards=1, shard_end_with_last_records=with_last_records)
        world.put(20)
        world.put(1)  # not in an aggregate
        await world.read_all_available()
        await world.split(FIRST)
        world.put(20)
        await world.read_all_available()
        world.check_once()

    run_in_virtual_time(main())


def test_a_killed_run_is_replaced_at_once() -> None:
    """The next run of the same query releases its leases. Another member would have to wait until they expire."""

    async def main() -> None:
        world = QueryWorld()
        world.put(20)
        first = await start_run(world)
        plans = await first.next_plans()
        assert plans
        await first.kill()
        began_ms = world.clock.now_ms()
        second = await start_run(world)
        await world.drain(second, lambda: not world.missing())
        assert world.clock.now_ms() - began_ms < 5000
        late = [await world.attempt(plan).result() for plan in plans]
        assert late == [None, None], "a task of the killed run could still pin"
        await second.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_replay_has_the_same_rows() -> None:
    """Later records do not matter. Records that were not pinned follow in the next batch."""

    async def main() -> None:
        world = QueryWorld()
        world.put(10)
        first = await start_run(world)
        plans = await first.next_plans()
        assert plans
        pinned = await world.attempt(plans[0]).result()
        assert pinned is not None
        await first.kill()
        world.put(10)
        second = await start_run(world)
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


def test_latest_is_kept_while_another_member_owns_the_lease() -> None:
    """The offset log keeps the moment, also in batches without the shard."""

    async def main() -> None:
        world = QueryWorld(settings=replace(FROM_START, initial=InitialPosition(LATEST)))
        run = await start_run(world)
        await world.run_batch(run)
        first_ms = world.log.committed.starts[LeaseKey(FIRST)].timestamp_ms
        stolen = await world.steal(FIRST)
        assert stolen is not None
        await world.clock.sleep_ms(8000)
        while (
            FIRST in {plan.lease.shard_id for plan in await run.next_plans() or ()}
            or not world.log.is_pending
        ):
            world.put(1)
            await world.clock.sleep_ms(1000)
        assert world.log.offsets[-1].released[LeaseKey(FIRST)] == ReadStart(AT_TIMESTAMP, first_ms)
        await run.stop()

    run_in_virtual_time(main())


def test_latest_is_the_time_at_which_the_lease_was_created() -> None:
    """The first plan may be much later, for example after a crash before it. No record in between is lost."""

    async def main() -> None:
        world = QueryWorld(settings=replace(FROM_START, initial=InitialPosition(LATEST)))
        killed = await start_run(world)
        await killed.kill()
        await world.clock.sleep_ms(60_000)
        world.put(5)
        await world.clock.sleep_ms(60_000)
        run = await start_run(world)
        await world.drain(run, lambda: not world.missing())
        world.check_once()
        await run.stop()

    run_in_virtual_time(main())


def test_children_are_read_after_their_parent_is_committed() -> None:
    """A split loses no record, and no child is read before the end of its parent is committed."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(30)
        await world.split(FIRST)
        world.put(30)
        run = await start_run(world)
        shards_read: list[set[ShardId]] = []
        while world.missing():
            plans = await run.next_plans()
            if plans is None:
                await world.clock.sleep_ms(500)
                continue
            shards_read.append({plan.lease.shard_id for plan in plans})
            done = [await world.attempt(plan).result() for plan in plans]
            world.deliver(done)
            world.commit(done)
        await run.stop()
        world.check_once()
        assert all(shards == {FIRST} for shards in shards_read[:3])  # 30 records, 12 a batch
        assert FIRST not in set().union(*shards_read[3:])

    run_in_virtual_time(main())


class _RefusedTransactions(MemoryRows):
    """Executes no transaction while `is_down` is set."""

    is_down = True

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        if self.is_down:
            raise UnavailableError("down")
        return await super().write_transaction(writes)


def test_a_shard_is_logged_as_finished_once_its_end_is_written() -> None:
    """A log that names it earlier would contradict the lease after a crash, and the query would be refused."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.rows = rows = _RefusedTransactions()
        world.table = LeaseTable(rows)
        world.put(5)
        await world.split(FIRST)
        run = await start_run(world)
        await world.drain(run, lambda: isinstance(run.server.shards[LeaseKey(FIRST)].phase, Ended))
        await world.clock.sleep_ms(2_000)
        assert not run.server.finished
        rows.is_down = False
        await world.clock.sleep_ms(10_000)
        assert run.server.finished == {LeaseKey(FIRST)}
        offset = run.planner.plan_final(world.log.committed)
        assert offset is not None
        assert offset.finished == {LeaseKey(FIRST)}
        assert LeaseKey(FIRST) not in offset.known_starts
        assert not run.server.finished  # from now on the log names it
        await run.stop()

    run_in_virtual_time(main())


def test_single_shards_begin_at_the_positions_of_the_options() -> None:
    """Other shards begin at the initial position."""

    async def main() -> None:
        world = QueryWorld(shards=1, per_aggregate=1)
        numbers = world.put(10)
        world.settings = replace(FROM_START, starting={FIRST: ReadStart(Position(numbers[6]))})
        run = await start_run(world)
        await world.drain(run, lambda: 9 in world.sink.numbers())
        assert world.sink.numbers() == Counter(range(7, 10))
        await run.stop()

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_requested_lease_is_handed_off_after_its_batch(is_replay: bool) -> None:
    """A graceful handoff waits for the commit of the current batch, and leaves nothing to redeliver. So it does if an
    earlier run planned the batch.
    """

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(5)
        run = await start_run(world)
        plans = await run.next_plans()
        assert plans
        if is_replay:
            await world.attempt(plans[0]).result()
            await run.kill()
            run = await start_run(world)
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


def test_a_query_without_leases_plans_nothing() -> None:
    """A full fleet may have no lease for it."""

    async def main() -> None:
        world = QueryWorld()
        run = QueryRun(world)
        assert await run.planner.plan(QueryOffset(GenerationId(QUERY_ID, 0), {}), BatchLimits()) is None
        assert run.planner.report() == {"shards": {}, "maxMillisBehind": None, "recordsRead": 0}

    run_in_virtual_time(main())


def test_the_progress_tells_what_was_read_of_each_shard() -> None:
    """How much so far, and at which rate."""

    async def main() -> None:
        world = QueryWorld(shards=1, limits=BatchLimits())
        world.put(10)
        run = await start_run(world)
        for _ in range(2):
            await world.drain(run, lambda: not world.missing())
            await world.clock.sleep_ms(5_000)
            world.put(10)
        await run.next_plans()  # it reads the pins of the batch before
        (shard,) = run.planner.report()["shards"].values()
        assert shard["recordsRead"] == 20
        assert shard["bytesRead"] > 0
        assert 0 < shard["recordsPerSecond"] <= 2.1
        # Each record of the last batch has two bytes of data and one of its key.
        assert shard["bytesPerSecond"] == pytest.approx(3 * shard["recordsPerSecond"], abs=0.2)
        assert set(shard) >= {"millisBehind", "position"}
        await run.stop()

    run_in_virtual_time(main())


def test_leases_are_renewed_during_a_long_batch() -> None:
    """A batch may take longer than the failover time."""

    async def main() -> None:
        world = QueryWorld(limits=BatchLimits())
        world.put(10)
        run = await start_run(world)
        plans = await run.next_plans()
        assert plans
        await asyncio.sleep(timedelta(minutes=30).total_seconds())
        done = [await world.attempt(plan).result() for plan in plans]
        assert sum(len(each.records) for each in done if each) == 10
        await run.stop()

    run_in_virtual_time(main())


def test_a_poll_that_ends_after_a_batch_has_begun_changes_nothing() -> None:
    """A replay begins while an idle shard is polled. The page belongs to the phase before."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        run = QueryRun(world)
        await run.start()
        world.put(5)
        await world.drain(run, lambda: not world.missing())
        await world.run_batch(run)
        (shard,) = run.server.shards.values()
        idle = shard.phase
        assert isinstance(idle, Idle)
        polled, may_end, read = asyncio.Event(), asyncio.Event(), world.stream.get_records

        async def read_slowly(iterator: str, *, limit: int) -> Page:
            page = await read(iterator, limit=limit)
            polled.set()
            await may_end.wait()
            return page

        world.stream.get_records = read_slowly  # type: ignore[method-assign]
        world.put(1)
        await polled.wait()
        replayed = InBatch(idle.start, idle.committed_to, is_replay=True)
        shard.move(replayed)
        may_end.set()
        await world.clock.sleep_ms(1_000)
        assert shard.phase is replayed
        await run.kill()

    run_in_virtual_time(main())


class TimedStream(MemoryStream):
    """Notes when records were requested."""

    def __init__(self, world: QueryWorld) -> None:
        super().__init__(world.service, "orders", world.clock)
        self.clock = world.clock
        self.requested_ms: list[int] = []

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        self.requested_ms.append(self.clock.now_ms())
        return await super().get_records(iterator, limit=limit)


def test_an_idle_shard_is_not_polled_before_it_has_its_quota_again() -> None:
    """Kinesis would throttle the poll, and those of all other readers for longer."""

    async def main() -> None:
        world = QueryWorld(shards=1, limits=BatchLimits())
        world.stream = stream = TimedStream(world)
        run = await start_run(world)
        assert await world.run_batch(run)
        for number in range(4):
            data = b"%d" % number + b" " * 900_000
            world.service.put_record(world.clock.wall_ms(), "orders", PutRequest("k", data, 0))
        world.produced = 4
        await world.drain(run, lambda: not world.missing())
        read_ms = stream.requested_ms[-1]
        assert not await world.run_batch(run)
        await world.clock.sleep_ms(5_000)
        polled_ms = [each for each in stream.requested_ms if each > read_ms]
        assert 1_800 <= polled_ms[0] - read_ms <= 2_000
        assert len(polled_ms) > 3
        await run.stop()

    run_in_virtual_time(main())


def test_the_clock_of_a_task_that_is_an_hour_ahead_delays_a_poll_by_five_seconds() -> None:
    """The wait for the quota is not repeated until the hour has passed."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.stream = stream = TimedStream(world)
        world.put(1)
        run = await start_run(world)
        await world.drain(run, lambda: not world.missing())
        lease = await world.table.get(LeaseKey(FIRST))
        assert lease is not None
        metadata = pin_metadata(lease)
        assert metadata is not None
        later = replace(metadata, quota_at_ms=world.clock.wall_ms() + 3_600_000)
        row = world.rows._rows[FIRST]
        world.rows._rows[FIRST] = {**row, "pendingCheckpointState": {"B": pin_metadata_to_bytes(later)}}
        assert not await world.run_batch(run)
        began_ms = world.clock.now_ms()
        await world.clock.sleep_ms(8_000)
        polled_ms = [each - began_ms for each in stream.requested_ms if each > began_ms]
        assert 4_000 <= polled_ms[0] <= 5_100
        assert len(polled_ms) > 2
        await run.stop()

    run_in_virtual_time(main())
