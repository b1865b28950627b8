"""No task outlives a worker, at whatever moment it is stopped or cancelled."""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.worker.worker_world import RecordingHandler, RunningWorker, WorkerWorld

MOMENTS_MS = range(0, 9_000, 210)
LONGEST_CALL_MS = 400
TASKS: ContextVar[list[asyncio.Task[Any]] | None] = ContextVar("tasks", default=None)


class SlowRows(FaultyRows):
    """Rows of which every call takes some time, and one of six fails."""

    def __init__(self, rows: MemoryRows, seed: int) -> None:
        self._rng = random.Random(seed)
        super().__init__(rows, self._choose_fault)

    async def get(self, key: str) -> Row | None:
        await self._wait()
        return await super().get(key)

    async def write(self, write: RowWrite) -> Applied | Refused:
        await self._wait()
        return await super().write(write)

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        await self._wait()
        return await super().scan(segments=segments, is_consistent=is_consistent)

    def _choose_fault(self, _operation: str, _key: str) -> StoreFault | None:
        return StoreFault.REQUEST_LOST if self._rng.random() < 1 / 6 else None

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.randrange(LONGEST_CALL_MS) / 1000)


def count_tasks(loop: asyncio.AbstractEventLoop, coro: Any, **arguments: Any) -> asyncio.Task[Any]:
    """A task factory that adds each task to the list of the context that creates it."""
    task = asyncio.Task(coro, loop=loop, **arguments)
    if (tasks := TASKS.get()) is not None:
        tasks.append(task)
    return task


async def tasks_left(moment_ms: int, mode: str, end: Callable[[RunningWorker], object]) -> list[str]:
    """The tasks that are unfinished when a worker has ended. Another worker was there first."""
    asyncio.get_running_loop().set_task_factory(count_tasks)
    world = WorkerWorld(shards=8)
    first = world.start(RecordingHandler(), mode=mode)
    await world.clock.sleep_ms(1_500)
    world.table = LeaseTable(SlowRows(world.rows, moment_ms))
    tasks: list[asyncio.Task[Any]] = []
    context = copy_context()
    context.run(TASKS.set, tasks)
    worker = context.run(lambda: world.start(RecordingHandler(), mode=mode, grace="2s", max_leases=1))
    await world.clock.sleep_ms(moment_ms // 2)
    first.stop.set()
    await world.clock.sleep_ms(moment_ms // 2)
    end(worker)
    await asyncio.wait([worker.task])
    left = [str(task.get_coro()) for task in tasks if not task.done()]
    await asyncio.wait([first.task])
    return left


@pytest.mark.parametrize("mode", ["peer", "leader"])
@pytest.mark.parametrize("way", ["cancel", "stop"])
def test_no_task_outlives_a_worker(mode: str, way: str) -> None:
    """Stops and cancellations at many moments, while calls are in flight and some of them fail."""

    def end(worker: RunningWorker) -> None:
        worker.task.cancel() if way == "cancel" else worker.stop.set()

    for moment_ms in MOMENTS_MS:
        assert not run_in_virtual_time(tasks_left(moment_ms, mode, end)), moment_ms
