"""An executor's Python process: runs attempts at tasks. It keeps its archive from task to task, as Spark's does.

An attempt runs the shipped code: it fetches and pins the slices of the task in order, turns them into rows, and
writes them to the archive. Without an archive it returns the rows, and the driver commits them by batch id.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from leasehold.archive.routing import RangeWriter, open_writer
from leasehold.core.events import Event, GapFound
from leasehold.core.model import LeaseKey
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.archiving_worker import open_simulated_archive
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.query_history import DeliveredSlice
from leasehold.simulation.spark.consumer import open_simulated_consumers
from leasehold.simulation.world import World
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import PinnedSlice, ReaderPorts, SlicePlan, fetch_and_pin
from leasehold.spark.query.task_reader import FetchWindow, to_batches
from leasehold.spark.range_assembly import assemble_ranges


class FlakyTaskError(Exception):
    """Raised by user code that fails at random."""


async def executor_main(_world: World, process: SimulatedProcess) -> None:
    """Wait until the executor is stopped. Its tasks are calls of the driver, and end with it."""
    await process.stop.wait()
    process.kill()


@dataclass(frozen=True, slots=True)
class Executor:
    """One executor of one run of a query."""

    world: World
    process: SimulatedProcess
    options: SourceOptions
    rng: random.Random
    archive: RangeWriter | None
    consumers: Mapping[str, StreamConsumer]

    @classmethod
    def of(cls, world: World, process: SimulatedProcess, options: SourceOptions) -> Executor:
        """Return the executor that runs in a process."""
        archive = None
        if world.is_archived:
            first = open_simulated_archive(world, process)
            archive = open_writer(first.settings, first.beside)
        if options.fail_on_data_loss:
            world.query.fail_on_data_loss.add(process)
        rng = world.spec.rng_for(f"{process.name}:executor")
        consumers = open_simulated_consumers(world, process, options.names)
        return cls(world, process, options, rng, archive, consumers)

    async def run_attempt(self, plans: Sequence[SlicePlan]) -> tuple[DeliveredSlice, ...]:
        """Run one attempt at a task. Returns what it delivered."""
        gaps: set[LeaseKey] = set()
        ports = {name: self._ports(name, gaps) for name in self.options.names}
        window = FetchWindow(plans, lambda plan: _fetch(plan, ports[plan.stream]))
        delivered: list[DeliveredSlice] = []
        together: list[Any] | None = [] if self.rng.random() < 0.5 else None
        fetching = None
        try:
            while (fetching := window.next()) is not None:
                pinned = await fetching
                if pinned is not None:
                    delivered.append(await self._deliver(pinned, gaps, together, slices=len(plans)))
            if together and self.archive is not None:
                await self.archive.write(assemble_ranges(together))
        finally:
            window.cancel()
            if fetching is not None:
                fetching.cancel()
        return tuple(delivered)

    async def _deliver(
        self, pinned: PinnedSlice, gaps: AbstractSet[LeaseKey], together: list[Any] | None, *, slices: int
    ) -> DeliveredSlice:
        """Pass the rows of a slice to the sink, or collect them so that all rows are written at the end."""
        generation_id, shard = pinned.plan.generation_id, pinned.plan.lease.key
        keys = tuple((int(each.sequence_number), each.sub_sequence_number) for each in pinned.records)
        delivered = DeliveredSlice(
            self.process,
            generation_id,
            shard,
            keys,
            pinned.plan.start.position,
            pinned.end,
            continues_poll=pinned.plan.iterator is not None,
            has_gap=shard in gaps,
        )
        self.world.slice_delivered(delivered)
        await self._work(slices)
        rows = list(to_batches(pinned, self.options))
        if together is not None:
            together.extend(rows)
        elif self.archive is not None:
            await self.archive.write(assemble_ranges(rows))
        return delivered

    async def _work(self, slices: int) -> None:
        """Run user code on one of the slices: it takes time, and may fail. An attempt at many slices does not fail
        more often than one at a single slice; otherwise a query with many shards would hardly ever commit a batch.
        """
        mix = self.world.spec.mix
        slow = self.rng.random() < mix.slow_handler_share
        await self.process.clock.sleep_ms(
            self.rng.randint(1_000, 30_000) if slow else self.rng.randint(1, 50)
        )
        if self.rng.random() < mix.failing_share / slices:
            raise FlakyTaskError

    def _ports(self, stream: str, gaps: set[LeaseKey]) -> ReaderPorts:
        """Return the ports of one attempt for a stream. It adds the shards in which it finds gaps."""
        world, process, options = self.world, self.process, self.options

        def observe(event: Event) -> None:
            if isinstance(event, GapFound):
                gaps.add(event.shard_key)
            world.observe(process, event)

        return ReaderPorts(
            stream=world.services.stream_for(process, world, stream),
            table=LeaseTable(world.services.rows_for(process)),
            clock=process.clock,
            rng=self.rng,
            observe=observe,
            budget=ByteBudget(options.read.buffer_bytes),
            read=options.read,
            deaggregation=options.deaggregation,
            fail_on_data_loss=options.fail_on_data_loss,
            consumer=self.consumers.get(stream),
        )


def _fetch(plan: SlicePlan, ports: ReaderPorts) -> asyncio.Future[PinnedSlice | None]:
    task = asyncio.ensure_future(fetch_and_pin(plan, ports))
    # If an earlier slice fails, nobody waits for this one.
    task.add_done_callback(lambda each: each.cancelled() or each.exception())
    return task
