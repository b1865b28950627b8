"""The end of a shard is stored with its children's leases, after all of its records are done."""

import asyncio

import pytest

from leasehold.core.events import (
    GapFound,
    ShardEnded,
)
from leasehold.core.position import SHARD_END
from leasehold.fleet.held_lease import HeldLease
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import (
    LEFT,
    RIGHT,
    SHARD,
    RecordingHandler,
    WorkerWorld,
    texts,
)


def test_the_end_of_a_shard_is_stored_with_its_children_after_its_last_record() -> None:
    """The parent is handled to its end, then SHARD_END and the children's leases are written, then they are read."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put(*range(5))
        world.split()
        world.put("left")
        worker = world.start(handler, max_records=2)
        await world.until(lambda: "left" in handler.handled)
        assert handler.handled == ["0", "1", "2", "3", "4", "left"]
        (ended,) = worker.events_of(ShardEnded)
        assert ended.shard == SHARD
        assert set(ended.children) == {LEFT, RIGHT}
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_child_that_was_trimmed_unread_is_reported_as_a_gap() -> None:
    """A fleet that ended the parent and returns after the retention period reports lost records of the child."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("lost")
        world.put("parent")
        world.split()
        world.put("lost")
        worker = world.start(handler)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        await worker.stop_and_wait()
        await world.clock.sleep_ms(30 * 3_600_000)
        world.put("kept")
        second = world.start(handler)
        await world.until(lambda: "kept" in handler.handled)
        assert LEFT in {event.shard for event in second.events_of(GapFound)}
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_failing_record_keeps_a_shard_from_ending() -> None:
    """While the last record is held, SHARD_END is not written and no child is read."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("last")
        world.put("first", "last")
        world.split()
        world.put("child")
        worker = world.start(handler, retries=0)
        await world.clock.sleep_ms(600_000)
        assert await world.checkpoint() == "first"
        assert "child" not in handler.handled
        handler.poison.clear()
        await world.until(lambda: handler.handled == ["first", "last", "child"])
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_does_not_end_a_shard_whose_last_record_failed() -> None:
    """The shard was read to its end, but SHARD_END would lose the failed record. The next owner finishes it."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("last")
        world.put("first", "last")
        world.split()
        worker = world.start(handler, retries=0)
        await world.until(lambda: handler.calls.count(["last"]) > 3)
        await worker.stop_and_wait()
        assert await world.checkpoint() == "first"
        handler.poison.clear()
        second = world.start(handler)
        await world.until(lambda: bool(second.events_of(ShardEnded)))
        assert handler.handled == ["first", "last"]
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_the_last_record_is_stored_while_the_end_of_the_shard_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end may have to wait for the other parent of a merge. A crash meanwhile repeats no record."""

    async def wait_for_other_parent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeldLease, "finish", wait_for_other_parent)

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put("first", "last")
        world.split()
        worker = world.start(handler, max_records=1, checkpoint_every="1h")
        await world.until(lambda: len(handler.handled) == 2)
        await world.clock.sleep_ms(1_000)
        assert await world.checkpoint() == "last"
        worker.task.cancel()

    run_in_virtual_time(scenario())


def test_a_stop_before_the_last_records_does_not_end_the_shard() -> None:
    """The end of the shard was read, but not all of its records were delivered: the next worker gets the rest."""

    async def scenario() -> None:
        world, first = WorkerWorld(), []
        world.service.settings = ServiceSettings(shard_end_with_last_records=True)
        world.put(*range(6))
        world.split()

        async def handle_slowly(batch: Batch) -> None:
            first.extend(texts(batch))
            await world.clock.sleep_ms(5_000)

        worker = world.start(handle_slowly, max_records=2)
        await world.until(lambda: bool(first))
        await worker.stop_and_wait()
        assert (first, await world.checkpoint()) == (["0", "1"], "1")
        handler = RecordingHandler()
        second = world.start(handler)
        await world.until(lambda: bool(second.events_of(ShardEnded)))
        assert handler.handled == ["2", "3", "4", "5"]
        await second.stop_and_wait()

    run_in_virtual_time(scenario())
