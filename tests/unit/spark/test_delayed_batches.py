"""A query with a least number of records a batch waits for them, but not for ever."""

from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.spark.query_world import QueryRun, QueryWorld

DELAY_MS = 600_000  # longer than an iterator is valid
LIMITS = BatchLimits(records_min=50, delay_ms_max=DELAY_MS)


async def _started() -> tuple[QueryWorld, QueryRun]:
    """Return a query after its first batch, which does not wait."""
    world = QueryWorld(limits=LIMITS, per_aggregate=1)
    run = QueryRun(world)
    world.put(10)
    await run.start()
    await world.drain(run, lambda: not world.missing())
    return world, run


def test_a_batch_waits_until_it_has_enough_records() -> None:
    """The records of all shards count together."""

    async def scenario() -> None:
        world, run = await _started()
        world.put(30)
        for _ in range(60):
            assert await run.next_plans() is None
            await world.clock.sleep_ms(1_000)
        world.put(30)
        began_ms = world.clock.now_ms()
        await world.drain(run, lambda: not world.missing())
        assert world.clock.now_ms() - began_ms < 60_000
        await run.kill()

    run_in_virtual_time(scenario())


def test_a_batch_waits_no_longer_than_the_delay() -> None:
    """Then it has all records that wait, also if their iterators have expired meanwhile."""

    async def scenario() -> None:
        world, run = await _started()
        world.put(30)
        began_ms = world.clock.now_ms()
        await world.drain(run, lambda: not world.missing(), within_s=1_200)
        waited_ms = world.clock.now_ms() - began_ms
        assert DELAY_MS - 60_000 < waited_ms < DELAY_MS + 60_000
        await run.kill()

    run_in_virtual_time(scenario())


def test_a_bounded_run_does_not_wait() -> None:
    """Its last batch has what is left."""

    async def scenario() -> None:
        world = QueryWorld(limits=BatchLimits(records=20, records_min=20, delay_ms_max=DELAY_MS))
        run = QueryRun(world)
        run.planner.is_available_now = True
        world.put(45)
        await run.start()
        began_ms = world.clock.now_ms()
        await world.drain(run, lambda: not world.missing())
        assert world.clock.now_ms() - began_ms < 60_000
        await run.kill()

    run_in_virtual_time(scenario())
