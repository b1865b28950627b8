"""Processors get the callbacks of the Java KCL in its order, but failed records are not skipped."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasehold.core.events import (
    HandlerFailed,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    ProcessorCalled,
    RecordDeadLettered,
    ShardEnded,
)
from leasehold.core.position import SHARD_END, Position
from leasehold.errors import CheckpointRejectedError, LeaseLostError
from leasehold.fleet.held_lease import HeldLease
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.processors import (
    Checkpointer,
    InitializeInput,
    LeaseLostInput,
    ProcessorHandler,
    ProcessRecordsInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from tests.unit.worker.worker_world import RunningWorker, WorkerWorld, pause_process


class RecordingProcessor(RecordProcessor):
    """Records every call, for all shards together."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.checkpointer: Checkpointer | None = None

    async def initialize(self, initialize_input: InitializeInput) -> None:
        self.calls.append(f"initialize {initialize_input.sequence_number[:12]}")

    async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.checkpointer = process_records_input.checkpointer
        self.calls.append(
            "records " + "".join(record.data.decode() for record in process_records_input.records)
        )

    async def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        self.calls.append("lease lost")

    async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        self.calls.append("shard ended")
        await shard_ended_input.checkpointer.checkpoint()

    async def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        self.calls.append("shutdown requested")
        await shutdown_requested_input.checkpointer.checkpoint()


def recording_handler(
    kind: type[RecordingProcessor] = RecordingProcessor,
) -> tuple[ProcessorHandler, list[str]]:
    calls: list[str] = []
    return ProcessorHandler(lambda: kind(calls)), calls


def start(world: WorkerWorld, handler: ProcessorHandler, **options: Any) -> RunningWorker:
    return world.start(handler, **{"checkpoint": "manual", "max_records": 2, **options})


def test_after_a_pause_of_the_process_no_more_records_are_delivered() -> None:
    """A process that wakes up after its lease expired gets `lease_lost` and no records before it."""

    class Sleeper(RecordingProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if self.calls[-1] == "records cd":
                pause_process(60)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcdef")
        handler, calls = recording_handler(Sleeper)
        worker = start(world, handler, cooldown_after_failure="1h")
        await world.until(lambda: calls[-1:] == ["lease lost"], within_s=120)
        assert calls == ["initialize TRIM_HORIZON", "records ab", "records cd", "lease lost"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_graceful_stop() -> None:
    """Records, then shutdown_requested (which checkpoints), then lease_lost. The last delivered record is stored."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        handler, calls = recording_handler()
        worker = start(world, handler)
        await world.until(lambda: calls[-1:] == ["records c"])
        await world.clock.sleep_ms(60_000)
        assert await world.checkpoint() == "TRIM_HORIZON"  # only the class checkpoints
        await worker.stop_and_wait()
        assert calls == [
            "initialize TRIM_HORIZON",
            "records ab",
            "records c",
            "shutdown requested",
            "lease lost",
        ]
        assert [event.method for event in worker.events_of(ProcessorCalled)] == [
            "initialize",
            "shutdown_requested",
            "lease_lost",
        ]
        assert await world.checkpoint() == "c"

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard() -> None:
    """The last records, then shard_ended, whose checkpoint stores SHARD_END and lets the children start."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        world.split()
        handler, calls = recording_handler()
        worker = start(world, handler)
        await world.until(lambda: calls.count("initialize TRIM_HORIZON") == 3)
        assert calls[:4] == ["initialize TRIM_HORIZON", "records ab", "records c", "shard ended"]
        assert "lease lost" not in calls
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_shard_ended_is_called_until_it_checkpoints() -> None:
    """A class that does not checkpoint keeps the children waiting, as in Java, and each failure is reported."""

    class Forgetful(RecordingProcessor):
        async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            self.calls.append("shard ended")
            if self.calls.count("shard ended") == 2:
                raise ValueError("not yet")
            if self.calls.count("shard ended") == 4:
                await shard_ended_input.checkpointer.checkpoint()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        handler, calls = recording_handler(Forgetful)
        worker = start(world, handler)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert calls.count("shard ended") == 4
        assert [event.error for event in worker.events_of(HandlerFailed)] == [
            "CheckpointRejectedError",
            "ValueError",
            "CheckpointRejectedError",
        ]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_lost_lease() -> None:
    """If another member takes the shard, only lease_lost is called, and the checkpointer raises LeaseLostError."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        calls: list[str] = []
        made: list[RecordingProcessor] = []

        def make() -> RecordingProcessor:
            made.append(RecordingProcessor(calls))
            return made[-1]

        worker = start(world, ProcessorHandler(make))
        await world.until(lambda: calls[-1:] == ["records a"])
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        await world.until(lambda: calls[-1] == "lease lost")
        assert calls == ["initialize TRIM_HORIZON", "records a", "lease lost"]
        assert made[0].checkpointer is not None
        with pytest.raises(LeaseLostError):
            await made[0].checkpointer.checkpoint()
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_initialize_is_called_until_it_succeeds() -> None:
    """As in the KCL, no record is delivered before that."""

    class Slow(RecordingProcessor):
        async def initialize(self, initialize_input: InitializeInput) -> None:
            await super().initialize(initialize_input)
            if len(self.calls) < 3:
                raise ConnectionError("not ready")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        handler, calls = recording_handler(Slow)
        worker = start(world, handler)
        await world.until(lambda: calls[-1:] == ["records a"])
        assert calls == ["initialize TRIM_HORIZON"] * 3 + ["records a"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_does_not_wait_for_an_initialize_that_fails() -> None:
    """Unlike in Java, the worker stops. As in Java, the processor gets lease_lost."""

    class Broken(RecordingProcessor):
        async def initialize(self, initialize_input: InitializeInput) -> None:
            self.calls.append("initialize")
            raise ConnectionError("never")

    async def scenario() -> None:
        world = WorkerWorld()
        handler, calls = recording_handler(Broken)
        worker = start(world, handler)
        await world.until(lambda: len(calls) > 3)
        await worker.stop_and_wait()
        assert worker.events_of(LeaseReleased)
        assert calls[-2:] == ["shutdown requested", "lease lost"]

    run_in_virtual_time(scenario())


def test_failed_records_are_not_skipped() -> None:
    """A failed batch is retried. Only poison records are dead-lettered."""

    class Picky(RecordingProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if b"b" in [record.data for record in process_records_input.records]:
                raise ValueError("no b, please")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        handler, calls = recording_handler(Picky)
        worker = start(world, handler, max_records=4, retries=1, dead_letters="memory")
        await world.until(lambda: calls[-1:] == ["records cd"])
        assert calls[1:] == [f"records {given}" for given in ("abcd", "abcd", "ab", "a", "b", "b", "cd")]
        assert len(worker.events_of(RecordDeadLettered)) == 1
        await worker.stop_and_wait()
        assert await world.checkpoint() == "d"

    run_in_virtual_time(scenario())


def test_a_checkpoint_without_arguments_never_covers_records_that_failed() -> None:
    """In Java, a checkpoint after a failed batch would pass it. Here it covers only batches that returned."""

    class Failing(RecordingProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if process_records_input.records[0].data == b"b":
                raise ValueError("for ever")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"ab")
        handler, calls = recording_handler(Failing)
        worker = start(world, handler, max_records=1)
        await world.until(lambda: calls.count("records b") > 3)
        await worker.stop_and_wait()
        assert calls[-2:] == ["shutdown requested", "lease lost"]
        assert await world.checkpoint() == "a"

    run_in_virtual_time(scenario())


def with_checkpointer(
    use: Callable[[WorkerWorld, ProcessRecordsInput], Any], *, records: str = "abcd"
) -> None:
    """Call `use` with the first batch, and raise its error."""
    failures: list[BaseException] = []
    used: list[bool] = []

    class User(RecordingProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            if not used:
                used.append(True)
                try:
                    await use(world_of[0], process_records_input)
                except BaseException as error:  # noqa: BLE001 - shown by the test
                    failures.append(error)

    world_of: list[WorkerWorld] = []

    async def scenario() -> None:
        world_of.append(WorkerWorld())
        world_of[0].put(*records)
        handler, _ = recording_handler(User)
        worker = start(world_of[0], handler)
        await world_of[0].until(lambda: bool(used))
        await world_of[0].clock.sleep_ms(1000)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
    for failure in failures:
        raise failure


def test_only_delivered_records_can_be_checkpointed() -> None:
    """By sequence number and sub-sequence number, neither beyond the delivered records nor backwards."""

    async def use(world: WorkerWorld, given: ProcessRecordsInput) -> None:
        first, second = given.records
        await given.checkpointer.checkpoint(first.sequence_number, first.sub_sequence_number)
        assert await world.checkpoint() == "a"
        with pytest.raises(CheckpointRejectedError):
            await given.checkpointer.checkpoint(str(int(second.sequence_number) + 1))
        with pytest.raises(CheckpointRejectedError):
            await given.checkpointer.checkpoint("1")
        await given.checkpointer.checkpoint()
        assert await world.checkpoint() == "b"

    with_checkpointer(use)


def test_the_next_owner_gets_a_prepared_checkpoint() -> None:
    """Its initialize gets position and state, and reading still starts at the checkpoint."""
    pending: list[tuple[Position | None, bytes | None]] = []

    class Preparing(RecordingProcessor):
        async def initialize(self, initialize_input: InitializeInput) -> None:
            pending.append((initialize_input.pending_checkpoint, initialize_input.pending_state))

        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if len(pending) == 1:
                await process_records_input.checkpointer.prepare_checkpoint(state=b"half done")
                await asyncio.Event().wait()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        handler, calls = recording_handler(Preparing)
        first = start(world, handler)
        await world.until(lambda: bool(calls))
        await world.clock.sleep_ms(100)
        first.task.cancel()
        second = start(world, handler)
        await world.until(lambda: calls[-1] == "records c")
        assert calls == ["records ab", "lease lost", "records ab", "records c"]
        assert pending[0] == (None, None)
        assert pending[1] == (Position(world.sequence_numbers[b"b"]), b"half done")
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_prepared_checkpoint_can_be_committed() -> None:
    """The second half stores the position that the first half prepared."""

    async def use(world: WorkerWorld, given: ProcessRecordsInput) -> None:
        first = given.records[0]
        prepared = await given.checkpointer.prepare_checkpoint(first.sequence_number, state=b"x")
        assert (await world.lease()).pin is not None
        assert await world.checkpoint() == "TRIM_HORIZON"
        await prepared.commit()
        assert (await world.lease()).pin is None
        assert await world.checkpoint() == "a"

    with_checkpointer(use)


def test_a_shard_that_waits_for_its_parents_gets_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the worker stops before the parents have ended, the child gets no processor, and the stop does not wait."""

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeldLease, "wait_for_parents", never)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        handler, calls = recording_handler()
        worker = start(world, handler)
        await world.until(lambda: bool(worker.events_of(LeaseTaken)))
        await worker.stop_and_wait()
        assert world.clock.now_ms() < 5_000
        assert calls == []
        assert worker.events_of(LeaseReleased)

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_can_be_stored_in_two_phases() -> None:
    """The first half names the last record, and the second stores SHARD_END."""

    class Preparing(RecordingProcessor):
        async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            prepared = await shard_ended_input.checkpointer.prepare_checkpoint(state=b"the end")
            await prepared.commit()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        handler, _ = recording_handler(Preparing)
        worker = start(world, handler)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_the_base_class_checkpoints_at_the_end_of_a_shard() -> None:
    """A class with only process_records works, plain or async."""

    class OnlyRecords(RecordProcessor):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            pass

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        worker = start(world, ProcessorHandler(OnlyRecords))
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
