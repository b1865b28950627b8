"""A record processor of the MultiLang kind gets its shard as from a Java daemon, and alone moves the checkpoint."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold.core.events import (
    HandlerFailed,
    LeaseLost,
    LeaseReleased,
    LeaseTaken,
    ShardEnded,
    WorkerFailed,
)
from leasehold.core.multilang.messages import (
    Action,
    ActionName,
    CheckpointRequest,
    Initialize,
    ProcessRecords,
)
from leasehold.core.position import SHARD_END
from leasehold.errors import ProcessorEndedError
from leasehold.multilang.processor_client import ExecuteCheckpoint, ProcessorClient, ProcessorClients
from leasehold.multilang.shard_consumer import MultiLangHandler
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.delivery.served_shard import ServedShard
from tests.unit.worker.worker_world import LEFT, RIGHT, RunningWorker, WorkerWorld

# What a processor does during an action: it gets the action and a function that requests a checkpoint.
Checkpoint = Callable[..., Awaitable[str | None]]
Behaviour = Callable[[Action, Checkpoint], Awaitable[None]]


async def checkpoint_always(action: Action, checkpoint: Checkpoint) -> None:
    """Checkpoints wherever it is allowed."""
    if action.name not in {ActionName.INITIALIZE, ActionName.LEASE_LOST}:
        assert await checkpoint() is None


class MemoryProcessors(ProcessorClients):
    """Processors in memory, which record every action of all shards."""

    def __init__(self, behave: Behaviour = checkpoint_always) -> None:
        self.behave = behave
        self.calls: list[str] = []
        self.is_closed = False

    def __call__(self, shard: ServedShard, execute: ExecuteCheckpoint) -> ProcessorClient:
        """Make the processor of a shard."""
        return MemoryProcessor(self, execute)

    async def close(self) -> None:
        """Record that the worker has ended."""
        self.is_closed = True


class MemoryProcessor(ProcessorClient):
    """One processor."""

    def __init__(self, all_of_them: MemoryProcessors, execute: ExecuteCheckpoint) -> None:
        self.all = all_of_them
        self.execute = execute

    async def start(self) -> None:
        self.all.calls.append("start")

    async def perform(self, action: Action) -> None:
        self.all.calls.append(describe(action))

        async def checkpoint(number: str | None = None) -> str | None:
            return await self.execute(CheckpointRequest(number), action.name)

        await self.all.behave(action, checkpoint)

    def end(self) -> None:
        self.all.calls.append("end")

    def lose(self) -> None:
        self.all.calls.append("lose")


def describe(action: Action) -> str:
    match action:
        case Initialize(_, checkpoint):
            return f"initialize {checkpoint.sequence_number[-3:]}"
        case ProcessRecords(records):
            return "records " + "".join(record.data.decode() for record in records)
        case _:
            return action.name.value


def start(world: WorkerWorld, clients: MemoryProcessors, **options: Any) -> RunningWorker:
    is_handler = {
        name: options.pop(name) for name in ("with_empty_batches", "stop_at_failure") if name in options
    }
    handler = MultiLangHandler(clients=clients, **is_handler)
    given = {
        "checkpoint": "manual",
        "max_records": 2,
        "max_wait": 0,
        "cooldown_after_failure": "1s",
        **options,
    }
    return world.start(handler, **given)


def test_a_stop() -> None:
    """The last action ends, then shutdownRequested, whose checkpoint is stored, then leaseLost and the end."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        clients = MemoryProcessors()
        worker = start(world, clients)
        await world.until(lambda: clients.calls[-1:] == ["records c"])
        await worker.stop_and_wait()
        assert clients.calls == [
            "start", "initialize ZON", "records ab", "records c", "shutdownRequested", "leaseLost", "end",
        ]  # fmt: skip
        assert await world.checkpoint() == "c"
        assert clients.is_closed

    run_in_virtual_time(scenario())


def test_only_the_processor_moves_the_checkpoint() -> None:
    """Without its request nothing is stored, not even at a stop."""

    async def never(action: Action, checkpoint: Checkpoint) -> None:
        pass

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abc")
        clients = MemoryProcessors(never)
        worker = start(world, clients)
        await world.until(lambda: clients.calls[-1:] == ["records c"])
        await world.clock.sleep_ms(60_000)
        await worker.stop_and_wait()
        assert await world.checkpoint() == "TRIM_HORIZON"

    run_in_virtual_time(scenario())


def test_a_number_before_all_records_of_the_shard_is_not_stored() -> None:
    """It is of another shard, or invented. The next owner would take it for a sign that the stream was recreated."""
    errors: list[str | None] = []

    async def mistaken(action: Action, checkpoint: Checkpoint) -> None:
        if isinstance(action, ProcessRecords):
            first = action.records[0].sequence_number
            errors.extend(
                [await checkpoint("1"), await checkpoint(str(int(first) - 1)), await checkpoint(first)]
            )

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"ab")
        worker = start(world, MemoryProcessors(mistaken))
        await world.until(lambda: len(errors) == 3)
        assert errors == ["IllegalArgumentException", "IllegalArgumentException", None]
        assert await world.checkpoint() == "a"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_is_sent_until_it_is_stored() -> None:
    """A client may swallow the error of its checkpoint. Then its children wait only until the next attempt."""

    async def forgetful(action: Action, checkpoint: Checkpoint) -> None:
        if action.name is ActionName.SHARD_ENDED and clients.calls.count("shardEnded") == 3:
            assert await checkpoint() is None
            assert await checkpoint() is None

    clients = MemoryProcessors(forgetful)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        world.split()
        worker = start(world, clients)
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        assert clients.calls[:7] == [
            "start", "initialize ZON", "records a", "shardEnded", "shardEnded", "shardEnded", "end",
        ]  # fmt: skip
        assert [event.error for event in worker.events_of(HandlerFailed)] == ["NoCheckpoint"] * 2
        assert (await world.lease()).checkpoint == SHARD_END
        await world.until(lambda: clients.calls.count("initialize ZON") == 3)
        assert {each.shard for each in worker.events_of(LeaseTaken)} >= {LEFT, RIGHT}
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_processor_that_fails_begins_again_from_its_checkpoint() -> None:
    """The shard is released and taken again; a new processor gets what the old one has not checkpointed."""

    async def fails_once(action: Action, checkpoint: Checkpoint) -> None:
        if clients.calls[-1] == "records ab":
            await checkpoint()
        if clients.calls.count("records cd") == 1 and clients.calls[-1] == "records cd":
            raise ProcessorEndedError("killed")

    clients = MemoryProcessors(fails_once)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        worker = start(world, clients)
        await world.until(lambda: clients.calls.count("records cd") == 2)
        number = world.sequence_numbers[b"b"][-3:]
        assert clients.calls == [
            "start", "initialize ZON", "records ab", "records cd", "lose",
            "start", f"initialize {number}", "records cd",
        ]  # fmt: skip
        assert worker.events_of(LeaseReleased)
        assert await worker.stop_and_wait() is None

    run_in_virtual_time(scenario())


def test_a_processor_that_fails_may_stop_the_worker() -> None:
    """As it stops the Java daemon, but the other shards are drained."""

    async def fails(action: Action, checkpoint: Checkpoint) -> None:
        if clients.calls[-1] == "records x":
            raise ProcessorEndedError("killed")

    clients = MemoryProcessors(fails)

    async def scenario() -> None:
        world = WorkerWorld(shards=2)
        world.put("a", shard=0)
        worker = start(world, clients, stop_at_failure=True)
        await world.until(lambda: clients.calls.count("initialize ZON") == 2 and "records a" in clients.calls)
        world.put("x", shard=1)
        reason = await worker.task
        assert isinstance(reason, ProcessorEndedError)
        assert worker.events_of(WorkerFailed)
        assert clients.calls[-3:] == ["shutdownRequested", "leaseLost", "end"]

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("with_empty_batches", [False, True])
def test_empty_reads_are_delivered_if_asked_for(*, with_empty_batches: bool) -> None:
    """callProcessRecordsEvenForEmptyRecordList: clients flush by time in such calls."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        clients = MemoryProcessors()
        worker = start(world, clients, with_empty_batches=with_empty_batches)
        await world.until(lambda: "records a" in clients.calls)
        await world.clock.sleep_ms(10_000)
        assert (clients.calls.count("records ") >= 5) is with_empty_batches
        assert await world.checkpoint() == "a"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_lost_lease() -> None:
    """The processor is told, and its checkpoints get the KCL's error."""
    requests: list[Checkpoint] = []

    async def keeps(action: Action, checkpoint: Checkpoint) -> None:
        requests.append(checkpoint)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        clients = MemoryProcessors(keeps)
        worker = start(world, clients)
        await world.until(lambda: clients.calls[-1:] == ["records a"])
        await world.steal_lease()
        await world.until(lambda: bool(worker.events_of(LeaseLost)) and clients.calls[-1] == "lose")
        assert await requests[-1]() == "ShutdownException"
        assert await requests[0]() == "InvalidStateException"
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_stop_while_a_processor_hangs_ends_within_the_grace_period() -> None:
    """Its shard is abandoned."""

    async def hangs(action: Action, checkpoint: Checkpoint) -> None:
        if action.name is ActionName.PROCESS_RECORDS:
            await asyncio.Event().wait()

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("a")
        clients = MemoryProcessors(hangs)
        worker = start(world, clients, grace="10s")
        await world.until(lambda: clients.calls[-1:] == ["records a"])
        began_ms = world.clock.now_ms()
        await worker.stop_and_wait()
        assert world.clock.now_ms() - began_ms <= 10_000
        assert clients.calls[-1] == "lose"

    run_in_virtual_time(scenario())
