"""The reader process of a query: the shipped `QueryRun` in a simulated process, a member of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.environment.process import Role, SimulatedProcess
from leasehold.simulation.spark.consumer import open_simulated_consumers
from leasehold.simulation.spark.process_calls import ProcessDiedError, call_in
from leasehold.simulation.world import World
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchEnds, BatchLoad
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.query_member import QueryPorts
from leasehold.spark.query.query_run import QueryRun
from leasehold.tasks import cancel_and_wait

T = TypeVar("T")

_STOP_WAIT_MS: Final = 20_000  # the shipped driver waits as long


@dataclass(slots=True)
class RecordedBatchEnds(BatchEnds):
    """The end of the last batch, if a pipeline records it."""

    committed: GenerationId | None = None
    ended_ms: int | None = None

    def last_committed(self) -> GenerationId | None:
        """Return the last generation that was recorded as committed."""
        return self.committed

    def last_end_ms(self) -> int | None:
        """Return when the last recorded batch ended."""
        return self.ended_ms


@dataclass(slots=True)
class Reader:
    """Spark's reader process, as the driver calls it."""

    world: World
    options: SourceOptions
    is_available_now: bool = False
    ends: RecordedBatchEnds = field(default_factory=RecordedBatchEnds)
    process: SimulatedProcess = field(init=False)
    _run: QueryRun = field(init=False)
    _calls: set[asyncio.Task[Any]] = field(default_factory=set)

    def start(self) -> None:
        """Start the process."""
        self.process = self.world.start_process(self._main, worker="", role=Role.READER)
        self._run = self._open(self.process)

    def plan(
        self, start: Mapping[str, Any], limits: BatchLimits, *, wait_for_all: bool
    ) -> asyncio.Future[Mapping[str, Any]]:
        """Call `latestOffset`."""
        return self._call(lambda: self._run.plan(start, limits, wait_for_all=wait_for_all))

    def slices(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> asyncio.Future[list[list[SlicePlan]]]:
        """Call `partitions`."""
        return self._call(lambda: self._run.slices(start, end))

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        return call_in(self.process, lambda: self._tracked(work), self.world.context)

    async def _tracked(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self.process.is_stopping:
            raise ProcessDiedError(f"{self.process.name} is stopping")
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work()
        finally:
            self._calls.discard(task)

    def _open(self, process: SimulatedProcess) -> QueryRun:
        world = self.world
        rng = world.spec.rng_for(f"{process.name}:reader")
        ports = QueryPorts(
            streams={name: world.services.stream_for(process, world, name) for name in self.options.names},
            table=LeaseTable(world.services.rows_for(process)),
            clock=process.clock,
            rng=rng,
            observe=lambda event: world.observe(process, event),
            load=BatchLoad(process.clock, self.ends),
            consumers=tuple(open_simulated_consumers(world, process, self.options.names).values()),
        )
        run = QueryRun(self.options, ports, lambda: f"{rng.getrandbits(64):016x}")
        run.is_available_now = self.is_available_now
        return run

    async def _main(self, _world: World, process: SimulatedProcess) -> None:
        """Wait for SIGTERM, or for the end of the connection to the driver. Then stop as the shipped driver does."""
        await process.stop.wait()
        stopping = asyncio.ensure_future(self._run.stop())
        await asyncio.wait({stopping}, timeout=_STOP_WAIT_MS / 1000)
        await cancel_and_wait(stopping, *self._calls)
