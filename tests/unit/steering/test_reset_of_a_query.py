"""A reset while a Spark query runs: the query refuses to repeat records in silence, or repeats them if it may."""

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.steering.capture import CaptureLimits
from leasehold.core.steering.reset_target import ToOldest
from leasehold.errors import OffsetMismatchError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query_settings import OnLeasesBehind
from leasehold.steering.lease_capture import CapturePorts, LeaseCapture
from leasehold.steering.reset import ResetRequest, apply_reset, read_reset
from leasehold.steering.shard_positions import ShardPositions
from tests.unit.spark.query_world import QueryRun, QueryWorld, until

FIRST = ShardId("shardId-000000000000")
LIMITS = CaptureLimits(failover_ms=10_000, handoff_timeout_ms=30_000)


async def reset(world: QueryWorld) -> None:
    """Reset all shards to their oldest records."""
    rng = random.Random(1)
    positions = ShardPositions(stream=world.stream, clock=world.clock, rng=rng, retention_ms=24 * 3_600_000)
    read = await read_reset(world.table, positions, ResetRequest(ToOldest()))
    ports = CapturePorts(table=world.table, clock=world.clock, rng=rng)
    outcome = await apply_reset(LeaseCapture(ports, WorkerId("reset"), LIMITS), read, timeout_ms=120_000)
    assert len(outcome.moved) + len(outcome.created) >= 2
    assert not outcome.kept


async def finish_and_split(world: QueryWorld, run: QueryRun) -> None:
    """Let the query read a shard to its end, and its children."""
    await world.split(FIRST)

    async def has_ended() -> bool:
        await world.run_batch(run)
        lease = await world.table.get(LeaseKey(FIRST))
        return lease is None or lease.checkpoint.is_shard_end

    await until(world.clock, has_ended)
    world.put(24)
    await world.drain(run, lambda: not world.missing())


def delivered(world: QueryWorld) -> Counter[int]:
    """How often the query has delivered each record, to a sink that appends."""
    return Counter(int(row) for rows in world.log.batches.values() for row in rows)


@pytest.mark.parametrize("is_split", [False, True], ids=["open shards", "a finished shard"])
def test_a_query_that_may_follow_the_leases_delivers_everything_once_more(is_split: bool) -> None:
    """It runs on through the reset. The archive keeps each record once."""

    async def scenario() -> None:
        world = QueryWorld()
        world.settings = replace(world.settings, on_leases_behind=OnLeasesBehind.LEASES)
        run = QueryRun(world)
        await run.start()
        world.put(24)
        await world.drain(run, lambda: not world.missing())
        if is_split:
            await finish_and_split(world, run)
        batches = asyncio.create_task(
            world.drain(run, lambda: min(delivered(world)[each] for each in range(world.produced)) >= 2)
        )
        await reset(world)
        await batches
        assert set(delivered(world).values()) == {2}
        assert set(world.sink.numbers()) == set(range(world.produced))
        world.put(12)
        await world.drain(run, lambda: not world.missing())
        await run.stop()

    run_in_virtual_time(scenario())


def test_a_query_stops_by_default_and_names_the_option() -> None:
    """Nothing is delivered twice in silence. With the option, the next run begins where the reset says."""

    async def scenario() -> None:
        world = QueryWorld()
        run = QueryRun(world)
        await run.start()
        world.put(24)
        await world.drain(run, lambda: not world.missing())

        async def run_until_refused() -> None:
            with pytest.raises(OffsetMismatchError, match=r"leasehold reset.*onLeasesBehind=leases"):
                await world.drain(run, lambda: False)
            await run.kill()

        await asyncio.gather(run_until_refused(), reset(world))
        assert set(delivered(world).values()) == {1}
        with pytest.raises(OffsetMismatchError):
            await QueryRun(world).start()
        world.settings = replace(world.settings, on_leases_behind=OnLeasesBehind.LEASES)
        again = QueryRun(world)
        await again.start()
        await world.drain(again, lambda: min(delivered(world)[each] for each in range(24)) == 2)
        await again.stop()

    run_in_virtual_time(scenario())
