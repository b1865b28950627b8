"""The byte budget: what was read and is done makes room for more, however it was said to be done."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from leasehold.core.events import LeaseLost
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine import run_worker as running
from leasehold.worker.processors import ProcessorHandler, ProcessRecordsInput, RecordProcessor
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from tests.unit.worker.worker_world import WorkerWorld

BUFFER_BYTES = 1024 * 1024
RECORDS = 100  # of 50 kB: five times what the buffer holds

# Takes what was handled; returns the form, and what must run beside the worker.
Begin = Callable[[list[str]], tuple[HandlerKind, Awaitable[None]]]


@pytest.fixture
def budgets(monkeypatch: pytest.MonkeyPatch) -> list[ByteBudget]:
    """The budgets of the workers that are started, in the order of starting."""
    made: list[ByteBudget] = []

    class KeptBudget(ByteBudget):
        def __init__(self, limit_bytes: int) -> None:
            super().__init__(limit_bytes)
            made.append(self)

    monkeypatch.setattr(running, "ByteBudget", KeptBudget)
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


async def checkpoint_and_say_done(batch: Batch) -> None:
    await batch.checkpoint()
    await batch.done()


async def nothing() -> None: ...


def as_handler(settle: Callable[[Batch], Awaitable[None]]) -> Begin:
    def begin(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        async def handle(batch: Batch) -> None:
            await settle(batch)
            handled.extend(names(batch))

        return BatchHandler(handle), nothing()

    return begin


def as_processor(*, in_two_phases: bool) -> Begin:
    def begin(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        class Save(RecordProcessor):
            async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
                checkpointer = process_records_input.checkpointer
                if in_two_phases:
                    await (await checkpointer.prepare_checkpoint()).commit()
                else:
                    await checkpointer.checkpoint()
                handled.extend(names(process_records_input.batch))

        return ProcessorHandler(Save), nothing()

    return begin


def as_shards(settle: Callable[[Batch], Awaitable[None]]) -> Begin:
    def begin(handled: list[str]) -> tuple[HandlerKind, Awaitable[None]]:
        offered: asyncio.Queue[ShardBatches] = asyncio.Queue()

        async def work() -> None:
            async for batch in await offered.get():
                await settle(batch)
                handled.extend(names(batch))

        return ShardIterationHandler(offered.put_nowait), work()

    return begin


@pytest.mark.parametrize("mode", ["manual", "automatic"])
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(as_handler(checkpoint), id="handler"),
        pytest.param(as_handler(checkpoint_each_record), id="handler-each-record"),
        pytest.param(as_handler(prepare_and_commit), id="handler-two-phases"),
        pytest.param(as_processor(in_two_phases=False), id="processor"),
        pytest.param(as_processor(in_two_phases=True), id="processor-two-phases"),
        pytest.param(as_shards(checkpoint), id="shards"),
        pytest.param(as_shards(checkpoint_and_say_done), id="shards-done-too"),
        pytest.param(as_shards(prepare_and_commit), id="shards-two-phases"),
    ],
)
def test_checkpoints_by_hand_make_room_in_the_buffer(
    begin: Begin, mode: str, budgets: list[ByteBudget]
) -> None:
    """More than the buffer holds goes through it, once and in order, and in the end nothing counts as held."""

    async def scenario() -> None:
        world = WorkerWorld()
        expected = [f"{number:03}" for number in range(RECORDS)]
        world.put(*(b"x" * 50_000 + name.encode() for name in expected))
        handled: list[str] = []
        form, beside = begin(handled)
        beside = asyncio.ensure_future(beside)
        worker = world.start(
            form, buffer_bytes=BUFFER_BYTES, checkpoint=mode, max_wait=0, max_records=7, stalled_after="1h"
        )
        await world.until(lambda: len(handled) >= RECORDS, within_s=600)
        assert handled == expected
        await world.until(lambda: budgets[0].used_bytes == 0, within_s=600)
        await worker.stop_and_wait()
        await beside

    run_in_virtual_time(scenario())


def test_a_slice_that_came_while_a_handler_worked_is_not_held_after_the_shard_is_gone(
    budgets: list[ByteBudget],
) -> None:
    """What was read ahead and never made it into a batch counts no longer once the lease is another's."""

    async def scenario() -> None:
        world, begun = WorkerWorld(), asyncio.Event()
        world.put("first")

        async def never_ends(batch: Batch) -> None:
            begun.set()
            await asyncio.Event().wait()

        worker = world.start(never_ends, max_wait="10ms", cooldown_after_failure="1h")
        await begun.wait()
        world.put(b"x" * 50_000)
        await world.until(lambda: budgets[0].used_bytes > 50_000)
        await world.clock.sleep_ms(5_000)
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        await world.until(lambda: budgets[0].used_bytes == 0)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
