"""Produces records to every stream of a run while faults are injected."""

from __future__ import annotations

import asyncio
from typing import Final

from leasehold.simulation.environment.producer import Producer
from leasehold.simulation.environment.streams import STREAM
from leasehold.simulation.starts import OLD_RECORDS_AGE_MS, Start, has_read_every_shard
from leasehold.simulation.world import World

_LOOK_EVERY_MS: Final = 500
_OLD_ROUNDS: Final = 5


class Producing:
    """One producer for each stream, also for streams that appear later."""

    def __init__(self, world: World, start: Start) -> None:
        self._world = world
        self._start = start
        self._streams = world.services.streams
        self._producers = {name: self._make_producer(name) for name in self._streams.names}
        self._tasks: list[asyncio.Task[None]] = []

    async def produce_old_records(self) -> None:
        """Produce records that are older than the fleet, unless it begins at the oldest record."""
        if self._start is Start.OLDEST:
            return
        for _ in range(_OLD_ROUNDS):
            for producer in self._producers.values():
                producer.produce(self._world.clock.wall_ms())
        for shard_ledger in self._world.ledger.shards.values():
            shard_ledger.start_here()
        await self._world.clock.sleep_ms(OLD_RECORDS_AGE_MS)

    def begin(self) -> None:
        """Begin to produce to every stream."""
        for name in self._streams.names:
            self._begin_stream(name)
        self._streams.on_created = self._begin_stream

    def stop(self) -> None:
        """Produce nothing more."""
        self._streams.on_created = lambda _: None
        for task in self._tasks:
            task.cancel()

    def _begin_stream(self, name: str) -> None:
        self._tasks.append(asyncio.ensure_future(self._produce(name)))

    async def _produce(self, name: str) -> None:
        world, streams = self._world, self._streams
        producer = self._producers.get(name) or self._make_producer(name)
        # Several streams have about as many records as one: the handlers would not keep up with more.
        every_ms = world.spec.mix.workload.every_ms * (1 + len(world.spec.streams.more_shards))
        has_begun = self._start is not Start.LATEST
        while name in streams.names and name not in streams.abandoned:
            has_begun = has_begun or has_read_every_shard(world, name)
            if has_begun:
                producer.produce(world.clock.wall_ms())
            await world.clock.sleep_ms(every_ms if has_begun else _LOOK_EVERY_MS)

    def _make_producer(self, name: str) -> Producer:
        spec = self._world.spec
        # The purpose is part of what a seed means: another text would change every run.
        purpose = "producer" if name == STREAM else f"producer:{name}"
        return Producer(
            self._streams,
            name,
            self._world.ledger,
            spec.mix.workload,
            spec.rng_for(purpose),
            keys_rng=spec.rng_for(f"{purpose}:keys"),
        )
