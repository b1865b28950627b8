"""Automatic checkpoints follow the handler, and never pass an unfinished batch."""

import asyncio
from typing import Any

import pytest

from leasehold.core.events import (
    Checkpointed,
    DeaggregationFailed,
    LeaseLost,
    LeaseReleased,
    ShardStalled,
)
from leasehold.core.position import Position
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import (
    SHARD,
    RecordingHandler,
    WorkerWorld,
    texts,
)


def test_every_record_is_handled_once_and_in_order() -> None:
    """Each of 1,000 records is delivered once, in order, in batches of at most `max_records`."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put(*range(1000))
        worker = world.start(handler, max_records=64)
        await world.until(lambda: len(handler.handled) >= 1000)
        await worker.stop_and_wait()
        assert handler.handled == [str(number) for number in range(1000)]
        assert max(map(len, handler.calls)) == 64
        assert await world.checkpoint() == "999"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_checkpoint_that_is_due_does_not_wait_for_a_heartbeat() -> None:
    """Heartbeats store the done position, too, but may be rarer than checkpoints."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        worker = world.start(handler, max_wait=0, checkpoint_every="1s", failover_after="100s")
        world.put("first")
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 1)  # the first one is stored at once
        world.put("second")
        await world.until(lambda: handler.handled == ["first", "second"])
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 2, within_s=3)
        assert await world.checkpoint() == "second"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_checkpoint_follows_the_handler_within_the_interval() -> None:
    """A finished batch is stored within five seconds, even if nothing else happens in the shard."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put("first")
        worker = world.start(handler, max_wait=0)
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 1)  # the first one is stored at once
        world.put("second")
        await world.until(lambda: handler.handled == ["first", "second"])
        assert await world.checkpoint() == "first"
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 2, within_s=6)
        assert await world.checkpoint() == "second"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_slow_batch_does_not_delay_the_checkpoint_of_the_batch_before() -> None:
    """A handler that hangs on the second batch does not keep the first from being stored."""

    async def scenario() -> None:
        world, release = WorkerWorld(), asyncio.Event()
        world.put("old", "first", "second")

        async def slow_on_second(batch: Batch) -> None:
            if texts(batch) == ["second"]:
                await release.wait()

        worker = world.start(slow_on_second, max_records=1)
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 2)
        assert await world.checkpoint() == "first"
        release.set()
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({"checkpoint_every": 0}, ["0", "1", "2", "3", "4", "5"]),
        ({"checkpoint_every": "1h", "checkpoint_records": 2}, ["0", "2", "4"]),
        ({"checkpoint_every": "1h"}, ["0"]),
    ],
)
def test_the_settings_decide_how_often_a_checkpoint_is_stored(
    options: dict[str, Any], stored: list[str]
) -> None:
    """A shard without a checkpoint gets its first one at once."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put(*range(6))
        worker = world.start(handler, max_records=1, **options)
        await world.until(lambda: len(handler.handled) == 6)
        numbers = {number: data.decode() for data, number in world.sequence_numbers.items()}
        reported = [numbers[event.position.sequence_number] for event in worker.events_of(Checkpointed)]
        assert reported == stored
        await worker.stop_and_wait()
        assert await world.checkpoint() == "5"

    run_in_virtual_time(scenario())


def test_no_checkpoint_passes_an_unfinished_batch() -> None:
    """However long a batch takes, the table holds the end of the batch before it, and the lease is kept."""

    async def scenario() -> None:
        world, release, calls = WorkerWorld(), asyncio.Event(), []
        world.put(*range(10))

        async def hang_on_second(batch: Batch) -> None:
            calls.append(texts(batch))
            if len(calls) == 2:
                await release.wait()

        worker = world.start(hang_on_second, max_records=5, checkpoint_every=0)
        await world.until(lambda: len(calls) == 2)
        await world.clock.sleep_ms(60_000)
        assert await world.checkpoint() == "4"
        assert not worker.events_of(LeaseLost)
        release.set()
        await world.until(lambda: len(worker.events_of(Checkpointed)) == 2)
        assert await world.checkpoint() == "9"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_handler_that_hangs_longer_than_stalled_after_loses_its_shard() -> None:
    """A running handler counts as progress only up to `stalled_after`."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put("x")

        async def hang(batch: Batch) -> None:
            calls.append(batch)
            await asyncio.Event().wait()

        worker = world.start(hang, stalled_after="2m", cooldown_after_failure="1h")
        await world.until(lambda: bool(calls))
        await world.clock.sleep_ms(110_000)
        assert (await world.lease()).owner == "worker-1"
        await world.until(lambda: bool(worker.events_of(LeaseReleased)), within_s=30)
        assert worker.events_of(ShardStalled)
        assert await world.checkpoint() == "TRIM_HORIZON"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_still_working_keeps_the_shard_of_a_long_batch() -> None:
    """`batch.still_working()` is progress, however long the whole batch takes."""

    async def scenario() -> None:
        world, handled = WorkerWorld(), []
        world.put("x")

        async def long(batch: Batch) -> None:
            for _ in range(10):
                await asyncio.sleep(60)
                batch.still_working()
            handled.append(batch)

        worker = world.start(long, stalled_after="2m")
        await world.until(lambda: bool(handled), within_s=700)
        assert not worker.events_of(LeaseLost)
        await worker.stop_and_wait()
        assert await world.checkpoint() == "x"

    run_in_virtual_time(scenario())


def test_the_checkpoint_passes_dropped_aggregates() -> None:
    """User records of another shard are not delivered, but the checkpoint passes them."""

    async def scenario() -> None:
        world, handler = WorkerWorld(shards=2), RecordingHandler()
        stray = aggregate([PutEntry(b"stray", "key", 2**127)])
        world.put("first")
        stored = world.service.put_record(
            world.clock.wall_ms(), "orders", PutRequest(stray.partition_key, stray.data, 0)
        )
        worker = world.start(handler)
        await world.until(lambda: bool(worker.events_of(DeaggregationFailed)))
        await world.clock.sleep_ms(10_000)
        assert handler.handled == ["first"]
        assert (await world.lease()).checkpoint == Position(str(stored.number))
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_an_aggregate_may_be_delivered_in_several_batches() -> None:
    """A batch may end inside an aggregate, and the next owner continues there without a repeat."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("5")
        whole = aggregate([PutEntry(b"%d" % number, "key") for number in range(9)])
        world.service.put_record(
            world.clock.wall_ms(), "orders", PutRequest(whole.partition_key, whole.data, 0)
        )
        first = world.start(handler, max_records=2, retries=0)
        await world.until(lambda: ["5"] in handler.calls)
        await first.stop_and_wait()
        assert (await world.lease()).checkpoint.sub_sequence_number == 4
        handler.poison.clear()
        second = world.start(handler, max_records=3)
        await world.until(lambda: len(handler.handled) == 9)
        assert handler.handled == [str(number) for number in range(9)]
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_finished_batches_release_the_byte_budget() -> None:
    """With a small buffer and a long stream, reading never stops."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler()
        world.put(*(str(number).zfill(1000) * 20 for number in range(300)))
        worker = world.start(handler, buffer_bytes=1024 * 1024, max_records=7)
        await world.until(lambda: len(handler.handled) == 300)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_the_fencing_number_rises_with_every_owner() -> None:
    """A later owner's token names the same shard with a higher number."""

    async def scenario() -> None:
        world, tokens, numbers = WorkerWorld(), list[str](), list[int]()

        async def note(batch: Batch) -> None:
            tokens.append(batch.fencing_token)
            numbers.append(batch.fencing_number)

        for owner in (1, 2):
            world.put(owner)
            worker = world.start(note)
            await world.until(lambda wanted=owner: len(tokens) == wanted)  # type: ignore[misc]
            await worker.stop_and_wait()
        assert tokens == [f"{SHARD}:{number}" for number in numbers]
        assert numbers[0] < numbers[1]

    run_in_virtual_time(scenario())


def test_a_bug_is_logged_with_its_stack_and_without_its_message(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of an error may contain a payload, so only type and stack are logged."""

    def broken(*_: object) -> None:
        raise KeyError("".join(reversed("terces")))

    monkeypatch.setattr("leasehold.worker.batch_handler.RetryingConsumer._skip_done", broken)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("x")
        worker = world.start(RecordingHandler())
        await world.until(lambda: bool(worker.events_of(LeaseReleased)))
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
    assert "KeyError" in caplog.text
    assert "retrying_consumer.py" in caplog.text
    assert "secret" not in caplog.text
