"""Shards as async iterators: batches on request, finished in any order, stored in shard order."""

import asyncio
from typing import Any

import pytest

from leasehold.core.events import BatchHandled, Checkpointed, LeaseLost, ShardEnded, ShardStalled
from leasehold.core.model import ShardId
from leasehold.core.position import SHARD_END
from leasehold.errors import LeaseLostError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from tests.unit.worker.worker_world import SHARD, RunningWorker, WorkerWorld, pause_process


def start(world: WorkerWorld, **options: Any) -> tuple[RunningWorker, asyncio.Queue[ShardBatches]]:
    offered: asyncio.Queue[ShardBatches] = asyncio.Queue()
    return world.start(ShardIterationHandler(offered.put_nowait), max_records=2, **options), offered


def text(batch: Batch) -> str:
    return "".join(record.data.decode() for record in batch)


def test_batches_come_in_order_and_the_checkpoint_follows_done() -> None:
    """Until `done` is called nothing is stored, however many batches were taken."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcdef")
        worker, offered = start(world, checkpoint_every=0)
        shard = await offered.get()
        assert shard.shard == SHARD
        assert shard.fencing_token.startswith(f"{SHARD}:")
        batches = [await anext(shard) for _ in range(3)]
        assert [text(batch) for batch in batches] == ["ab", "cd", "ef"]
        await world.clock.sleep_ms(60_000)
        assert await world.checkpoint() == "TRIM_HORIZON"
        await batches[1].done()
        assert await world.checkpoint() == "TRIM_HORIZON"
        await batches[0].done()
        assert await world.checkpoint() == "d"
        await batches[2].done()
        assert await world.checkpoint() == "f"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_batch_is_reported_once_all_batches_before_it_are_done() -> None:
    """Whether by `done` or by a checkpoint, in any order: events come in shard order, one for each batch."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcdef")
        worker, offered = start(world)
        shard = await offered.get()
        batches = [await anext(shard) for _ in range(3)]
        await world.clock.sleep_ms(500)
        await batches[1].done()
        assert worker.events_of(BatchHandled) == []
        await batches[0].done()
        await batches[0].done()
        await batches[2].checkpoint()
        assert [event.end for event in worker.events_of(BatchHandled)] == [batch.end for batch in batches]
        assert {(event.records, event.size_bytes) for event in worker.events_of(BatchHandled)} == {(2, 8)}
        assert all(event.time_ms >= 500 for event in worker.events_of(BatchHandled))
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_ends_the_iteration_and_waits_for_delivered_batches() -> None:
    """No new batch is delivered, and the delivered one is awaited and stored."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcdef")
        worker, offered = start(world)
        shard = await offered.get()
        batch = await anext(shard)
        worker.stop.set()
        await world.clock.sleep_ms(100)
        assert [text(more) async for more in shard] == []
        await world.clock.sleep_ms(3_000)
        assert not worker.task.done()
        await batch.done()
        await worker.task
        assert await world.checkpoint() == "b"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_shard_ends_when_all_of_its_batches_are_done() -> None:
    """The iteration ends with the last batch. SHARD_END is stored after the last `done`, then the children start."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        world.split()
        worker, offered = start(world)
        shard = await offered.get()
        batches = [batch async for batch in shard]
        assert [text(batch) for batch in batches] == ["ab", "cd"]
        await batches[1].done()
        await world.clock.sleep_ms(60_000)
        assert not worker.events_of(ShardEnded)
        assert offered.empty()
        await batches[0].done()
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert (await world.lease()).checkpoint == SHARD_END
        children = {(await offered.get()).shard, (await offered.get()).shard}
        assert children == {ShardId("shardId-000000000001"), ShardId("shardId-000000000002")}
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_lost_lease_ends_the_iteration_and_refuses_checkpoints() -> None:
    """The loop over the shard ends, and the delivered batch can no longer be stored."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        worker, offered = start(world)
        shard = await offered.get()
        batch = await anext(shard)
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        assert [text(more) async for more in shard] == []
        with pytest.raises(LeaseLostError):
            await batch.checkpoint()
        await batch.done()
        assert not worker.events_of(Checkpointed)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_after_a_pause_of_the_process_the_iteration_ends() -> None:
    """A queued batch may belong to another member by now, so it is not delivered."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        worker, offered = start(world, cooldown_after_failure="1h")
        shard = await offered.get()
        assert text(await anext(shard)) == "ab"
        await world.clock.sleep_ms(3_000)  # the next batch is queued
        pause_process(60)
        assert [text(more) async for more in shard] == []
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_cancelled_wait_loses_no_batch() -> None:
    """After a wait that timed out, the next wait returns the batch that arrived meanwhile."""

    async def scenario() -> None:
        world = WorkerWorld()
        worker, offered = start(world, max_wait=0)
        shard = await offered.get()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(shard), 5)
        world.put("a")
        await world.clock.sleep_ms(10_000)
        assert text(await anext(shard)) == "a"
        worker.task.cancel()

    run_in_virtual_time(scenario())


def test_an_empty_batch_does_not_move_the_checkpoint_past_a_queued_batch() -> None:
    """A position without records waits behind the batches that the program has not taken yet."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        worker, offered = start(world, checkpoint_every=0, max_wait=0)
        shard = await offered.get()
        await world.clock.sleep_ms(60_000)  # many empty pages arrive after the batch
        assert await world.checkpoint() == "TRIM_HORIZON"
        batch = await anext(shard)
        await batch.done()
        assert await world.checkpoint() == "a"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_does_not_end_a_shard_with_a_batch_that_is_not_done() -> None:
    """All batches were taken, but one is not done, so SHARD_END must not be written."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        world.split()
        worker, offered = start(world, grace="10s")
        shard = await offered.get()
        batches = [batch async for batch in shard]
        await batches[0].done()
        await worker.stop_and_wait()
        assert await world.checkpoint() == "b"

    run_in_virtual_time(scenario())


def test_taking_and_finishing_batches_is_progress() -> None:
    """Neither a queued batch nor a long one stalls the shard by itself."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"ab")
        world.split()
        worker, offered = start(world, stalled_after="2m")
        shard = await offered.get()
        await world.clock.sleep_ms(100_000)
        batch = await anext(shard)
        await world.clock.sleep_ms(100_000)
        await batch.done()
        assert [more async for more in shard] == []
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert not worker.events_of(ShardStalled)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_program_that_hangs_gives_up_a_shard_without_new_records() -> None:
    """Empty pages are no progress of the program."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"ab")
        worker, offered = start(world, stalled_after="2m")
        await anext(await offered.get())
        await world.until(lambda: bool(worker.events_of(ShardStalled)), within_s=600)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_program_that_never_calls_done_does_not_keep_the_worker_from_stopping() -> None:
    """At the end of the grace period the iteration ends and the lease is released. The batch is delivered again."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        worker, offered = start(world, grace="10s")
        shard = await offered.get()
        batch = await anext(shard)
        waiting = asyncio.ensure_future(anext(shard, None))
        assert text(await waiting) == "cd"  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(anext(shard, None))
        assert await worker.stop_and_wait() is None
        assert await waiting is None
        assert await world.checkpoint() == "TRIM_HORIZON"
        assert (await world.lease()).owner is None
        with pytest.raises(LeaseLostError):
            await batch.checkpoint()

    run_in_virtual_time(scenario())
