"""A query starts and ends by what the lease table contains now. A scan of DynamoDB may lack the newest writes."""

from collections.abc import Sequence

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import ShardId
from leasehold.errors import OffsetMismatchError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.spark.query_world import QueryRun, QueryWorld


class StaleScans(MemoryRows):
    """Shares the rows of another store. A scan that is not consistent returns `stale` rows."""

    def __init__(self, rows: MemoryRows, stale: Sequence[Row]) -> None:
        super().__init__()
        self._rows = rows._rows
        self._stale = tuple(stale)

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        rows = await super().scan(segments=segments, is_consistent=is_consistent)
        return rows if is_consistent else self._stale


async def kill_after_batches(world: QueryWorld, batches: int) -> Sequence[Row]:
    """Run some batches and kill the driver. Returns the rows as they were before the second batch."""
    run = QueryRun(world)
    await run.start()
    world.put(60)
    await world.run_batch(run)
    stale = await world.rows.scan()
    for _ in range(batches - 1):
        await world.run_batch(run)
    await run.kill()
    return stale


def test_a_list_that_lacks_the_newest_writes_is_no_lost_table() -> None:
    """A killed query that starts again at once is not refused, and continues."""

    async def main() -> None:
        world = QueryWorld()
        stale = await kill_after_batches(world, 3)
        world.table = LeaseTable(StaleScans(world.rows, stale))
        run = QueryRun(world)
        await run.planner.prepare(world.log.offsets[-1])
        world.table = LeaseTable(world.rows)
        again = QueryRun(world)
        await again.start()
        await world.drain(again, lambda: not world.missing())
        world.check_once()
        await again.stop()

    run_in_virtual_time(main())


def test_an_old_log_is_refused_although_the_list_lacks_the_newest_writes() -> None:
    """The stamps of the later batches are only in the newest rows."""

    async def main() -> None:
        world = QueryWorld()
        stale = await kill_after_batches(world, 3)
        world.table = LeaseTable(StaleScans(world.rows, stale))
        del world.log.offsets[1:]
        world.log.commits = 1
        with pytest.raises(OffsetMismatchError, match="old copy"):
            await QueryRun(world).planner.prepare(world.log.offsets[-1])

    run_in_virtual_time(main())


def test_a_bounded_run_reads_children_that_a_stale_list_lacks() -> None:
    """The run has just finished the parent itself. A list without the children says that nothing is left to read."""

    async def main() -> None:
        world = QueryWorld(shards=1)
        world.put(10)
        run = QueryRun(world)
        await run.start()
        await world.split(ShardId("shardId-000000000000"))
        await world.drain(run, lambda: len(run.server.shards) == 2)
        await run.kill()
        finished = [row for row in await world.rows.scan() if row["checkpoint"] == {"S": "SHARD_END"}]
        assert len(finished) == 1
        world.table = LeaseTable(StaleScans(world.rows, finished))
        assert not await QueryRun(world).planner.has_read_all_available()

    run_in_virtual_time(main())
