"""Every produced user record is delivered once and in order, whatever producers, service and consumers do."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.config.settings import FanOutSettings, ReadSettings, Retrieval
from leasehold.core.events import GapFound
from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.core.position import LATEST, TRIM_HORIZON, Position
from leasehold.errors import (
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import SHARD, SIX_MINUTES_MS, ReadWorld, numbers_of

LEFT, RIGHT = ShardId("shardId-000000000001"), ShardId("shardId-000000000002")
TROUBLES = (ThrottledError, UnavailableError, IteratorExpiredError, ServiceError, NotFoundError)


@dataclass(frozen=True)
class Put:
    """One step of a producer: a record or an aggregate, then a pause."""

    user_records: int
    is_aggregate: bool
    size: int
    to_upper_half: bool
    pause_ms: int


@dataclass(frozen=True)
class Habits:
    """The probability of each failure, and of each behaviour of the consumer."""

    failure: float
    short_page: float
    slow: float
    restart: float
    buffer_bytes: int
    ends_with_last_records: bool


puts = st.lists(
    st.builds(
        Put,
        user_records=st.integers(1, 40),
        is_aggregate=st.booleans(),
        size=st.sampled_from([0, 0, 100, 30_000]),
        to_upper_half=st.booleans(),
        pause_ms=st.sampled_from([0, 0, 0, 100, 5_000, SIX_MINUTES_MS]),
    ),
    max_size=15,
)
chance = st.sampled_from([0.0, 0.0, 0.1, 0.5])
habits = st.builds(
    Habits,
    failure=chance,
    short_page=chance,
    slow=chance,
    restart=chance,
    buffer_bytes=st.sampled_from([1_048_576, 64 * 1024 * 1024]),
    ends_with_last_records=st.booleans(),
)


class Producer:
    """Puts records, and records which shard got which."""

    def __init__(self, world: ReadWorld) -> None:
        self._world = world
        self._count = 0
        self._is_split = False
        self.produced: dict[ShardId, list[int]] = defaultdict(list)

    async def run(self, before: list[Put], after: list[Put]) -> None:
        """Some before the shard is split, some after."""
        for put in before:
            await self.put(put)
        self._world.split()
        self._is_split = True
        for put in after:
            await self.put(put)
        for shard in (LEFT, RIGHT):  # so that reading them has an end, too
            middle = HASH_KEY_MAX // 4 if shard == LEFT else HASH_KEY_MAX // 4 * 3
            self._world.service.split_shard(self._world.clock.wall_ms(), "orders", shard, middle)

    async def put(self, put: Put) -> None:
        hash_key = HASH_KEY_MAX if put.to_upper_half else 0
        shard = SHARD if not self._is_split else RIGHT if put.to_upper_half else LEFT
        if put.is_aggregate:
            self._world.put_aggregate(put.user_records, hash_key=hash_key)
        else:
            self._world.put(put.user_records, size=put.size, hash_key=hash_key)
        self.produced[shard] += range(self._count, self._count + put.user_records)
        self._count += put.user_records
        await self._world.clock.sleep_ms(put.pause_ms)


async def consume(
    world: ReadWorld, shard: ShardId, start: Position, habits: Habits, rng: random.Random
) -> list[int]:
    """Read a shard to its end with a consumer that stops in between and continues at its position."""
    done: list[int] = []
    while True:
        async with world.read(start, shard=shard, rng=rng) as chunks:
            async for found in chunks:
                world.budget.release(found.size_bytes)
                if rng.random() < habits.slow:
                    await world.clock.sleep_ms(rng.choice([100, 2_000, SIX_MINUTES_MS]))
                if found.records and rng.random() < habits.restart:
                    kept = rng.randrange(len(found.records) + 1)
                    done += numbers_of(found.records[:kept])
                    start = found.records[kept - 1].position if kept else start
                    break
                done += numbers_of(found.records)
                start = found.read_through or start
                if found.children is not None:
                    return done


def failures(chance: float, rng: random.Random) -> Callable[[str], Exception | None]:
    def failure_for(operation: str) -> Exception | None:
        if operation in {"list_shards", "describe", "register"} or rng.random() >= chance:
            return None
        return rng.choice(TROUBLES)("on purpose")

    return failure_for


@pytest.mark.parametrize("retrieval", [Retrieval.POLLING, Retrieval.FAN_OUT])
@settings(max_examples=60)
@given(before=puts, after=puts, habits=habits, seed=st.integers(0, 2**32))
def test_every_produced_record_is_delivered(
    before: list[Put], after: list[Put], habits: Habits, seed: int, retrieval: Retrieval
) -> None:
    """Plain and aggregated records, a reshard, pages of any size, refusals, failures, expired iterators, slow
    consumers, and restarts anywhere, also inside an aggregate.
    """

    async def main() -> None:
        rng = random.Random(seed)
        world = ReadWorld(
            service_settings=ServiceSettings(shard_end_with_last_records=habits.ends_with_last_records),
            settings=ReadSettings(buffer_bytes=habits.buffer_bytes),
            fan_out_settings=FanOutSettings(retrieval=retrieval),
        )
        world.stream.failure_for = world.fan_out.failure_for = failures(habits.failure, rng)
        world.stream.limit_for = lambda limit: (
            rng.randint(1, limit) if rng.random() < habits.short_page else limit
        )
        producer = Producer(world)
        producing = asyncio.create_task(producer.run(before, after))
        delivered = {SHARD: await consume(world, SHARD, TRIM_HORIZON, habits, rng)}
        delivered[LEFT], delivered[RIGHT] = await asyncio.gather(
            consume(world, LEFT, TRIM_HORIZON, habits, rng), consume(world, RIGHT, TRIM_HORIZON, habits, rng)
        )
        await producing
        assert delivered == {shard: producer.produced[shard] for shard in (SHARD, LEFT, RIGHT)}
        assert not world.events_of(GapFound)
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


@pytest.mark.parametrize("retrieval", [Retrieval.POLLING, Retrieval.FAN_OUT])
@settings(max_examples=30)
@given(after=puts, habits=habits, seed=st.integers(0, 2**32))
def test_from_latest_nothing_is_lost_after_the_first_call(
    after: list[Put], habits: Habits, seed: int, retrieval: Retrieval
) -> None:
    """After the first call of a reader at LATEST, every new record is delivered, whatever fails."""

    async def main() -> None:
        rng = random.Random(seed)
        world = ReadWorld(
            settings=ReadSettings(buffer_bytes=habits.buffer_bytes),
            fan_out_settings=FanOutSettings(retrieval=retrieval),
        )
        world.put(5)
        await world.clock.sleep_ms(SIX_MINUTES_MS)
        producer = Producer(world)
        seen: list[int] = []
        async with world.read(LATEST, rng=rng) as chunks:
            await world.next_chunk(chunks)
            world.stream.failure_for = world.fan_out.failure_for = failures(habits.failure, rng)
            await world.clock.sleep_ms(rng.choice([0, SIX_MINUTES_MS]))
            for put in after:
                await producer.put(put)
            wanted = [name + 5 for name in producer.produced[SHARD]]
            while len(seen) < len(wanted):
                seen += numbers_of((await world.next_chunk(chunks)).records)
            for _ in range(2):
                seen += numbers_of((await world.next_chunk(chunks)).records)
        assert seen == wanted

    run_in_virtual_time(main())
