"""A stream that is deleted and created again under the same name: the worker says so, or starts over, as configured."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.config.settings import FleetSettings, OnRecreatedStream
from leasehold.core.events import LeaseRestarted, StreamRecreated
from leasehold.core.leases.row_writes import DeleteRow
from leasehold.core.model import InitialPosition, StreamIdentifier, WorkerId, lease_key
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.position import LATEST, TRIM_HORIZON
from leasehold.errors import RecreatedStreamError
from leasehold.fleet.maintenance.stream_identity import StreamIdentity
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import TrackedStream
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.worker.multi_stream_world import RETURNS, MultiStreamWorld, run_scenario
from tests.unit.worker.worker_world import (
    ORDERS,
    SHARD,
    RecordingHandler,
    RunningWorker,
    WorkerWorld,
    pause_process,
)

HOUR_S = 3_600
MODES = pytest.mark.parametrize("mode", ["peer", "auto"])


def play(scenario: Callable[[WorkerWorld], Awaitable[None]], *, shards: int = 1) -> None:
    async def run() -> None:
        await scenario(WorkerWorld(shards))

    run_in_virtual_time(run())


async def recreate(world: WorkerWorld, *, shards: int = 1, after_ms: int = 5_000) -> None:
    """Delete the stream, and create it again some time later."""
    world.service.delete_stream(world.clock.wall_ms(), ORDERS)
    await world.clock.sleep_ms(after_ms)
    world.shards = shards
    world.service.create_stream(world.clock.wall_ms(), ORDERS, shard_count=shards)
    await world.clock.sleep_ms(1_000)


async def read_and_stop(world: WorkerWorld, **options: str) -> None:
    """Read the first stream, so that its leases have checkpoints."""
    handler = RecordingHandler()
    for shard in range(world.shards):
        world.put(f"old {shard}", shard=shard)
    worker = world.start(handler, **options)
    await world.until(lambda: len(handler.handled) == world.shards)
    await worker.stop_and_wait()


async def error_of(worker: RunningWorker) -> RecreatedStreamError:
    await asyncio.wait({worker.task})
    error = worker.task.exception()
    assert isinstance(error, RecreatedStreamError)
    return error


@MODES
def test_a_worker_stops_with_an_error_that_names_the_stream_and_the_remedy(mode: str) -> None:
    """By default. Nothing in the lease table is changed."""

    async def scenario(world: WorkerWorld) -> None:
        await read_and_stop(world, mode=mode)
        await recreate(world)
        before = (await world.lease()).checkpoint
        world.put("new")
        handler = RecordingHandler()
        worker = world.start(handler, mode=mode)
        message = str(await error_of(worker))
        assert "stream orders was deleted and created again at 20" in message
        assert f"position {before.sequence_number} of {SHARD} lies before the start of this shard" in message
        assert "on_recreated_stream='start_over'" in message
        assert (await world.lease()).checkpoint == before
        assert (await world.lease()).owner is None
        (event,) = worker.events_of(StreamRecreated)
        health = Health(HealthLimits(failover_ms=10_000, stuck_after_ms=60_000), 0)
        health.observe(event, 0)
        assert health_to_json(health.report(0))["problems"] == [message]

    play(scenario)


@MODES
@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize("initial", ["trim_horizon", "latest"])
def test_with_start_over_the_new_stream_is_read_from_its_oldest_record(
    mode: str, shards: int, initial: str
) -> None:
    """Whatever the initial position, and whether the new stream has fewer or more shards."""

    async def scenario(world: WorkerWorld) -> None:
        await read_and_stop(world, mode=mode)
        await recreate(world, shards=shards)
        expected = {f"new {number} {shard}" for number in range(5) for shard in range(shards)}
        for number in range(5):
            for shard in range(shards):
                world.put(f"new {number} {shard}", shard=shard)
        await world.clock.sleep_ms(60_000)
        handler = RecordingHandler()
        worker = world.start(handler, mode=mode, on_recreated_stream="start_over", initial_position=initial)
        await world.until(lambda: set(handler.handled) == expected, within_s=900)
        world.put("later", shard=shards - 1)
        await world.until(lambda: "later" in handler.handled)
        assert len(handler.handled) == len(expected) + 1
        assert worker.events_of(LeaseRestarted)
        assert not any(event.is_fatal for event in worker.events_of(StreamRecreated))
        assert await worker.stop_and_wait() is None
        # The next worker finds nothing strange.
        again = world.start(handler, mode=mode)
        await world.clock.sleep_ms(200_000)
        assert again.events_of(StreamRecreated) == []
        assert await again.stop_and_wait() is None

    play(scenario, shards=2)


@MODES
@pytest.mark.parametrize("pause_ms", [2_000, 60_000])
@pytest.mark.parametrize("reaction", ["fail", "start_over"])
def test_a_running_worker_notices_it(mode: str, pause_ms: int, reaction: str) -> None:
    """If the stream was gone for a while, the worker has written that its shards have ended."""

    async def scenario(world: WorkerWorld) -> None:
        world.put("old 0", "old 1")
        handler = RecordingHandler()
        worker = world.start(handler, mode=mode, on_recreated_stream=reaction)
        await world.until(lambda: len(handler.handled) == 2)
        await world.clock.sleep_ms(10_000)
        await recreate(world, after_ms=pause_ms)
        world.put("new 0", "new 1")
        if reaction == "fail":
            assert "created again" in str(await error_of(worker))
        else:
            await world.until(lambda: handler.handled[2:] == ["new 0", "new 1"], within_s=600)
            assert await worker.stop_and_wait() is None

    play(scenario)


def test_two_workers_start_over_together() -> None:
    """Each record is handled, by either of them."""

    async def scenario(world: WorkerWorld) -> None:
        await read_and_stop(world)
        await recreate(world, shards=4)
        handler = RecordingHandler()
        for shard in range(4):
            world.put(f"new {shard}", shard=shard)
        workers = [world.start(handler, on_recreated_stream="start_over") for _ in range(3)]
        await world.until(lambda: len(set(handler.handled)) == 4, within_s=300)
        await world.clock.sleep_ms(300_000)
        assert sorted(handler.handled) == [f"new {shard}" for shard in range(4)]
        for worker in workers:
            assert await worker.stop_and_wait() is None

    play(scenario, shards=4)


def test_a_live_owner_is_not_overruled() -> None:
    """Its write changes the counter, so the plan from an older read is refused."""

    async def scenario(world: WorkerWorld) -> None:
        await read_and_stop(world)
        await recreate(world)
        seen = await world.lease()
        (shard,) = await MemoryStream(world.service, ORDERS, world.clock).list_shards()
        await world.steal_lease()
        assert not await world.table.restart(seen, shard)
        assert (await world.lease()).owner == WorkerId("other-worker")

    play(scenario)


def test_reshards_and_trimming_are_not_mistaken_for_a_new_stream() -> None:
    """Workers come back after days, to shards that were split and whose records were trimmed."""

    async def scenario(world: WorkerWorld) -> None:
        handler = RecordingHandler()
        world.put("a")
        for name in ("b", "c", "d"):
            worker = world.start(handler)
            await world.until(lambda: bool(handler.handled))
            if name == "b":
                world.split()
            world.put(name)
            await world.until(lambda name=name: handler.handled[-1] == name)  # type: ignore[misc]
            await world.clock.sleep_ms(300_000)  # a few audits
            assert worker.events_of(StreamRecreated) == []
            assert await worker.stop_and_wait() is None
            pause_process(20 * HOUR_S)

    play(scenario)


@pytest.mark.parametrize("pause_ms", [2_000, 60_000])
@pytest.mark.parametrize("reaction", ["fail", "start_over"])
def test_one_of_several_streams_gets_leases_with_other_keys(pause_ms: int, reaction: str) -> None:
    """The member stops, because it reads the stream under its earlier identifier. After a restart it begins with the
    oldest record, although it would begin at the tip of a stream that it has never read.
    """

    async def scenario(world: MultiStreamWorld) -> None:
        options: dict[str, Any] = {"initial_position": "latest", "on_recreated_stream": reaction}
        one = world.start("one", **options)
        await world.until_leases(lambda number: number == 4)
        await world.clock.sleep_ms(10_000)
        world.put(8)
        await world.until(world.all_handled)
        world.service.delete_stream(world.clock.wall_ms(), RETURNS)
        await world.clock.sleep_ms(pause_ms)
        world.service.create_stream(world.clock.wall_ms(), RETURNS, shard_count=2)
        await world.clock.sleep_ms(1_000)
        world.put(8)
        await asyncio.wait({world.tasks[one]})
        error = world.tasks.pop(one).exception()
        assert isinstance(error, RecreatedStreamError)
        assert "stream returns was deleted and created again" in str(error)
        assert "Restart this member" in str(error)
        assert "a Spark query does so with onRecreatedStream=start_over" in str(error)
        world.start("two", **options)
        await world.until(world.all_handled)

    run_scenario(scenario)


@pytest.mark.parametrize("reaction", ["fail", "start_over"])
def test_identifiers_of_the_user_do_not_change_with_the_stream(reaction: str) -> None:
    """So the leases keep their keys, and the setting applies at the next start."""
    fixed = StreamIdentifier("000000000000:orders:1")

    async def scenario(world: WorkerWorld) -> None:
        await read_and_stop(world)
        old = await world.lease()
        key = lease_key(SHARD, fixed)
        await world.rows.write(DeleteRow(key=old.key, when=()))
        assert await world.table.create(replace(old, key=key, stream=fixed, owner=None, session=None))
        await recreate(world)
        (shard,) = await MemoryStream(world.service, ORDERS, world.clock).list_shards()
        identity = StreamIdentity(
            world.table,
            TrackedStream(
                ORDERS, MemoryStream(world.service, ORDERS, world.clock), InitialPosition(LATEST), fixed
            ),
            FleetSettings(on_recreated_stream=OnRecreatedStream(reaction)),
            Operations(world.clock, random.Random(1), lambda _: None),
        )
        with pytest.raises(RecreatedStreamError, match="Restart this member"):
            await identity.check(await world.table.list())
        if reaction == "fail":
            with pytest.raises(RecreatedStreamError, match="on_recreated_stream='start_over'"):
                await identity.check(await world.table.list(), is_start=True)
            return
        await identity.check(await world.table.list(), is_start=True)
        lease = await world.table.get(key)
        assert lease is not None
        assert lease.checkpoint == TRIM_HORIZON
        assert lease.hash_range == shard.hash_range

    play(scenario)
