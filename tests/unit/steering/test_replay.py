"""A replay of a period on virtual time: exactly its records, in order, and nothing of it stays."""

import asyncio
import random
from collections.abc import Callable

import pytest

from leasehold import Batch, Consumer, HandlerError
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.cli.replay import parse_period, require_retained
from leasehold.core.model import InitialPosition, WorkerId
from leasehold.core.position import AT_TIMESTAMP, TRIM_HORIZON
from leasehold.errors import ConfigError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.steering.replay import ReplayProgress, ReplayRange, replay_settings, run_replay
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.user_code.handler_runners import InlineRunners
from tests.kpl_encoder import add_frame, partition_key, user_record
from tests.unit.worker.worker_world import ORDERS, WorkerWorld, texts


async def replay(
    world: WorkerWorld,
    period: ReplayRange,
    handle: Callable[[Batch], object],
    stop: asyncio.Event | None = None,
) -> ReplayProgress:
    """Replay the period to a handler."""
    consumer = Consumer(stream=ORDERS, application="billing", on_poison="stop_worker", retries=0)
    consumer.batch(max_records=3, max_wait="50ms")(handle)
    ports = WorkerPorts(
        worker=WorkerId("replay"),
        table=LeaseTable(MemoryRows()),
        streams={ORDERS: MemoryStream(world.service, ORDERS, world.clock)},
        dead_letters=None,
        clock=world.clock,
        rng=random.Random(1),
        observe=lambda _: None,
    )
    settings = replay_settings(consumer.settings, "billing-replay-1", period)
    return await run_replay(consumer, settings, period, ports, InlineRunners(), stop=stop or asyncio.Event())


def test_exactly_the_records_of_the_period_are_delivered() -> None:
    """Across a split, with an aggregate at the end, while more records arrive."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("before")
        await world.clock.sleep_ms(1_000)
        start_ms = world.clock.wall_ms()
        world.put("p0", "p1")
        await world.clock.sleep_ms(1_000)
        world.split()
        world.shards = 2
        world.put("l0", "l1", shard=0)
        world.put(add_frame(partition_key(b"k") + user_record(0, None, b"r0") * 2), shard=1)
        await world.clock.sleep_ms(1_000)
        end_ms = world.clock.wall_ms()
        world.put("after", shard=0)
        await world.clock.sleep_ms(1_000)
        handled: list[str] = []

        async def handle(batch: Batch) -> None:
            handled.extend(texts(batch))
            world.put("arrives", shard=1)

        period = ReplayRange(InitialPosition(AT_TIMESTAMP, start_ms), end_ms)
        progress = await replay(world, period, handle)
        assert handled[:2] == ["p0", "p1"]
        assert sorted(handled[2:]) == ["l0", "l1", "r0", "r0"]
        assert (progress.records, progress.shards_done) == (6, 3)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("handling_ms", [0, 3_000])
def test_descendants_of_closed_shards_are_replayed(handling_ms: int) -> None:
    """The last page of a closed shard looks like the tip of an open one, long after the period too."""

    async def scenario() -> None:
        world = WorkerWorld()
        expected = []
        for generation in range(4):
            world.shards = 2**generation
            for number in range(world.shards):
                world.put(f"{generation}-{number}", shard=number)
                expected.append(f"{generation}-{number}")
            await world.clock.sleep_ms(1_000)
            if generation < 3:
                stream = MemoryStream(world.service, ORDERS, world.clock)
                for shard in [each for each in await stream.list_shards() if each.is_open]:
                    middle = (shard.hash_range.start + shard.hash_range.end + 1) // 2
                    world.service.split_shard(world.clock.wall_ms(), ORDERS, shard.id, middle)
        await world.clock.sleep_ms(60_000)
        handled: list[str] = []

        async def handle(batch: Batch) -> None:
            await world.clock.sleep_ms(handling_ms)
            handled.extend(texts(batch))

        end_ms = world.clock.wall_ms() - 30_000
        progress = await replay(world, ReplayRange(InitialPosition(TRIM_HORIZON), end_ms), handle)
        assert sorted(handled) == sorted(expected)
        assert (progress.shards, progress.shards_done) == (15, 15)

    run_in_virtual_time(scenario())


def test_an_empty_period_ends_at_once_and_a_failing_handler_ends_it() -> None:
    """Shards without records in the period are done when their tips have settled."""

    async def scenario() -> None:
        world = WorkerWorld(shards=2)
        await world.clock.sleep_ms(1_000)
        period = ReplayRange(InitialPosition(TRIM_HORIZON), world.clock.wall_ms())

        async def fail(batch: Batch) -> None:
            raise ValueError(batch.shard)

        assert (await replay(world, period, fail)).records == 0
        world.put("poison")
        await world.clock.sleep_ms(1_000)
        with pytest.raises(HandlerError):
            await replay(world, ReplayRange(InitialPosition(TRIM_HORIZON), world.clock.wall_ms()), fail)

    run_in_virtual_time(scenario())


def test_a_stop_ends_a_replay_before_its_end() -> None:
    """Ctrl-C finishes the batch in flight."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*range(9))
        await world.clock.sleep_ms(10_000)
        stop = asyncio.Event()

        async def handle(_: Batch) -> None:
            stop.set()
            await world.clock.sleep_ms(1_000)

        period = ReplayRange(InitialPosition(TRIM_HORIZON), world.clock.wall_ms())
        progress = await replay(world, period, handle, stop)
        assert 3 <= progress.records < 9

    run_in_virtual_time(scenario())


def test_periods() -> None:
    """An empty period, and one that ends in the future, are refused."""
    now_ms = 1_794_744_000_000  # 2026-11-15T12:00:00Z
    assert parse_period("trim-horizon", "latest", now_ms) == ReplayRange(
        InitialPosition(TRIM_HORIZON), now_ms
    )
    period = parse_period("2026-11-15T10:00:00Z", "2026-11-15T11:00:00Z", now_ms)
    assert period.end_ms - (period.start.timestamp_ms or 0) == 3_600_000
    for start, end, message in (
        ("latest", "latest", "expected trim-horizon"),
        ("trim-horizon", "4959", "expected latest"),
        ("trim-horizon", "2026-11-15T13:00:00Z", "in the future"),
        ("2026-11-15T11:00:00Z", "2026-11-15T11:00:00Z", "is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_period(start, end, now_ms)


def test_a_period_before_the_retention_is_refused() -> None:
    """Otherwise a replay of nothing would look like one that has succeeded."""

    async def scenario() -> None:
        world = WorkerWorld(shards=1)
        stream, now_ms = MemoryStream(world.service, ORDERS, world.clock), world.clock.wall_ms()
        oldest_ms = now_ms - await stream.get_retention_ms()
        oldest = InitialPosition(TRIM_HORIZON)
        require_retained(ReplayRange(oldest, oldest_ms + 1), oldest_ms)
        too_old = InitialPosition(AT_TIMESTAMP, oldest_ms - 1)
        for period, option in (
            (ReplayRange(oldest, oldest_ms), "--to"),
            (ReplayRange(too_old, oldest_ms), "--to"),
            (ReplayRange(too_old, now_ms), "--from"),
        ):
            with pytest.raises(ConfigError, match=f"{option} .* retains records since"):
                require_retained(period, oldest_ms)

    run_in_virtual_time(scenario())
