"""Finished batches release their bytes of the read-ahead budget, whichever way they were finished."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest

from leasehold.adapters.system_clock import SystemClock
from leasehold.core.events import LeaseLost
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.batching.batch_builder import BatchBuilder
from leasehold.worker.batching.batcher import Batcher, BufferedBytes
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine import run_worker as running
from leasehold.worker.processors import ProcessorHandler, ProcessRecordsInput, RecordProcessor
from leasehold.worker.settings import BatchSettings
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from tests.unit.worker.worker_world import WorkerWorld

BUFFER_BYTES = 1024 * 1024
RECORDS = 100  # of 50 kB: five times what the buffer holds

# Takes the list of handled records, and returns the handler and a coroutine that runs beside the worker.
MakeHandler = Callable[[list[str]], tuple[HandlerKind, Awaitable[None]]]


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[ByteBudget]:
    """The budgets of all started workers, in order."""
    made: list[ByteBudget] = []

    class RecordedBudget(ByteBudget):
        def __init__(self, limit_bytes: int) -> None:
            super().__init__(limit_bytes)
            made.append(self)

    monkeypatch.setattr(running, "ByteBudget", RecordedBudget)
    return made


def names(batch: Batch) -> list[str]:
    return [record.data[-3:].decode() for record in batch]


async def checkpoint(batch: Batch) -> None:
    await batch.checkpoint()


async def checkpoint_each_record(batch: Batch) -> None:
    for record in batch:
        await batch.checkpoint(record)


async def prepare_and_commit(batch: Batch) -> None:
    prepared = await batch.prepare()
    await prepared.commit()


async def checkpoint_and_call_done(batch: Batch) -> None:
    await batch.checkpoint()
    await batch.done()


async def nothing() -> None: ...


def batch_handler(finish: Callable[[Batch], Awaitable[None]]) -> MakeHandler:
    def make_handler(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        async def handle(batch: Batch) -> None:
            await finish(batch)
            handled.extend(names(batch))

        return BatchHandler(handle), nothing()

    return make_handler


def processor(*, in_two_phases: bool) -> MakeHandler:
    def make_handler(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        class Save(RecordProcessor):
            async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
                checkpointer = process_records_input.checkpointer
                if in_two_phases:
                    await (await checkpointer.prepare_checkpoint()).commit()
                else:
                    await checkpointer.checkpoint()
                handled.extend(names(process_records_input.batch))

        return ProcessorHandler(Save), nothing()

    return make_handler


def shard_iteration(finish: Callable[[Batch], Awaitable[None]]) -> MakeHandler:
    def make_handler(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        offered: asyncio.Queue[ShardBatches] = asyncio.Queue()

        async def work() -> None:
            async for batch in await offered.get():
                await finish(batch)
                handled.extend(names(batch))

        return ShardIterationHandler(offered.put_nowait), work()

    return make_handler


@pytest.mark.parametrize("mode", ["manual", "automatic"])
@pytest.mark.parametrize(
    "make_handler",
    [
        pytest.param(batch_handler(checkpoint), id="handler"),
        pytest.param(batch_handler(checkpoint_each_record), id="handler-each-record"),
        pytest.param(batch_handler(prepare_and_commit), id="handler-two-phases"),
        pytest.param(processor(in_two_phases=False), id="processor"),
        pytest.param(processor(in_two_phases=True), id="processor-two-phases"),
        pytest.param(shard_iteration(checkpoint), id="shards"),
        pytest.param(shard_iteration(checkpoint_and_call_done), id="shards-done-too"),
        pytest.param(shard_iteration(prepare_and_commit), id="shards-two-phases"),
    ],
)
def test_every_way_to_finish_a_batch_releases_its_bytes(
    make_handler: MakeHandler, mode: str, budgets: list[ByteBudget]
) -> None:
    """More records than the buffer holds are delivered once and in order, and in the end no byte is in use."""

    async def scenario() -> None:
        world = WorkerWorld()
        expected = [f"{number:03}" for number in range(RECORDS)]
        world.put(*(b"x" * 50_000 + name.encode() for name in expected))
        handled: list[str] = []
        handler, beside = make_handler(handled)
        beside = asyncio.ensure_future(beside)
        worker = world.start(
            handler, buffer_bytes=BUFFER_BYTES, checkpoint=mode, max_wait=0, max_records=7, stalled_after="1h"
        )
        await world.until(lambda: len(handled) >= RECORDS, within_s=600)
        assert handled == expected
        await world.until(lambda: budgets[0].used_bytes == 0, within_s=600)
        await worker.stop_and_wait()
        await beside

    run_in_virtual_time(scenario())


def test_a_chunk_that_arrived_during_a_batch_is_released_with_the_shard(
    budgets: list[ByteBudget],
) -> None:
    """A chunk that was read ahead and is in no batch is released when the lease is lost."""

    async def scenario() -> None:
        world, started = WorkerWorld(), asyncio.Event()
        world.put("first")

        async def never_ends(batch: Batch) -> None:
            started.set()
            await asyncio.Event().wait()

        worker = world.start(never_ends, max_wait="10ms", cooldown_after_failure="1h")
        await started.wait()
        world.put(b"x" * 50_000)
        await world.until(lambda: budgets[0].used_bytes > 50_000)
        await world.clock.sleep_ms(5_000)
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        await world.until(lambda: budgets[0].used_bytes == 0)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_chunk_that_arrived_is_released_even_if_the_close_is_cancelled() -> None:
    """Otherwise its bytes stay in the budget of the process, and the readers of other shards wait for ever."""

    async def main() -> None:
        budget = ByteBudget(1_000)
        await budget.acquire(100)
        buffered = BufferedBytes(budget)
        held, clock = SimpleNamespace(draining=asyncio.Event()), SystemClock()
        builder = BatchBuilder(TRIM_HORIZON, BatchSettings())
        batcher = Batcher(_one_chunk(), builder, held=cast("HeldLease", held), clock=clock, buffered=buffered)
        batcher._next_chunk = asyncio.ensure_future(anext(batcher._chunks))
        await batcher._next_chunk
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        buffered.release_all()
        assert budget.used_bytes == 0

    asyncio.run(main())


async def _one_chunk() -> AsyncIterator[ReadChunk]:
    yield ReadChunk((), 100, None, TRIM_HORIZON, None)
