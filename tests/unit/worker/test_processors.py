"""The KCL's life-cycle class: the callbacks of Java, in Java's order, without its skipping."""

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


class Diary(RecordProcessor):
    """Writes down every call, for all shards together."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.checkpointer: Checkpointer | None = None

    async def initialize(self, initialize_input: InitializeInput) -> None:
        self.lines.append(f"initialize {initialize_input.sequence_number[:12]}")

    async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
        self.checkpointer = process_records_input.checkpointer
        self.lines.append(
            "records " + "".join(record.data.decode() for record in process_records_input.records)
        )

    async def lease_lost(self, lease_lost_input: LeaseLostInput) -> None:
        self.lines.append("lease lost")

    async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
        self.lines.append("shard ended")
        await shard_ended_input.checkpointer.checkpoint()

    async def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput) -> None:
        self.lines.append("shutdown requested")
        await shutdown_requested_input.checkpointer.checkpoint()


def diary(kind: type[Diary] = Diary) -> tuple[ProcessorHandler, list[str]]:
    lines: list[str] = []
    return ProcessorHandler(lambda: kind(lines)), lines


def start(world: WorkerWorld, form: ProcessorHandler, **options: Any) -> RunningWorker:
    return world.start(form, **{"checkpoint": "manual", "max_records": 2, **options})


def test_after_a_pause_of_the_process_no_more_records_come() -> None:
    """Whoever wakes up after its lease ran out is told that it is lost, and is given nothing before that."""

    class Sleeper(Diary):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if self.lines[-1] == "records cd":
                pause_process(60)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcdef")
        form, lines = diary(Sleeper)
        worker = start(world, form, cooldown_after_failure="1h")
        await world.until(lambda: lines[-1:] == ["lease lost"], within_s=120)
        assert lines == ["initialize TRIM_HORIZON", "records ab", "records cd", "lease lost"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_graceful_stop() -> None:
    """Records, then shutdown requested (which checkpoints), then lease lost; the row says what was delivered."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        form, lines = diary()
        worker = start(world, form)
        await world.until(lambda: lines[-1:] == ["records c"])
        await world.clock.sleep_ms(60_000)
        assert await world.checkpoint() == "TRIM_HORIZON"  # nobody but the class checkpoints
        await worker.stop_and_wait()
        assert lines == [
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
    """Its last records, then shard ended, whose checkpoint stores SHARD_END and lets the children begin."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        world.split()
        form, lines = diary()
        worker = start(world, form)
        await world.until(lambda: lines.count("initialize TRIM_HORIZON") == 3)
        assert lines[:4] == ["initialize TRIM_HORIZON", "records ab", "records c", "shard ended"]
        assert "lease lost" not in lines
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_shard_ended_is_called_until_it_checkpoints() -> None:
    """A class that forgets keeps the children waiting, and it is told; Java's rule, never done on its behalf."""

    class Forgetful(Diary):
        async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            self.lines.append("shard ended")
            if self.lines.count("shard ended") == 2:
                raise ValueError("not yet")
            if self.lines.count("shard ended") == 4:
                await shard_ended_input.checkpointer.checkpoint()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        form, lines = diary(Forgetful)
        worker = start(world, form)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert lines.count("shard ended") == 4
        assert [event.error for event in worker.events_of(HandlerFailed)] == [
            "CheckpointRejectedError",
            "ValueError",
            "CheckpointRejectedError",
        ]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_lost_lease() -> None:
    """Someone took the shard: lease lost and nothing else, and a kept checkpointer is of no use any more."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        lines: list[str] = []
        made: list[Diary] = []

        def make() -> Diary:
            made.append(Diary(lines))
            return made[-1]

        worker = start(world, ProcessorHandler(make))
        await world.until(lambda: lines[-1:] == ["records a"])
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)))
        await world.until(lambda: lines[-1] == "lease lost")
        assert lines == ["initialize TRIM_HORIZON", "records a", "lease lost"]
        assert made[0].checkpointer is not None
        with pytest.raises(LeaseLostError):
            await made[0].checkpointer.checkpoint()
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_initialize_is_called_until_it_succeeds() -> None:
    """As in the KCL; no record is delivered before."""

    class Slow(Diary):
        async def initialize(self, initialize_input: InitializeInput) -> None:
            await super().initialize(initialize_input)
            if len(self.lines) < 3:
                raise ConnectionError("not ready")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        form, lines = diary(Slow)
        worker = start(world, form)
        await world.until(lambda: lines[-1:] == ["records a"])
        assert lines == ["initialize TRIM_HORIZON"] * 3 + ["records a"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_goes_before_an_initialize_that_never_succeeds() -> None:
    """Unlike in Java: the worker stops. What was never initialized is told that its lease is lost, as in Java."""

    class Broken(Diary):
        async def initialize(self, initialize_input: InitializeInput) -> None:
            self.lines.append("initialize")
            raise ConnectionError("never")

    async def scenario() -> None:
        world = WorkerWorld()
        form, lines = diary(Broken)
        worker = start(world, form)
        await world.until(lambda: len(lines) > 3)
        await worker.stop_and_wait()
        assert worker.events_of(LeaseReleased)
        assert lines[-2:] == ["shutdown requested", "lease lost"]

    run_in_virtual_time(scenario())


def test_records_on_which_it_raises_are_not_skipped() -> None:
    """The batch comes again; what can never be handled goes where the settings say, and only that."""

    class Picky(Diary):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if b"b" in [record.data for record in process_records_input.records]:
                raise ValueError("no b, please")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        form, lines = diary(Picky)
        worker = start(world, form, max_records=4, retries=1, dead_letters="memory")
        await world.until(lambda: lines[-1:] == ["records cd"])
        assert lines[1:] == [f"records {given}" for given in ("abcd", "abcd", "ab", "a", "b", "b", "cd")]
        assert len(worker.events_of(RecordDeadLettered)) == 1
        await worker.stop_and_wait()
        assert await world.checkpoint() == "d"

    run_in_virtual_time(scenario())


def test_a_checkpoint_without_arguments_never_covers_records_that_failed() -> None:
    """Java's trap: after a failed batch, "everything delivered" would pass over it. Here it is what has returned."""

    class Failing(Diary):
        async def process_records(self, process_records_input: ProcessRecordsInput) -> None:
            await super().process_records(process_records_input)
            if process_records_input.records[0].data == b"b":
                raise ValueError("for ever")

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"ab")
        form, lines = diary(Failing)
        worker = start(world, form, max_records=1)
        await world.until(lambda: lines.count("records b") > 3)
        await worker.stop_and_wait()
        assert lines[-2:] == ["shutdown requested", "lease lost"]
        assert await world.checkpoint() == "a"

    run_in_virtual_time(scenario())


def with_checkpointer(
    use: Callable[[WorkerWorld, ProcessRecordsInput], Any], *, records: str = "abcd"
) -> None:
    """Call `use` with the first batch, and let what it raises through."""
    failures: list[BaseException] = []
    used: list[bool] = []

    class User(Diary):
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
        form, _ = diary(User)
        worker = start(world_of[0], form)
        await world_of[0].until(lambda: bool(used))
        await world_of[0].clock.sleep_ms(1000)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
    for failure in failures:
        raise failure


def test_a_checkpoint_names_a_record_that_was_delivered() -> None:
    """By sequence number and sub-sequence number; neither beyond what was delivered nor backwards."""

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


def test_a_prepared_checkpoint_is_found_by_the_next_owner() -> None:
    """Its initialize gets position and state; reading still begins at the checkpoint."""
    pending: list[tuple[Position | None, bytes | None]] = []

    class Preparing(Diary):
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
        form, lines = diary(Preparing)
        first = start(world, form)
        await world.until(lambda: bool(lines))
        await world.clock.sleep_ms(100)
        first.task.cancel()
        second = start(world, form)
        await world.until(lambda: lines[-1] == "records c")
        assert lines == ["records ab", "lease lost", "records ab", "records c"]
        assert pending[0] == (None, None)
        assert pending[1] == (Position(world.sequence_numbers[b"b"]), b"half done")
        await second.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_prepared_checkpoint_can_be_committed() -> None:
    """The second half stores the position that the first half announced."""

    async def use(world: WorkerWorld, given: ProcessRecordsInput) -> None:
        first = given.records[0]
        prepared = await given.checkpointer.prepare_checkpoint(first.sequence_number, state=b"x")
        assert (await world.lease()).pin is not None
        assert await world.checkpoint() == "TRIM_HORIZON"
        await prepared.commit()
        assert (await world.lease()).pin is None
        assert await world.checkpoint() == "a"

    with_checkpointer(use)


def test_a_shard_that_waits_for_its_parents_is_not_told_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before its parents have ended, the object of a child is never made, and nobody waits for them."""

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeldLease, "wait_for_parents", never)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        form, lines = diary()
        worker = start(world, form)
        await world.until(lambda: bool(worker.events_of(LeaseTaken)))
        await worker.stop_and_wait()
        assert world.clock.now_ms() < 5_000
        assert lines == []
        assert worker.events_of(LeaseReleased)

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_can_be_stored_in_two_phases() -> None:
    """The first half names the last record, the second stores SHARD_END."""

    class Preparing(Diary):
        async def shard_ended(self, shard_ended_input: ShardEndedInput) -> None:
            prepared = await shard_ended_input.checkpointer.prepare_checkpoint(state=b"the end")
            await prepared.commit()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        form, _ = diary(Preparing)
        worker = start(world, form)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_the_base_class_checkpoints_at_the_end_of_a_shard() -> None:
    """A class that only processes records works as it is, async or plain."""

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
