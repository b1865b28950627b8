"""A phase with unequal loads: after the faults, some shards deliver more than others, and one worker may be slow.

The processor use of a worker follows from the bytes that its handlers get. Only runs whose leader balances by load have
this phase.
"""

from __future__ import annotations

import random
from typing import Final

from leasehold.kinesis_model.writing import PutRequest
from leasehold.ports import LoadMeter
from leasehold.simulation.environment.load import SLOW, LoadPlan
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.streams import STREAM
from leasehold.simulation.world import World

LOAD_MS: Final = 720_000
_PUT_EVERY_MS: Final = 1_000
_BYTES: Final = 2_000  # of a record of a shard with weight 1
_USUAL_PERCENT: Final = (
    35.0  # processor use of a worker with the mean load and the usual speed, in addition to:
)
_IDLE_PERCENT: Final = 2.0  # processor use of a worker without leases


class SimulatedMeter(LoadMeter):
    """The processor use of a worker, from the bytes that its handlers got since the last call."""

    def __init__(self, world: World, process: SimulatedProcess, plan: LoadPlan) -> None:
        self._world = world
        self._process = process
        self._plan = plan
        self._before: tuple[int, int] | None = None  # time and bytes

    async def percent(self) -> float | None:
        """Return the use since the last call."""
        now_ms, now_bytes = self._process.clock.now_ms(), self._process.handled_bytes
        before, self._before = self._before, (now_ms, now_bytes)
        if before is None or now_ms == before[0]:
            return None
        bytes_per_s = (now_bytes - before[1]) * 1_000 / (now_ms - before[0])
        shards = self._world.services.streams.state(STREAM).open_shards
        total = _BYTES * sum(self._plan.weight_of(each.id) for each in shards)
        mean = total / max(1, len(self._world.running_workers))
        return min(100.0, _IDLE_PERCENT + _USUAL_PERCENT * bytes_per_s / mean * self._process.slowness)


async def hold_load(world: World, plan: LoadPlan) -> None:
    """Produce unequal loads for some minutes."""
    rng, until_ms = world.spec.rng_for("loads"), world.now_ms() + LOAD_MS
    if plan.has_slow_worker:
        world.running_workers[0].slowness = SLOW
    while world.now_ms() < until_ms:
        _put_records(world, plan, rng)
        await world.clock.sleep_ms(_PUT_EVERY_MS)


def _put_records(world: World, plan: LoadPlan, rng: random.Random) -> None:
    """Put one record into each open shard, of a size that follows from the weight of the shard."""
    streams = world.services.streams
    for shard in streams.state(STREAM).open_shards:
        data = b"x" * round(_BYTES * plan.weight_of(shard.id) * rng.uniform(0.8, 1.2))
        request = PutRequest("k", data, shard.hash_range.start)
        stored = streams.kinesis.put_record(world.clock.wall_ms(), STREAM, request)
        world.ledger.shard(streams.key_of(STREAM, stored.shard_id)).add((stored.number, 0))
