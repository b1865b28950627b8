"""A query that starts with an old copy of its checkpoint location is refused, however the pins of the later batches
were removed. A sink that skips known batch ids would lose the records of the batches that the log does not contain.
"""

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.exactly_once.slice_limits import SliceLimits
from leasehold.core.leases.lease_row import COUNTER_LIMIT
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import Lease, LeaseKey, ShardId
from leasehold.errors import OffsetMismatchError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query.pinned_slices import SlicePlan
from tests.unit.spark.query_world import OTHER, QueryRun, QueryWorld, SparkLog, until

FIRST = ShardId("shardId-000000000000")


async def start_run(world: QueryWorld) -> QueryRun:
    run = QueryRun(world)
    await run.start()
    return run


async def take_lease(world: QueryWorld) -> Lease:
    stolen = await world.steal(FIRST)
    assert stolen is not None
    return stolen


# -- how the pin of the last batch is removed ------------------------------------------------------------------


async def stop_after_commit(world: QueryWorld, run: QueryRun) -> None:
    """Spark has reported the last commit, so the stop promotes the pin."""
    await run.stop(world.log.committed.generation_id)


async def stop_when_idle(world: QueryWorld, run: QueryRun) -> None:
    """An idle shard has no pin."""
    await world.drain(run, lambda: not world.missing())
    while await world.run_batch(run):
        pass

    async def has_no_pin() -> bool:
        lease = await world.table.get(LeaseKey(FIRST))
        return lease is not None and lease.pin is None

    await until(world.clock, has_no_pin)
    await run.stop()


async def stop_after_shard_end(world: QueryWorld, run: QueryRun) -> None:
    """The end of a shard removes its pin. No child has been read."""
    await world.split(FIRST)
    await world.drain(run, lambda: not world.missing())

    async def has_ended() -> bool:
        await world.run_batch(run)
        lease = await world.table.get(LeaseKey(FIRST))
        return lease is not None and lease.checkpoint.is_shard_end

    await until(world.clock, has_ended)
    await run.stop()


async def lose_lease_to_kcl_member(world: QueryWorld, run: QueryRun) -> None:
    """A member that knows nothing of queries reads the pinned batch again, and its checkpoint removes the pin."""
    await run.kill()
    lease = await take_lease(world)
    assert lease.pin is not None
    done = await world.table.checkpoint(lease, lease.pin.end)
    assert isinstance(done, Lease)
    await world.table.release(done)


async def lose_lease_to_other_query(world: QueryWorld, run: QueryRun) -> None:
    """Another query delivers the pinned batch again, and replaces the metadata of the pin."""
    await run.kill()
    await world.serve_stolen(await take_lease(world), slices=2, releases=True)


ENDINGS: list[Callable[[QueryWorld, QueryRun], Awaitable[None]]] = [
    stop_after_commit,
    stop_when_idle,
    stop_after_shard_end,
    lose_lease_to_kcl_member,
    lose_lease_to_other_query,
]


@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
def test_an_old_copy_of_the_log_is_refused(
    end: Callable[[QueryWorld, QueryRun], Awaitable[None]], is_pending: bool
) -> None:
    """The error names both generations. `is_pending`: the last batch of the copy was not committed yet."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(50)
        run = await start_run(world)
        for _ in range(3):
            await world.run_batch(run)
        await end(world, run)
        latest = max(number for lease in (await world.table.list()).leases for _, number in lease.generations)
        assert latest >= 3
        del world.log.offsets[2:]
        world.log.commits = 1 if is_pending else 2
        before = await world.table.list()
        with pytest.raises(
            OffsetMismatchError, match=r"generation \d+ of this query is .* knows generation 2.*old copy"
        ):
            await start_run(world)
        assert await world.table.list() == before, "a refused query changes nothing"

    run_in_virtual_time(main())


@pytest.mark.parametrize(
    "damage",
    [
        {"parentShardId": {"S": "text, not a set"}},
        {"leaseCounter": {"S": "seven"}},
        {"leaseCounter": {"N": str(COUNTER_LIMIT)}},
        {"parentShardId": {"SS": ["shardId-000000000001"]}},
    ],
    ids=["parents", "counter", "counter too large", "a parent of its parent"],
)
def test_an_old_copy_of_the_log_is_refused_although_a_row_cannot_be_read(damage: Row) -> None:
    """Only the unreadable row shows the last batch. If it is repaired later, the query would have delivered others."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(50)
        run = await start_run(world)
        for _ in range(3):
            await world.run_batch(run)
        await run.stop(world.log.committed.generation_id)
        row = await world.rows.get(FIRST)
        assert row is not None
        other = {**row, "leaseKey": {"S": "shardId-000000000001"}, "parentShardId": {"SS": [FIRST]}}
        other.pop("leaseholdGenerations")
        world.replace_rows([{**row, **damage}, other])
        assert (await world.table.list()).unreadable_shards(None) >= {FIRST}
        del world.log.offsets[2:]
        world.log.commits = 2
        with pytest.raises(
            OffsetMismatchError, match=r"generation 3 of this query is delivered\. .* knows generation 2"
        ):
            await start_run(world)

    run_in_virtual_time(main())


def test_the_current_log_of_a_stopped_query_is_accepted() -> None:
    """Other members may have read on. The query continues where the lease is, and no record is delivered twice."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(50)
        run = await start_run(world)
        for _ in range(3):
            await world.run_batch(run)
        await run.stop(world.log.committed.generation_id)
        await world.serve_stolen(await take_lease(world), slices=2, releases=True)
        run = await start_run(world)
        await world.drain(run, lambda: not world.missing())
        await run.stop()
        world.check_once()

    run_in_virtual_time(main())


def test_a_query_with_a_new_checkpoint_location_joins() -> None:
    """It has another query id, so the generations of the first query mean nothing to it. Both logs stay valid."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(30)
        run = await start_run(world)
        for _ in range(2):
            await world.run_batch(run)
        await run.stop(world.log.committed.generation_id)
        first_log, world.log = world.log, SparkLog(query_id="0badcafe")
        run = await start_run(world)
        await world.drain(run, lambda: world.log.commits == 1)
        await run.stop(world.log.committed.generation_id)
        world.log = first_log
        run = await start_run(world)
        await world.drain(run, lambda: not world.missing())
        await run.stop(world.log.committed.generation_id)
        world.check_once()
        lease = await world.table.get(LeaseKey(FIRST))
        assert lease is not None
        assert dict(lease.generations) == {"0badcafe": 1, world.log.query_id: world.log.commits}

    run_in_virtual_time(main())


def test_an_old_log_is_noticed_in_a_lease_that_comes_later() -> None:
    """The lease was not in the listing at the start, so the plan notices it."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(20)
        run = await start_run(world)
        await world.run_batch(run)
        await run.stop()
        run = await start_run(world)
        await world.run_batch(run)
        lease = await take_lease(world)
        plan = SlicePlan(
            lease,
            GenerationId(world.log.query_id, 9),
            ReadStart(lease.checkpoint),
            SliceLimits(),
            "orders",
            redeliver_to=lease.pin.end if lease.pin else None,
        )
        assert await world.attempt(plan).result() is not None
        pinned = await world.table.get(LeaseKey(FIRST))
        assert pinned is not None
        assert pinned.actual_owner == OTHER
        promoted = await world.table.promote(pinned)
        assert isinstance(promoted, Lease)
        await world.table.release(promoted)
        with pytest.raises(OffsetMismatchError, match="generation 9 of this query"):
            await world.drain(run, lambda: False, within_s=60)
        await run.stop()

    run_in_virtual_time(main())


def test_a_sink_that_skips_known_batch_ids_loses_nothing() -> None:
    """After the refusal the user restores the newest copy, and each record is in the sink once."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(40)
        run = await start_run(world)
        for _ in range(3):
            await world.run_batch(run)
        await run.stop(world.log.committed.generation_id)
        current = list(world.log.offsets)
        del world.log.offsets[1:]
        world.log.commits = 1
        with pytest.raises(OffsetMismatchError):
            await start_run(world)
        world.log.offsets, world.log.commits = current, len(current)
        run = await start_run(world)
        await world.drain(run, lambda: not world.missing())
        await run.stop()
        rows = Counter(int(row) for batch in world.log.batches.values() for row in batch)
        assert rows == Counter(range(world.produced))
        world.check_once()

    run_in_virtual_time(main())
