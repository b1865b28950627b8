"""A failing handler is retried, poison records are found by bisecting, and the settings decide what happens to them."""

import asyncio
from itertools import count
from typing import Any

import pytest

from leasehold.config.values import duration
from leasehold.core.events import (
    BatchHandled,
    HandlerFailed,
    LeaseLost,
    LeaseReleased,
    OperationFailed,
    RecordDeadLettered,
    RecordSkipped,
)
from leasehold.core.position import TRIM_HORIZON
from leasehold.errors import (
    ConfigError,
    HandlerError,
    MalformedRowError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from leasehold.worker.dead_letters import DeadLetter
from tests.unit.worker.worker_world import SHARD, MemoryDeadLetters, RecordingHandler, WorkerWorld, texts


def test_a_failed_batch_is_retried_unchanged() -> None:
    """If the handler recovers within the retries, the batch is never bisected."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put(*range(3))

        async def third_time(batch: Batch) -> None:
            calls.append((batch.attempt, texts(batch)))
            if len(calls) < 3:
                raise ConnectionError("later")

        worker = world.start(third_time)
        await world.until(lambda: bool(worker.events_of(BatchHandled)))
        assert calls == [(attempt, ["0", "1", "2"]) for attempt in (1, 2, 3)]
        assert [event.error for event in worker.events_of(HandlerFailed)] == ["ConnectionError"] * 2
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_only_an_error_that_this_package_raised_is_reported_with_its_sentence() -> None:
    """The message of another error may contain a payload, also if it has a class of this package."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(1)

        async def fail_twice(batch: Batch) -> None:
            if batch.attempt == 1:
                duration("soon")
            if batch.attempt == 2:
                raise ConfigError("order 17")
            if batch.attempt == 3:
                raise ValueError("order 17")

        worker = world.start(fail_twice)
        await world.until(lambda: bool(worker.events_of(BatchHandled)))
        failures = [(event.error, event.reason) for event in worker.events_of(HandlerFailed)]
        (first, reason), *others = failures
        assert first == "ConfigError"
        assert "expected a duration" in reason
        assert others == [("ConfigError", ""), ("ValueError", "")]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_one_poison_record_is_dead_lettered_and_all_others_are_handled_once() -> None:
    """Bisecting finds exactly the poison record. Its letter has position, error and data, and the shard continues."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("700")
        world.put(*range(1000))
        worker = world.start(handler, max_records=1000, retries=2, dead_letters="memory")
        await world.until(lambda: len(handler.handled) == 999)
        assert handler.handled == [str(number) for number in range(1000) if number != 700]
        (letter,) = world.dead_letters.letters
        assert letter.record.data == b"700"
        assert letter.record.sequence_number == world.sequence_numbers[b"700"]
        assert (letter.stream, letter.shard, letter.application) == ("orders", SHARD, "billing")
        assert (letter.error_type, letter.error_message, letter.attempts) == (
            "ValueError",
            "cannot read this",
            3,
        )
        assert [event.error for event in worker.events_of(RecordDeadLettered)] == ["ValueError"]
        world.put("after")
        await world.until(lambda: handler.handled[-1] == "after")
        await worker.stop_and_wait()
        assert await world.checkpoint() == "after"

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("checkpoint", ["automatic", "manual"])
def test_a_record_whose_disposal_was_interrupted_is_only_a_dead_letter(
    is_stored: bool, checkpoint: str
) -> None:
    """The worker dies before or after it stored the letter. The next owner could handle the record, but must not."""

    async def scenario() -> None:
        world, first, second = WorkerWorld(), RecordingHandler("2"), RecordingHandler()
        world.put(*range(5))

        async def handle_and_checkpoint(batch: Batch) -> None:
            if is_stored and texts(batch)[0] == "3":
                await asyncio.Event().wait()
            await first(batch)
            await batch.checkpoint()

        world.dead_letters.failures = 0 if is_stored else 1_000_000
        options = {"checkpoint": checkpoint, "dead_letters": "memory", "checkpoint_every": "1h"}
        dying = world.start(handle_and_checkpoint, retries=1, max_records=5, max_wait="1m", **options)
        ends = RecordDeadLettered if is_stored else OperationFailed
        await world.until(lambda: bool(dying.events_of(ends)), within_s=180)
        dying.task.cancel()
        world.dead_letters.failures = 0
        next_owner = world.start(second, **options)
        await world.until(lambda: second.handled == ["3", "4"], within_s=180)
        letters = world.dead_letters.letters
        assert {letter.record.data for letter in letters} == {b"2"}
        assert (letters[-1].error_type, letters[-1].attempts) == ("ValueError", 2)
        assert letters[-1].error_message.startswith("unknown")
        await next_owner.stop_and_wait()

    run_in_virtual_time(scenario())


def test_an_interrupted_disposal_is_dropped_by_a_worker_without_dead_letters() -> None:
    """The operator has removed the dead letters: the handler gets the record, as one that nobody has prepared."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("0")
        world.put(*range(2))
        world.dead_letters.failures = 1_000_000
        dying = world.start(handler, retries=0, max_records=2, max_wait="1m", dead_letters="memory")
        await world.until(lambda: bool(dying.events_of(OperationFailed)), within_s=180)
        dying.task.cancel()
        pending = []

        async def skip(batch: Batch) -> None:
            pending.append(batch.pending)
            await handler(batch)

        worker = world.start(skip, retries=0, on_poison="skip")
        await world.until(lambda: handler.handled == ["1"], within_s=180)
        assert pending == [None, None]
        assert len(worker.events_of(RecordSkipped)) == 1
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_records_that_are_not_checkpointed_stay_so_when_a_later_one_is_disposed_of() -> None:
    """With manual checkpoints only user code moves the checkpoint."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("2")
        world.put(*range(4))
        worker = world.start(
            handler,
            retries=0,
            max_records=4,
            max_wait="1m",
            checkpoint="manual",
            dead_letters="memory",
        )
        await world.until(lambda: handler.handled == ["0", "1", "3"], within_s=180)
        lease = await world.lease()
        assert (lease.checkpoint, lease.pin) == (TRIM_HORIZON, None)
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_an_error_without_a_message_does_not_prevent_the_dead_letter() -> None:
    """If `str` of the error raises, the letter contains the name of its type, and the shard continues."""

    class MessagelessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no message")

    async def scenario() -> None:
        world, handled = WorkerWorld(), list[str]()
        world.put("a", "bad", "b")

        async def handle(batch: Batch) -> None:
            if "bad" in texts(batch):
                raise MessagelessError
            handled.extend(texts(batch))

        worker = world.start(handle, retries=0, dead_letters="memory")
        await world.until(lambda: handled == ["a", "b"])
        (letter,) = world.dead_letters.letters
        assert (letter.error_type, letter.error_message) == ("MessagelessError", "MessagelessError")
        await worker.stop_and_wait()
        assert await world.checkpoint() == "b"

    run_in_virtual_time(scenario())


def test_the_search_for_poison_delivers_nothing_twice_that_succeeded() -> None:
    """Eight records with one poison record and one retry: the whole batch twice, then halves."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("5")
        world.put(*range(8))
        worker = world.start(handler, max_records=8, retries=1, dead_letters="memory")
        await world.until(lambda: len(handler.handled) == 7)
        whole = [str(number) for number in range(8)]
        assert handler.calls == [
            whole, whole,
            ["0", "1", "2", "3"],
            ["4", "5", "6", "7"],
            ["4", "5"], ["4"], ["5"], ["5"],
            ["6", "7"],
        ]  # fmt: skip
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_records_before_a_held_poison_record_are_stored() -> None:
    """While the shard is held at a poison record, everything before it is done and stored."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("6")
        world.put(*range(8))
        worker = world.start(handler, max_records=8, retries=0)
        await world.clock.sleep_ms(3_600_000)
        assert handler.handled == ["0", "1", "2", "3", "4", "5"]
        assert await world.checkpoint() == "5"
        assert len([call for call in handler.calls if call == ["6"]]) > 100  # held, and retried
        assert not worker.events_of(LeaseLost)
        handler.poison.clear()
        await world.until(lambda: handler.handled == [str(number) for number in range(8)])
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_skipped_record_is_reported() -> None:
    """With on_poison="skip" the shard continues without the record, and an event names it."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("1")
        world.put(*range(3))
        worker = world.start(handler, retries=0, on_poison="skip")
        await world.until(lambda: handler.handled == ["0", "2"])
        (skipped,) = worker.events_of(RecordSkipped)
        assert skipped.position.sequence_number == world.sequence_numbers[b"1"]
        await worker.stop_and_wait()
        assert await world.checkpoint() == "2"

    run_in_virtual_time(scenario())


def test_stop_shard_releases_the_shard_and_serves_the_others() -> None:
    """Everything before the poison record is stored. The next attempt starts there, after the cooldown."""

    async def scenario() -> None:
        world, handler = WorkerWorld(shards=2), RecordingHandler("bad")
        world.put("old", "good", "bad", "never", shard=0)
        world.put("other", shard=1)
        worker = world.start(
            handler,
            max_records=1,
            retries=1,
            on_poison="stop_shard",
            cooldown_after_failure="30s",
            checkpoint_every="1h",
        )
        await world.until(lambda: "other" in handler.handled and bool(worker.events_of(LeaseReleased)))
        assert await world.checkpoint() == "good"
        assert (await world.lease()).owner is None
        assert "never" not in handler.handled
        before = len(handler.calls)
        await world.clock.sleep_ms(25_000)
        assert len(handler.calls) == before
        await world.until(lambda: len(handler.calls) > before, within_s=20)
        assert handler.calls[-1] == ["bad"]
        assert await worker.stop_and_wait() is None

    run_in_virtual_time(scenario())


def test_a_letter_that_is_stored_during_a_stop_is_checkpointed() -> None:
    """The last record of a batch is poison, and the worker is stopped while its letter is stored. It is stored once."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("bad")
        world.put("good", "bad")

        class StoppingLetters(MemoryDeadLetters):
            async def put(self, letter: DeadLetter) -> None:
                worker.stop.set()
                await asyncio.sleep(1)
                await super().put(letter)

        world.dead_letters = StoppingLetters()
        worker = world.start(handler, retries=0, dead_letters="memory")
        assert await worker.task is None
        assert await world.checkpoint() == "bad"
        (lease,) = (await world.table.list()).leases
        assert (lease.owner, lease.pin) == (None, None)

    run_in_virtual_time(scenario())


def test_stop_worker_drains_all_shards_and_returns_the_reason() -> None:
    """The error names shard and record and has the handler's error as its cause. All leases are released."""

    async def scenario() -> None:
        world, handler = WorkerWorld(shards=2), RecordingHandler("bad")
        world.put("good", "bad", shard=0)
        world.put("other", shard=1)
        worker = world.start(handler, retries=1, on_poison="stop_worker")
        reason = await worker.task
        assert isinstance(reason, HandlerError)
        assert isinstance(reason.__cause__, ValueError)
        assert world.sequence_numbers[b"bad"] in str(reason)
        assert "cannot read this" not in str(reason)
        assert await world.checkpoint() == "good"
        leases = (await world.table.list()).leases
        assert [lease.owner for lease in leases] == [None, None]

    run_in_virtual_time(scenario())


def test_a_handler_that_exits_the_program_stops_the_worker() -> None:
    """`sys.exit(3)` in a handler is not retried: the worker releases everything and passes it on."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("x")

        async def exit_program(batch: Batch) -> None:
            raise SystemExit(3)

        worker = world.start(exit_program)
        reason = await worker.task
        assert isinstance(reason, SystemExit)
        assert reason.code == 3
        assert (await world.lease()).owner is None
        assert await world.checkpoint() == "TRIM_HORIZON"

    run_in_virtual_time(scenario())


def test_without_bisecting_the_whole_batch_is_dead_lettered() -> None:
    """With bisect=False no record of the failed batch is lost, and none is handled."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("1")
        world.put(*range(3))
        worker = world.start(handler, max_records=3, retries=1, bisect=False, dead_letters="memory")
        await world.until(lambda: len(worker.events_of(RecordDeadLettered)) == 3)
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"0", b"1", b"2"]
        assert len(handler.calls) == 2
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_a_dead_letter_that_cannot_be_stored_holds_the_shard() -> None:
    """A dead letter is retried until it is stored. Meanwhile no record is passed over, and failures are reported."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("0")
        world.put(*range(2))
        world.dead_letters.failures = 5
        worker = world.start(handler, max_records=1, retries=0, dead_letters="memory")
        await world.until(lambda: handler.handled == ["1"])
        assert len(worker.events_of(OperationFailed)) == 5
        assert [letter.record.data for letter in world.dead_letters.letters] == [b"0"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("max_records", [1, 3])
def test_a_stop_does_not_pass_a_record_whose_dead_letter_cannot_be_stored(max_records: int) -> None:
    """The lease is released before the record, so the next owner reads it again."""

    async def scenario() -> None:
        world, handler = WorkerWorld(), RecordingHandler("2")
        world.put(*range(3))
        world.dead_letters.failures = 1_000
        worker = world.start(handler, max_records=max_records, retries=0, dead_letters="memory")
        await world.until(lambda: bool(worker.events_of(OperationFailed)))
        await worker.stop_and_wait()
        assert (handler.handled, await world.checkpoint()) == (["0", "1"], "1")
        assert not worker.events_of(RecordDeadLettered)

    run_in_virtual_time(scenario())


def test_dead_letters_may_go_to_a_function() -> None:
    """The function gets the letter with its record. If it raises, it is called again."""

    async def scenario() -> None:
        world, handler, taken = WorkerWorld(), RecordingHandler("1"), []
        world.put(*range(3))

        async def store(letter: Any) -> None:
            taken.append(letter.record.data)
            if len(taken) == 1:
                raise ConnectionError("again, please")

        worker = world.start(handler, retries=0, dead_letters=store)
        await world.until(lambda: handler.handled == ["0", "2"])
        assert taken == [b"1", b"1"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_no_event_contains_the_message_of_a_handlers_error() -> None:
    """The message may contain a payload. Events contain only the type of the error."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("secret")

        async def raise_payload(batch: Batch) -> None:
            raise ValueError(batch.records[0].data)

        worker = world.start(raise_payload, retries=1, on_poison="stop_worker")
        await worker.task
        assert worker.events_of(HandlerFailed)
        assert not [event for event in worker.events if "secret" in repr(event)]

    run_in_virtual_time(scenario())


def test_an_error_of_the_lease_table_dead_letters_no_record() -> None:
    """A row that cannot be written while a handler checkpoints says nothing about the records."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), count()
        world.put("sound")

        async def checkpointing(batch: Batch) -> None:
            if next(calls) == 0:
                raise MalformedRowError(batch.shard, "leaseCounter: expected an integer")

        worker = world.start(checkpointing, retries=0, dead_letters="memory", cooldown_after_failure=1)
        await world.until(lambda: bool(worker.events_of(BatchHandled)))
        assert world.dead_letters.letters == []
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


SERVICE_ERRORS = (ServiceError("AccessDenied"), ThrottledError("slow down"), UnavailableError("no response"))


class SlowDeadLetters(MemoryDeadLetters):
    """Stores a dead letter only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = asyncio.Event()
        self.allowed = asyncio.Event()

    async def put(self, letter: DeadLetter) -> None:
        self.requested.set()
        await self.allowed.wait()
        await super().put(letter)


def test_nothing_passes_a_poison_record_before_its_dead_letter_is_stored() -> None:
    """If the process died now, the next owner would have to read the record again."""

    async def scenario() -> None:
        letters = SlowDeadLetters()
        world, handler = WorkerWorld(dead_letters=letters), RecordingHandler("1")
        world.put(*range(4))
        worker = world.start(handler, retries=0, dead_letters="memory", checkpoint_every="100ms")
        await letters.requested.wait()
        await world.clock.sleep_ms(5_000)
        assert (handler.handled, await world.checkpoint()) == (["0"], "0")
        assert not worker.events_of(RecordDeadLettered)
        letters.allowed.set()
        await world.until(lambda: handler.handled == ["0", "2", "3"])
        await worker.stop_and_wait()
        assert (await world.checkpoint(), len(letters.letters)) == ("3", 1)

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("error", SERVICE_ERRORS)
def test_a_failed_service_call_in_a_handler_is_not_blamed_on_the_records(error: ServiceError) -> None:
    """A manual checkpoint that DynamoDB refuses says nothing about the records: none becomes a dead letter."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []

        async def checkpoint_fails(batch: Batch) -> None:
            calls.append(texts(batch))
            if len(calls) < 4:
                raise error

        world.put(*range(3))
        worker = world.start(checkpoint_fails, retries=1, dead_letters="memory", cooldown_after_failure="1s")
        await world.until(lambda: bool(worker.events_of(BatchHandled)))
        assert calls == [["0", "1", "2"]] * 4
        assert world.dead_letters.letters == []
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
