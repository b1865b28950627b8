"""A query that starts again compares its log with the lease table before its member joins the fleet."""

import random
from dataclasses import dataclass

import pytest

from leasehold.core.events import Event, MemberStarted
from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.leases.lease_row import lease_from_row
from leasehold.core.leases.row_writes import PutRow
from leasehold.core.model import Lease, WorkerId
from leasehold.errors import ConfigError, OffsetMismatchError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.options import source_options
from leasehold.spark.query.batch_load import BatchLoad
from leasehold.spark.query.query_member import IDLE_WAIT_MS, QueryMember, QueryPorts
from tests.unit.spark.query_world import QueryRun, QueryWorld

OPTIONS = source_options({"streamName": "orders", "applicationName": "billing", "mode": "peer"})


@dataclass(frozen=True)
class NoBatchEnds:
    """Records no end of a batch."""

    def last_committed(self) -> GenerationId | None:
        return None

    def last_end_ms(self) -> int | None:
        return None


def member_of(world: QueryWorld, events: list[Event], load: BatchLoad | None = None) -> QueryMember:
    ports = QueryPorts(
        streams={"orders": world.stream},
        table=world.table,
        clock=world.clock,
        rng=random.Random(1),
        observe=events.append,
        load=load or BatchLoad(world.clock, NoBatchEnds()),
    )
    return QueryMember(OPTIONS, world.log.committed, ports)


async def run_two_batches(world: QueryWorld) -> None:
    """Run two batches, and kill the driver."""
    run = QueryRun(world)
    await run.start()
    for _ in range(2):
        world.put(20)
        await world.drain(run, lambda: not world.missing())
    await run.kill()


def test_a_refused_query_creates_no_lease() -> None:
    """The lease table was deleted. A member that joins before the comparison would create leases from the start."""

    async def scenario() -> None:
        world, events = QueryWorld(), list[Event]()
        await run_two_batches(world)
        for row in list(await world.rows.scan()):
            del world.rows._rows[row["leaseKey"]["S"]]
        with pytest.raises(OffsetMismatchError):
            await member_of(world, events).start(world.log.committed)
        assert (list(await world.rows.scan()), events) == ([], [])

    run_in_virtual_time(scenario())


def test_sessions_of_an_earlier_run_end_before_the_member_joins() -> None:
    """Otherwise a task of the earlier run could still pin a batch while the member begins the lease."""

    async def scenario() -> None:
        world, events = QueryWorld(), list[Event]()
        await run_two_batches(world)
        old = {lease_from_row(row).session for row in await world.rows.scan()}
        sessions_at_join: list[set[object]] = []

        async def record_sessions() -> set[object]:
            return {lease_from_row(row).session for row in await world.rows.scan()}

        member = member_of(world, events)
        original = member._member.run

        async def run(stop: object) -> None:
            sessions_at_join.append(await record_sessions())
            await original(stop)  # type: ignore[arg-type]

        member._member.run = run  # type: ignore[method-assign]
        await member.start(world.log.committed)
        await world.clock.sleep_ms(5_000)
        assert any(isinstance(event, MemberStarted) for event in events)
        assert old - {None}
        assert sessions_at_join == [{None}]
        await member.stop()

    run_in_virtual_time(scenario())


def test_a_lease_that_an_earlier_run_was_handing_over_is_released_too() -> None:
    """Another member requested it before the run was killed. Until the release, tasks of that run can pin."""

    async def scenario() -> None:
        world = QueryWorld()
        await run_two_batches(world)
        requested = (await world.table.list()).leases[0]
        other = WorkerId("other")
        assert isinstance(await world.table.request_handoff(requested, other), Lease)
        await QueryRun(world).planner.prepare(world.log.offsets[-1])
        released = await world.table.get(requested.key)
        assert released is not None
        assert (released.owner, released.checkpoint_owner, released.session) == (other, None, None)

    run_in_virtual_time(scenario())


def test_a_plan_waits_for_records_instead_of_being_asked_again() -> None:
    """Spark repeats a call without result after 12 ms. A plan waits, and ends early when a poll finds records."""

    async def scenario() -> None:
        world = QueryWorld()
        await run_two_batches(world)
        member = member_of(world, [])
        await member.start(world.log.committed)
        limits = world.limits
        assert await member.plan(world.log.committed, limits, wait_for_all=False) is None
        began_ms = world.clock.now_ms()
        assert await member.plan(world.log.committed, limits, wait_for_all=False) is None
        assert world.clock.now_ms() - began_ms == IDLE_WAIT_MS
        world.put(1)
        await world.clock.sleep_ms(30)  # not in step with the polls
        calls, waits = 0, list[int]()
        planned = None
        while planned is None:
            began_ms, calls = world.clock.now_ms(), calls + 1
            planned = await member.plan(world.log.committed, limits, wait_for_all=False)
            waits.append(world.clock.now_ms() - began_ms)
        assert calls <= 1_250 // IDLE_WAIT_MS + 1
        assert waits[-1] < IDLE_WAIT_MS
        await member.stop()

    run_in_virtual_time(scenario())


def test_a_shard_with_recent_records_is_polled_more_often_than_a_quiet_one() -> None:
    """A record that follows soon after another waits for a quarter of a second at most, not for the poll interval."""

    async def scenario() -> None:
        world = QueryWorld(shards=1)
        run = QueryRun(world)
        await run.start()
        world.put(1)
        await world.drain(run, lambda: not world.missing())
        delays_ms = []
        for _ in range(8):
            for _ in range(19):  # Spark asks for plans all the time
                assert not await world.run_batch(run)
                await world.clock.sleep_ms(100)
            world.put(1)
            put_ms = world.clock.now_ms()
            while not await world.run_batch(run):
                await world.clock.sleep_ms(10)
            delays_ms.append(world.clock.now_ms() - put_ms)
        assert max(delays_ms) <= 360
        await run.stop()

    run_in_virtual_time(scenario())


def test_a_repeated_batch_is_load_too() -> None:
    """Otherwise a leader would give more leases to a query that repeats a long batch after its start."""

    async def scenario() -> None:
        world = QueryWorld()
        await run_two_batches(world)
        load = BatchLoad(world.clock, NoBatchEnds())
        member = member_of(world, [], load)
        await member.start(world.log.committed)
        assert await member.replay(world.log.offsets[-1])
        await load.percent()
        await world.clock.sleep_ms(20_000)
        assert await load.percent() == 100
        await member.stop()

    run_in_virtual_time(scenario())


def test_a_member_that_has_failed_is_not_waited_for() -> None:
    """It refuses to be a peer in a fleet with a leader. Its error comes with the first plan."""

    async def scenario() -> None:
        world = QueryWorld()
        migration = {"leaseKey": {"S": "Migration3.0"}, "cv": {"S": "CLIENT_VERSION_3X"}}
        await world.rows.write(PutRow("Migration3.0", migration))
        member = member_of(world, [])
        await member.start(world.log.committed)
        began_ms = world.clock.now_ms()
        with pytest.raises(ConfigError, match="billing"):
            await member.plan(world.log.committed, world.limits, wait_for_all=True)
        assert world.clock.now_ms() - began_ms < 1_000

    run_in_virtual_time(scenario())
