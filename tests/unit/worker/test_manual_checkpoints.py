"""Checkpoints that a handler makes itself, in one or in two phases."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from leasehold.core.events import (
    ShardEnded,
)
from leasehold.core.position import SHARD_END
from leasehold.errors import CheckpointRejectedError, HandlerError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import (
    WorkerWorld,
    texts,
)


def with_manual_checkpoints(
    handler: Callable[[Batch], Awaitable[None]], then: Callable[[WorkerWorld, Any], Coroutine[Any, Any, None]]
) -> None:
    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*range(4))
        worker = world.start(handler, checkpoint="manual", max_records=2)
        await then(world, worker)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_only_the_handler_makes_manual_checkpoints() -> None:
    """A return stores nothing. `batch.checkpoint(record)` stores up to that record at once."""
    seen: list[str] = []

    async def handler(batch: Batch) -> None:
        seen.extend(texts(batch))
        if "2" in texts(batch):
            await batch.checkpoint(batch.records[0])

    async def then(world: WorkerWorld, worker: Any) -> None:
        await world.until(lambda: len(seen) == 4)
        await world.clock.sleep_ms(60_000)
        await worker.stop_and_wait()
        assert await world.checkpoint() == "2"

    with_manual_checkpoints(handler, then)


def test_a_checkpoint_outside_of_the_batch_or_backwards_is_refused() -> None:
    """Only delivered records can be checkpointed, and a checkpoint never moves backwards."""
    errors: list[type[BaseException]] = []
    batches: list[Batch] = []

    async def handler(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 2:
            await batch.checkpoint()
            for at in (batch.end, None):
                with pytest.raises(CheckpointRejectedError) as caught:
                    await batches[0].checkpoint(at)
                errors.append(caught.type)

    async def then(world: WorkerWorld, worker: Any) -> None:
        await world.until(lambda: len(errors) == 2)
        assert await world.checkpoint() == "3"

    with_manual_checkpoints(handler, then)


def test_checkpointed_records_are_not_delivered_again_after_a_failure() -> None:
    """A handler that checkpoints half of its batch and then fails gets only the other half again."""
    calls: list[list[str]] = []

    async def handler(batch: Batch) -> None:
        calls.append(texts(batch))
        if texts(batch) == ["0", "1"]:
            await batch.checkpoint(batch.records[0])
            raise ValueError("after the first")

    async def then(world: WorkerWorld, worker: Any) -> None:
        await world.until(lambda: len(calls) == 3)
        assert calls == [["0", "1"], ["1"], ["2", "3"]]

    with_manual_checkpoints(handler, then)


def test_a_handler_must_checkpoint_the_last_batch_of_a_shard() -> None:
    """A handler that ignores the end of the shard is called again. Once it checkpoints, the shard ends."""

    async def scenario() -> None:
        world, ends = WorkerWorld(), []
        world.put("x")
        world.split()

        async def handler(batch: Batch) -> None:
            if batch.ends_shard:
                ends.append(batch.attempt)
                if len(ends) == 3:
                    await batch.checkpoint()

        worker = world.start(handler, checkpoint="manual")
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert ends == [1, 2, 3]
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_prepared_batch_is_delivered_again_unchanged() -> None:
    """The owner dies between the two phases. The next owner gets the same records in one batch, with the state."""

    async def scenario() -> None:
        world, prepared, redone = WorkerWorld(), [], []
        world.put(*range(20))

        async def prepare_and_hang(batch: Batch) -> None:
            if texts(batch)[0] == "10":
                await batch.prepare(b"object-17")
                prepared.append(batch)
                await asyncio.Event().wait()

        first = world.start(prepare_and_hang, max_records=5, checkpoint_every="1h")
        await world.until(lambda: bool(prepared))
        assert await world.checkpoint() == "9"  # `prepare` has stored the records before the range
        first.task.cancel()

        async def collect(batch: Batch) -> None:
            redone.append(batch)

        second = world.start(collect, max_records=3)
        await world.until(lambda: sum(map(len, redone)) == 10)
        again, following = redone[0], redone[1]
        assert (again.start, again.end, texts(again)) == (
            prepared[0].start,
            prepared[0].end,
            texts(prepared[0]),
        )
        assert again.pending is not None
        assert again.pending.state == b"object-17"
        assert following.pending is None
        assert len(following) == 3
        await second.stop_and_wait()
        assert (await world.lease()).pin is None

    run_in_virtual_time(scenario())


def test_a_prepared_batch_is_repeated_whole_until_it_succeeds() -> None:
    """Its effect may exist. A part of it would be another effect, with the same records."""

    async def scenario() -> None:
        world, prepared, seen = WorkerWorld(), [], list[tuple[list[str], bool]]()
        world.put(*range(5))

        async def prepare_and_hang(batch: Batch) -> None:
            await batch.prepare(b"object-17")
            prepared.append(batch)
            await asyncio.Event().wait()

        first = world.start(prepare_and_hang, max_records=5, max_wait="1m")
        await world.until(lambda: bool(prepared), within_s=120)
        first.task.cancel()

        async def fail_three_times(batch: Batch) -> None:
            seen.append((texts(batch), batch.pending is not None))
            if len(seen) < 4:
                raise ValueError("the database does not answer")

        second = world.start(fail_three_times, retries=0)
        await world.until(lambda: len(seen) == 4, within_s=120)
        assert seen == [(["0", "1", "2", "3", "4"], True)] * 4
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("options", [{}, {"on_poison": "skip"}, {"dead_letters": "memory"}], ids=str)
@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_that_fails_after_its_effect_is_repeated_whole(count: int, options: dict[str, str]) -> None:
    """The handler prepares, writes an object and raises, all in one session. No record gets into a second object."""

    async def scenario() -> None:
        world, calls, objects = WorkerWorld(), [], set[str]()
        world.put(*range(count))

        async def write_and_fail(batch: Batch) -> None:
            calls.append((texts(batch), batch.pending.state if batch.pending else None))
            prepared = await batch.prepare(b"object-17")
            objects.add(f"{batch.start} {batch.end}")
            if len(calls) < 5:
                raise ConnectionError("the response is lost")
            await prepared.commit()

        worker = world.start(write_and_fail, max_records=count, max_wait="1m", retries=1, **options)
        await world.until(lambda: len(calls) == 5, within_s=180)
        await worker.stop_and_wait()
        whole = [str(number) for number in range(count)]
        assert calls == [(whole, None)] + [(whole, b"object-17")] * 4
        assert len(objects) == 1
        assert not world.dead_letters.letters
        assert await world.checkpoint() == whole[-1]

    run_in_virtual_time(scenario())


def test_a_part_of_a_batch_is_repeated_whole_once_it_is_prepared() -> None:
    """The search for poison splits a batch. The half that prepared is not split again, and the other half is."""

    async def scenario() -> None:
        world, calls, objects = WorkerWorld(), list[list[str]](), set[tuple[str, ...]]()
        world.put(*range(8))

        async def look_before_preparing(batch: Batch) -> None:
            calls.append(texts(batch))
            if "6" in texts(batch):
                raise ValueError("cannot read this")
            prepared = await batch.prepare()
            objects.add(tuple(texts(batch)))
            if calls.count(texts(batch)) < 3:
                raise ConnectionError("the response is lost")
            await prepared.commit()

        worker = world.start(
            look_before_preparing, max_records=8, max_wait="1m", retries=0, dead_letters="memory"
        )
        await world.until(lambda: calls[-3:] == [["7"]] * 3, within_s=180)
        await worker.stop_and_wait()
        assert objects == {("0", "1", "2", "3"), ("4", "5"), ("7",)}
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"6"]
        assert await world.checkpoint() == "7"

    run_in_virtual_time(scenario())


def test_a_prepared_batch_that_stops_the_shard_stays_prepared() -> None:
    """The next owner gets exactly its records."""

    async def scenario() -> None:
        world, seen = WorkerWorld(), list[list[str]]()
        world.put(*range(4))

        async def fail(batch: Batch) -> None:
            seen.append(texts(batch))
            await batch.prepare(b"object-17")
            raise ValueError("cannot be written")

        worker = world.start(fail, max_records=4, max_wait="1m", retries=1, on_poison="stop_worker")
        error = await worker.task
        assert isinstance(error, HandlerError)
        assert "on the records" in str(error)
        assert seen == [["0", "1", "2", "3"]] * 2
        pin = (await world.lease()).pin
        assert pin is not None
        assert pin.state == b"object-17"

    run_in_virtual_time(scenario())


def test_the_rest_of_a_prepared_batch_is_searched_for_poison() -> None:
    """A checkpoint within the batch replaces the prepared one, so nothing has to be repeated whole any more."""

    async def scenario() -> None:
        world, prepared, handled = WorkerWorld(), [], list[str]()
        world.put(*range(5))

        async def prepare_and_hang(batch: Batch) -> None:
            await batch.prepare(b"object-17")
            prepared.append(batch)
            await asyncio.Event().wait()

        first = world.start(prepare_and_hang, max_records=5, max_wait="1m")
        await world.until(lambda: bool(prepared), within_s=120)
        first.task.cancel()

        async def fail_on_three(batch: Batch) -> None:
            if batch.pending is not None:
                await batch.checkpoint(batch.records[1])
            if "3" in texts(batch):
                raise ValueError("poison")
            handled.extend(texts(batch))

        second = world.start(fail_on_three, retries=0, dead_letters="memory")
        await world.until(lambda: handled == ["2", "4"], within_s=120)
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"3"]
        await second.stop_and_wait()
        assert await world.checkpoint() == "4"

    run_in_virtual_time(scenario())


def test_a_prepared_range_larger_than_the_buffer_does_not_block_reading() -> None:
    """Small records count for more than their data in the byte budget. The range is buffered all the same."""

    async def scenario() -> None:
        world = WorkerWorld()
        prepared: list[Batch] = []
        redone: list[Batch] = []
        world.put(*(str(number).zfill(50) for number in range(6_000)))

        async def prepare_and_hang(batch: Batch) -> None:
            if not prepared:
                await batch.prepare()
                prepared.append(batch)
                await asyncio.Event().wait()

        first = world.start(prepare_and_hang, max_records=5_000, max_wait="1m")
        await world.until(lambda: bool(prepared), within_s=120)
        first.task.cancel()

        async def collect(batch: Batch) -> None:
            redone.append(batch)

        second = world.start(collect, buffer_bytes=1024 * 1024)
        await world.until(lambda: bool(redone), within_s=120)
        assert redone[0].records == prepared[0].records
        assert len(redone[0]) == 5_000
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_only_its_commit_completes_a_prepared_checkpoint() -> None:
    """`prepare` writes the end beside the checkpoint, and `commit` moves the checkpoint there."""

    async def scenario() -> None:
        world, pins = WorkerWorld(), []
        world.put(*range(4))

        async def two_phases(batch: Batch) -> None:
            prepared = await batch.prepare(b"note")
            await asyncio.sleep(30)  # longer than the interval of automatic checkpoints
            pins.append((await world.lease()).pin)
            await prepared.commit()
            pins.append((await world.lease()).pin)

        worker = world.start(two_phases, max_records=2)
        await world.until(lambda: len(pins) == 4, within_s=120)
        assert [pin.state if pin else None for pin in pins] == [b"note", None, b"note", None]
        assert await world.checkpoint() == "3"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
