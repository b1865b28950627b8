"""A worker that loses a lease stores nothing more, and a worker that stops drains and releases its shards."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.core.events import (
    HandlerFailed,
    LeaseLost,
    OperationFailed,
    ShardStalled,
)
from leasehold.core.leases.row_writes import RowWrite, UpdateRow
from leasehold.errors import ConfigError, LeaseLostError, MalformedRowError
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import (
    RecordingHandler,
    WorkerWorld,
    pause_process,
    texts,
)


def test_a_lost_lease_cancels_the_handler_and_stores_nothing() -> None:
    """Another member takes the shard while a handler runs: the handler is cancelled and cannot checkpoint."""

    async def scenario() -> None:
        world, given, ended = WorkerWorld(), [], []
        world.put("before", "x")

        async def hang_on_x(batch: Batch) -> None:
            given.append(batch)
            if texts(batch) == ["x"]:
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(batch)

        worker = world.start(hang_on_x, max_records=1)
        await world.until(lambda: len(given) == 2)
        await world.clock.sleep_ms(6_000)
        await world.steal_lease()
        await world.until(lambda: bool(ended), within_s=20)
        assert worker.events_of(LeaseLost)
        assert await world.checkpoint() == "before"
        with pytest.raises(LeaseLostError):
            await given[1].checkpoint()
        assert not worker.events_of(HandlerFailed)
        assert await worker.stop_and_wait() is None
        assert (await world.lease()).owner == "other-worker"

    run_in_virtual_time(scenario())


def test_no_batch_is_delivered_once_the_lease_is_not_valid() -> None:
    """A worker that cannot reach the table stops delivering before another member may take the shard."""

    async def scenario() -> None:
        world, times = WorkerWorld(), []
        world.put(*range(10_000))

        async def note(batch: Batch) -> None:
            times.append(world.clock.now_ms())
            await asyncio.sleep(0.1)

        worker = world.start(note, max_records=1, cooldown_after_failure="1h")
        await world.until(lambda: len(times) == 20)

        async def unreachable(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        cut_at_ms = world.clock.now_ms()
        for operation in ("write", "write_transaction", "get", "scan"):
            setattr(world.rows, operation, unreachable)
        await world.clock.sleep_ms(60_000)
        assert cut_at_ms < max(times) < cut_at_ms + 10_000
        assert worker.events_of(LeaseLost)
        worker.task.cancel()

    run_in_virtual_time(scenario())


def test_after_a_pause_of_the_process_no_batch_is_delivered() -> None:
    """A process that wakes up after its lease expired does not deliver one more batch."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put(*range(10))

        async def pause_the_process(batch: Batch) -> None:
            calls.append(texts(batch))
            if len(calls) == 2:
                pause_process(60)

        worker = world.start(
            pause_the_process, max_records=1, cooldown_after_failure="1h", checkpoint_every="1h"
        )
        await world.until(lambda: bool(worker.events_of(LeaseLost)), within_s=120)
        assert calls == [["0"], ["1"]]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_batch_that_waited_for_a_slot_is_delivered_only_with_a_valid_lease() -> None:
    """The lease is checked when the handler is about to be called, not when the batch starts to wait."""

    async def scenario() -> None:
        world, calls = WorkerWorld(shards=2), []
        for shard in range(2):
            world.put(*range(10), shard=shard)

        async def pause_the_process(batch: Batch) -> None:
            calls.append(batch.shard)
            await asyncio.sleep(5)  # both shards have a batch by now, and one of them waits
            pause_process(60)

        worker = world.start(pause_the_process, max_records=10, max_handlers=1, cooldown_after_failure="1h")
        await world.until(lambda: len(worker.events_of(LeaseLost)) == 2, within_s=120)
        assert len(calls) == 1
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_waits_for_the_running_handler_and_stores_its_batch() -> None:
    """A stop finishes the running batch, stores it, releases the lease, and starts no other batch."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put(*range(10))

        async def slow(batch: Batch) -> None:
            calls.append(texts(batch))
            await asyncio.sleep(5)

        world.delay_writes(50)
        worker = world.start(slow, max_records=2, checkpoint_every="1h")
        await world.until(lambda: len(calls) == 2)
        began_ms = world.clock.now_ms()
        assert await worker.stop_and_wait() is None
        assert world.clock.now_ms() - began_ms < 6_000
        assert len(calls) == 2
        assert await world.checkpoint() == "3"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_stop_does_not_wait_for_a_failing_batch() -> None:
    """A batch that is being retried is released undone. The next owner starts with it."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("1")
        world.put("0", "1")
        worker = world.start(handler, max_records=1)
        await world.until(lambda: len(handler.calls) > 3)
        began_ms = world.clock.now_ms()
        await worker.stop_and_wait()
        assert world.clock.now_ms() - began_ms < 1_000
        assert await world.checkpoint() == "0"

    run_in_virtual_time(scenario())


def test_a_handler_that_outlives_the_grace_period_is_abandoned() -> None:
    """The worker ends within its grace period: it stores what is done, releases the lease, and reports the handler."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put("0", "1")

        async def hang_on_second(batch: Batch) -> None:
            calls.append(batch)
            if len(calls) == 2:
                await asyncio.sleep(100_000)

        worker = world.start(hang_on_second, max_records=1, grace="10s")
        await world.until(lambda: len(calls) == 2)
        began_ms = world.clock.now_ms()
        await worker.stop_and_wait()
        assert 7_000 < world.clock.now_ms() - began_ms < 10_000
        assert [event.operation for event in worker.events_of(OperationFailed)] == ["stop"]
        assert await world.checkpoint() == "0"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_shard_that_waits_for_a_handler_slot_is_not_stalled() -> None:
    """With max_handlers=1, the wait for the other shard's handler is not a stall."""

    async def scenario() -> None:
        world, handled = WorkerWorld(shards=2), []
        world.put("a", shard=0)
        world.put("b", shard=1)

        async def slow(batch: Batch) -> None:
            await asyncio.sleep(100)
            handled.extend(texts(batch))

        worker = world.start(slow, max_handlers=1, stalled_after="2m")
        await world.until(lambda: sorted(handled) == ["a", "b"], within_s=250)
        assert not worker.events_of(ShardStalled)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_worker_refuses_to_start_in_the_future() -> None:
    """Kinesis would refuse each read. The worker creates no lease."""

    async def scenario() -> None:
        world = WorkerWorld()
        ahead = datetime.fromtimestamp(world.clock.wall_ms() / 1000 + 60, UTC)
        worker = world.start(RecordingHandler(), initial_position=ahead)
        with pytest.raises(ConfigError, match=r"60 s in the future.*write latest"):
            await worker.task
        assert not world.rows._rows

    run_in_virtual_time(scenario())


def test_a_lease_is_not_released_before_everything_done_is_stored() -> None:
    """For a while the row refuses checkpoints, but no releases. The next owner must not repeat what is done."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put("a")
        worker = world.start(handler, checkpoint_every="2s", cooldown_after_failure="1s")
        await world.until(lambda: handler.handled == ["a"])
        write_at_once = world.rows.write

        async def refuse_checkpoints(write: RowWrite) -> Applied | Refused:
            if isinstance(write, UpdateRow) and "checkpoint" in write.set:
                raise MalformedRowError(write.key, "leaseCounter: expected an integer")
            released = isinstance(write, UpdateRow) and "leaseOwner" in write.remove
            assert not released, "released, although a record is done and not stored"
            return await write_at_once(write)

        world.rows.write = refuse_checkpoints  # type: ignore[method-assign]
        world.put("b")
        await world.until(lambda: bool(worker.events_of(OperationFailed)))
        await world.clock.sleep_ms(3_000)
        assert handler.handled == ["a", "b"]
        world.rows.write = write_at_once  # type: ignore[method-assign]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
