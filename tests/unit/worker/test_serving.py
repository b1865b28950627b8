"""A shard is served from its first record to its end: in order, nothing skipped, nothing stored before it is done."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from typing import Any

import pytest

from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    DeaggregationFailed,
    GapFound,
    HandlerFailed,
    LeaseLost,
    LeaseReleased,
    OperationFailed,
    RecordDeadLettered,
    RecordSkipped,
    ShardEnded,
    ShardStalled,
)
from leasehold.core.model import ShardId
from leasehold.core.position import SHARD_END, Position
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.errors import CheckpointRejectedError, HandlerError, LeaseLostError, MalformedRowError
from leasehold.fleet.held_lease import HeldLease
from leasehold.kinesis_model.writing import PutRequest
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import SHARD, WorkerWorld, pause_process

LEFT, RIGHT = ShardId("shardId-000000000001"), ShardId("shardId-000000000002")


def texts(batch: Batch) -> list[str]:
    return [record.data.decode() for record in batch]


class Notebook:
    """A handler that writes down what it was given, and fails on some."""

    def __init__(self, *poison: str) -> None:
        self.poison = set(poison)
        self.calls: list[list[str]] = []
        self.handled: list[str] = []

    async def __call__(self, batch: Batch) -> None:
        given = texts(batch)
        self.calls.append(given)
        if self.poison & set(given):
            raise ValueError("cannot read this")
        self.handled += given


def test_every_record_is_handled_once_and_in_order() -> None:
    """A thousand records arrive in batches of at most the size asked for, none twice, none out of order."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put(*range(1000))
        worker = world.start(notes, max_records=64)
        await world.until(lambda: len(notes.handled) >= 1000)
        await worker.stopped()
        assert notes.handled == [str(number) for number in range(1000)]
        assert max(map(len, notes.calls)) == 64
        assert await world.checkpoint() == "999"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_checkpoint_follows_the_handler_within_the_interval() -> None:
    """What is done is stored, five seconds later at most, though nothing else happens in the shard."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put("first")
        worker = world.start(notes, max_wait=0)
        await world.until(lambda: len(worker.told(Checkpointed)) == 1)  # the first one is stored at once
        world.put("second")
        await world.until(lambda: notes.handled == ["first", "second"])
        assert await world.checkpoint() == "first"
        await world.until(lambda: len(worker.told(Checkpointed)) == 2, within_s=6)
        assert await world.checkpoint() == "second"
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_what_is_done_is_stored_while_the_next_batch_takes_long() -> None:
    """A handler that hangs on the second batch does not keep the first from being stored."""

    async def scenario() -> None:
        world, release = WorkerWorld(), asyncio.Event()
        world.put("old", "first", "second")

        async def slow_on_second(batch: Batch) -> None:
            if texts(batch) == ["second"]:
                await release.wait()

        worker = world.start(slow_on_second, max_records=1)
        await world.until(lambda: len(worker.told(Checkpointed)) == 2)
        assert await world.checkpoint() == "first"
        release.set()
        await worker.stopped()

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({"checkpoint_every": 0}, ["0", "1", "2", "3", "4", "5"]),
        ({"checkpoint_every": "1h", "checkpoint_records": 2}, ["0", "2", "4"]),
        ({"checkpoint_every": "1h"}, ["0"]),
    ],
)
def test_checkpoints_come_after_every_batch_or_after_a_number_of_records(
    options: dict[str, Any], stored: list[str]
) -> None:
    """The settings decide; a shard without any checkpoint gets its first one at once."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put(*range(6))
        worker = world.start(notes, max_records=1, **options)
        await world.until(lambda: len(notes.handled) == 6)
        numbers = {number: data.decode() for data, number in world.sequence_numbers.items()}
        told = [numbers[event.position.sequence_number] for event in worker.told(Checkpointed)]
        assert told == stored
        await worker.stopped()
        assert await world.checkpoint() == "5"

    run_in_virtual_time(scenario())


def test_no_checkpoint_passes_an_unfinished_handler() -> None:
    """However long a batch takes, the table says what was done before it; the lease stays ours all the while."""

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
        assert not worker.told(LeaseLost)
        release.set()
        await world.until(lambda: len(worker.told(Checkpointed)) == 2)
        assert await world.checkpoint() == "9"
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_handler_that_hangs_longer_than_stalled_after_loses_its_shard() -> None:
    """While a handler runs the shard counts as alive, but not for ever: nobody may hold a shard and do nothing."""

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
        await world.until(lambda: bool(worker.told(LeaseReleased)), within_s=30)
        assert worker.told(ShardStalled)
        assert await world.checkpoint() == "TRIM_HORIZON"
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_handler_that_says_it_still_works_keeps_its_shard() -> None:
    """`batch.still_working()` is progress, however long the batch takes in all."""

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
        assert not worker.told(LeaseLost)
        await worker.stopped()
        assert await world.checkpoint() == "x"

    run_in_virtual_time(scenario())


# -- failures ----------------------------------------------------------------------------------------------------


def test_a_handler_that_fails_for_a_while_is_tried_again_with_the_same_batch() -> None:
    """An outage that ends within the retries costs nothing: same records, same order, no bisecting."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put(*range(3))

        async def third_time(batch: Batch) -> None:
            calls.append((batch.attempt, texts(batch)))
            if len(calls) < 3:
                raise ConnectionError("later")

        worker = world.start(third_time)
        await world.until(lambda: bool(worker.told(BatchHandled)))
        assert calls == [(attempt, ["0", "1", "2"]) for attempt in (1, 2, 3)]
        assert [event.error for event in worker.told(HandlerFailed)] == ["ConnectionError"] * 2
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_one_poison_record_is_put_aside_and_all_others_are_handled_once() -> None:
    """Bisecting finds exactly the poison record; its letter has place, error and data; the shard goes on."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("700")
        world.put(*range(1000))
        worker = world.start(notes, max_records=1000, retries=2, dead_letters="kept")
        await world.until(lambda: len(notes.handled) == 999)
        assert notes.handled == [str(number) for number in range(1000) if number != 700]
        (letter,) = world.letters.letters
        assert letter.record.data == b"700"
        assert letter.record.sequence_number == world.sequence_numbers[b"700"]
        assert (letter.stream, letter.shard, letter.application) == ("orders", SHARD, "billing")
        assert (letter.error_type, letter.error_message, letter.attempts) == (
            "ValueError",
            "cannot read this",
            3,
        )
        assert [event.error for event in worker.told(RecordDeadLettered)] == ["ValueError"]
        world.put("after")
        await world.until(lambda: notes.handled[-1] == "after")
        await worker.stopped()
        assert await world.checkpoint() == "after"

    run_in_virtual_time(scenario())


def test_an_error_that_cannot_be_put_into_words_keeps_no_record_from_being_put_aside() -> None:
    """Where `str` of the error raises, the letter holds the name of its type, and the shard goes on."""

    class SpeechlessError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def scenario() -> None:
        world, handled = WorkerWorld(), list[str]()
        world.put("a", "bad", "b")

        async def handle(batch: Batch) -> None:
            if "bad" in texts(batch):
                raise SpeechlessError
            handled.extend(texts(batch))

        worker = world.start(handle, retries=0, dead_letters="kept")
        await world.until(lambda: handled == ["a", "b"])
        (letter,) = world.letters.letters
        assert (letter.error_type, letter.error_message) == ("SpeechlessError", "SpeechlessError")
        await worker.stopped()
        assert await world.checkpoint() == "b"

    run_in_virtual_time(scenario())


def test_the_search_for_poison_calls_the_handler_no_more_than_needed() -> None:
    """Eight records, the sixth is poison, one retry: whole twice, then halves; what succeeded is not given again."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("5")
        world.put(*range(8))
        worker = world.start(notes, max_records=8, retries=1, dead_letters="kept")
        await world.until(lambda: len(notes.handled) == 7)
        whole = [str(number) for number in range(8)]
        assert notes.calls == [
            whole, whole,
            ["0", "1", "2", "3"],
            ["4", "5", "6", "7"],
            ["4", "5"], ["4"], ["5"], ["5"],
            ["6", "7"],
        ]  # fmt: skip
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_progress_within_a_batch_is_stored_before_its_poison() -> None:
    """With the shard held at a poison record, everything before it is done and the table knows it."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("6")
        world.put(*range(8))
        worker = world.start(notes, max_records=8, retries=0)
        await world.clock.sleep_ms(3_600_000)
        assert notes.handled == ["0", "1", "2", "3", "4", "5"]
        assert await world.checkpoint() == "5"
        assert len([call for call in notes.calls if call == ["6"]]) > 100  # held, and tried again and again
        assert not worker.told(LeaseLost)
        notes.poison.clear()
        await world.until(lambda: notes.handled == [str(number) for number in range(8)])
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_skipping_must_be_written_out_and_is_told() -> None:
    """With on_poison="skip" the shard goes on without the record, and an event says which."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("1")
        world.put(*range(3))
        worker = world.start(notes, retries=0, on_poison="skip")
        await world.until(lambda: notes.handled == ["0", "2"])
        (skipped,) = worker.told(RecordSkipped)
        assert skipped.position.sequence_number == world.sequence_numbers[b"1"]
        await worker.stopped()
        assert await world.checkpoint() == "2"

    run_in_virtual_time(scenario())


def test_stopping_the_shard_releases_it_at_the_poison_and_serves_the_others() -> None:
    """The lease goes back with everything before the poison stored; the next try begins there, after a rest."""

    async def scenario() -> None:
        world, notes = WorkerWorld(shards=2), Notebook("bad")
        world.put("old", "good", "bad", "never", shard=0)
        world.put("other", shard=1)
        worker = world.start(
            notes,
            max_records=1,
            retries=1,
            on_poison="stop_shard",
            cooldown_after_failure="30s",
            checkpoint_every="1h",
        )
        await world.until(lambda: "other" in notes.handled and bool(worker.told(LeaseReleased)))
        assert await world.checkpoint() == "good"
        assert (await world.lease()).owner is None
        assert "never" not in notes.handled
        before = len(notes.calls)
        await world.clock.sleep_ms(25_000)
        assert len(notes.calls) == before
        await world.until(lambda: len(notes.calls) > before, within_s=20)
        assert notes.calls[-1] == ["bad"]
        assert await worker.stopped() is None

    run_in_virtual_time(scenario())


def test_stopping_the_worker_drains_it_and_says_why() -> None:
    """The error names shard and record and has the handler's own error as its cause; all leases are released."""

    async def scenario() -> None:
        world, notes = WorkerWorld(shards=2), Notebook("bad")
        world.put("good", "bad", shard=0)
        world.put("other", shard=1)
        worker = world.start(notes, retries=1, on_poison="stop_worker")
        reason = await worker.task
        assert isinstance(reason, HandlerError)
        assert isinstance(reason.__cause__, ValueError)
        assert world.sequence_numbers[b"bad"] in str(reason)
        assert "cannot read this" not in str(reason)
        assert await world.checkpoint() == "good"
        leases = (await world.table.list()).leases
        assert [lease.owner for lease in leases] == [None, None]

    run_in_virtual_time(scenario())


def test_a_program_that_exits_from_its_handler_stops_cleanly() -> None:
    """`sys.exit(3)` in a handler is not retried: the worker lets go of everything and passes it on."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("x")

        async def leave(batch: Batch) -> None:
            raise SystemExit(3)

        worker = world.start(leave)
        reason = await worker.task
        assert isinstance(reason, SystemExit)
        assert reason.code == 3
        assert (await world.lease()).owner is None
        assert await world.checkpoint() == "TRIM_HORIZON"

    run_in_virtual_time(scenario())


def test_without_bisecting_the_whole_batch_is_put_aside() -> None:
    """bisect=False with dead letters: no record of the failed batch is lost, none is handled."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("1")
        world.put(*range(3))
        worker = world.start(notes, max_records=3, retries=1, bisect=False, dead_letters="kept")
        await world.until(lambda: len(worker.told(RecordDeadLettered)) == 3)
        assert [letter.record.data for letter in world.letters.letters] == [b"0", b"1", b"2"]
        assert len(notes.calls) == 2
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_letter_that_cannot_be_written_holds_the_shard() -> None:
    """Dead letters are tried until they are safe: nothing is passed over meanwhile, and it is told."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("0")
        world.put(*range(2))
        world.letters.refusals = 5
        worker = world.start(notes, max_records=1, retries=0, dead_letters="kept")
        await world.until(lambda: notes.handled == ["1"])
        assert len(worker.told(OperationFailed)) == 5
        assert [letter.record.data for letter in world.letters.letters] == [b"0"]
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_dead_letters_may_go_to_a_function() -> None:
    """The function gets the letter, record included; while it raises, the letter is not taken."""

    async def scenario() -> None:
        world, notes, taken = WorkerWorld(), Notebook("1"), []
        world.put(*range(3))

        async def take(letter: Any) -> None:
            taken.append(letter.record.data)
            if len(taken) == 1:
                raise ConnectionError("again, please")

        worker = world.start(notes, retries=0, dead_letters=take)
        await world.until(lambda: notes.handled == ["0", "2"])
        assert taken == [b"1", b"1"]
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_no_event_tells_what_a_handler_said() -> None:
    """The text of a handler's error may hold a payload; events carry its type only."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("secret")

        async def tell_all(batch: Batch) -> None:
            raise ValueError(batch.records[0].data)

        worker = world.start(tell_all, retries=1, on_poison="stop_worker")
        await worker.task
        assert worker.told(HandlerFailed)
        assert not [event for event in worker.events if "secret" in repr(event)]

    run_in_virtual_time(scenario())


# -- losing, draining, ending ------------------------------------------------------------------------------------


def test_a_lost_lease_discards_what_the_handler_does_and_stores_nothing() -> None:
    """Someone took the shard while a handler ran: the handler is cancelled, and can checkpoint nothing."""

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
        await world.take_away()
        await world.until(lambda: bool(ended), within_s=20)
        assert worker.told(LeaseLost)
        assert await world.checkpoint() == "before"
        with pytest.raises(LeaseLostError):
            await given[1].checkpoint()
        assert not worker.told(HandlerFailed)
        assert await worker.stopped() is None
        assert (await world.lease()).owner == "thief"

    run_in_virtual_time(scenario())


def test_nothing_is_given_to_a_handler_once_the_lease_is_not_proven() -> None:
    """A worker that cannot reach the table stops delivering before others may take the shard."""

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
        assert worker.told(LeaseLost)
        worker.task.cancel()

    run_in_virtual_time(scenario())


def test_after_a_pause_of_the_process_nothing_more_is_given_to_the_handler() -> None:
    """Whoever wakes up after its lease ran out must not deliver one more batch before it notices."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), []
        world.put(*range(10))

        async def sleep_like_the_dead(batch: Batch) -> None:
            calls.append(texts(batch))
            if len(calls) == 2:
                pause_process(60)

        worker = world.start(
            sleep_like_the_dead, max_records=1, cooldown_after_failure="1h", checkpoint_every="1h"
        )
        await world.until(lambda: bool(worker.told(LeaseLost)), within_s=120)
        assert calls == [["0"], ["1"]]
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_batch_that_waited_for_its_turn_is_given_only_if_the_lease_is_still_proven() -> None:
    """The question is asked when the handler is about to be called, not when the batch began to wait."""

    async def scenario() -> None:
        world, calls = WorkerWorld(shards=2), []
        for shard in range(2):
            world.put(*range(10), shard=shard)

        async def sleep_like_the_dead(batch: Batch) -> None:
            calls.append(batch.shard)
            await asyncio.sleep(5)  # both shards have a batch by now, and one of them waits
            pause_process(60)

        worker = world.start(sleep_like_the_dead, max_records=10, max_handlers=1, cooldown_after_failure="1h")
        await world.until(lambda: len(worker.told(LeaseLost)) == 2, within_s=120)
        assert len(calls) == 1
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_stop_waits_for_the_handler_and_stores_what_it_did() -> None:
    """Stopping finishes the batch in hand, stores it, releases the lease, and begins no other batch."""

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
        assert await worker.stopped() is None
        assert world.clock.now_ms() - began_ms < 6_000
        assert len(calls) == 2
        assert await world.checkpoint() == "3"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_a_stop_does_not_wait_for_a_failing_batch() -> None:
    """A batch that is being retried is given back undone; the next owner begins with it."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("1")
        world.put("0", "1")
        worker = world.start(notes, max_records=1)
        await world.until(lambda: len(notes.calls) > 3)
        began_ms = world.clock.now_ms()
        await worker.stopped()
        assert world.clock.now_ms() - began_ms < 1_000
        assert await world.checkpoint() == "0"

    run_in_virtual_time(scenario())


def test_a_handler_that_outlives_the_grace_period_is_left_behind() -> None:
    """The worker ends within its grace period all the same: what is done is stored, the lease released, it is told."""

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
        await worker.stopped()
        assert 7_000 < world.clock.now_ms() - began_ms < 10_000
        assert [event.operation for event in worker.told(OperationFailed)] == ["stop"]
        assert await world.checkpoint() == "0"
        assert (await world.lease()).owner is None

    run_in_virtual_time(scenario())


def test_the_end_of_a_shard_is_stored_with_its_children_after_its_last_record() -> None:
    """The parent is handled to its end, then SHARD_END and the children's leases appear, then they are read."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put(*range(5))
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        world.put("left")
        worker = world.start(notes, max_records=2)
        await world.until(lambda: "left" in notes.handled)
        assert notes.handled == ["0", "1", "2", "3", "4", "left"]
        (ended,) = worker.told(ShardEnded)
        assert ended.shard == SHARD
        assert set(ended.children) == {LEFT, RIGHT}
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_child_that_nobody_read_in_time_is_told_as_a_gap() -> None:
    """A fleet that ended the parent, and came back after the retention, hears that the child has lost records."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("lost")
        world.put("parent")
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        world.put("lost")
        worker = world.start(notes)
        await world.until(lambda: bool(worker.told(ShardEnded)))
        await worker.stopped()
        await world.clock.sleep_ms(30 * 3_600_000)
        world.put("kept")
        second = world.start(notes)
        await world.until(lambda: "kept" in notes.handled)
        assert LEFT in {event.shard for event in second.told(GapFound)}
        await second.stopped()

    run_in_virtual_time(scenario())


def test_a_failing_record_keeps_a_shard_from_ending() -> None:
    """While the last record is held, SHARD_END is not written and no child is read."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("last")
        world.put("first", "last")
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        world.put("child")
        worker = world.start(notes, retries=0)
        await world.clock.sleep_ms(600_000)
        assert await world.checkpoint() == "first"
        assert "child" not in notes.handled
        notes.poison.clear()
        await world.until(lambda: notes.handled == ["first", "last", "child"])
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_stop_does_not_end_a_shard_whose_last_record_failed() -> None:
    """All of it was read, not all of it is done: SHARD_END would lose the rest. The next owner finishes it."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("last")
        world.put("first", "last")
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        worker = world.start(notes, retries=0)
        await world.until(lambda: notes.calls.count(["last"]) > 3)
        await worker.stopped()
        assert await world.checkpoint() == "first"
        notes.poison.clear()
        second = world.start(notes)
        await world.until(lambda: bool(second.told(ShardEnded)))
        assert notes.handled == ["first", "last"]
        await second.stopped()

    run_in_virtual_time(scenario())


def test_what_is_done_is_stored_while_the_end_of_the_shard_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end may have to wait for the other parent of a merge; a crash meanwhile repeats nothing."""

    async def wait_for_other_parent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(HeldLease, "finish", wait_for_other_parent)

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put("first", "last")
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)
        worker = world.start(notes, max_records=1, checkpoint_every="1h")
        await world.until(lambda: len(notes.handled) == 2)
        await world.clock.sleep_ms(1_000)
        assert await world.checkpoint() == "last"
        worker.task.cancel()

    run_in_virtual_time(scenario())


def test_a_shard_that_waits_for_its_turn_is_not_stalled() -> None:
    """With one handler at a time, waiting for the other shard's does not count against this one's."""

    async def scenario() -> None:
        world, handled = WorkerWorld(shards=2), []
        world.put("a", shard=0)
        world.put("b", shard=1)

        async def slow(batch: Batch) -> None:
            await asyncio.sleep(100)
            handled.extend(texts(batch))

        worker = world.start(slow, max_handlers=1, stalled_after="2m")
        await world.until(lambda: sorted(handled) == ["a", "b"], within_s=250)
        assert not worker.told(ShardStalled)
        await worker.stopped()

    run_in_virtual_time(scenario())


# -- by hand -----------------------------------------------------------------------------------------------------


def with_manual_checkpoints(
    handler: Callable[[Batch], Awaitable[None]], then: Callable[[WorkerWorld, Any], Coroutine[Any, Any, None]]
) -> None:
    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*range(4))
        worker = world.start(handler, checkpoint="manual", max_records=2)
        await then(world, worker)
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_manual_checkpoints_are_made_by_the_handler_alone() -> None:
    """Returning moves nothing; `batch.checkpoint(record)` stores up to that record, at once."""
    seen: list[str] = []

    async def handler(batch: Batch) -> None:
        seen.extend(texts(batch))
        if "2" in texts(batch):
            await batch.checkpoint(batch.records[0])

    async def then(world: WorkerWorld, worker: Any) -> None:
        await world.until(lambda: len(seen) == 4)
        await world.clock.sleep_ms(60_000)
        await worker.stopped()
        assert await world.checkpoint() == "2"

    with_manual_checkpoints(handler, then)


def test_a_checkpoint_outside_of_the_batch_or_backwards_is_refused() -> None:
    """Only what was given can be done, and what is stored stays stored."""
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


def test_what_was_stored_by_hand_is_not_given_again_after_a_failure() -> None:
    """A handler that stored half of its batch and then failed gets the other half."""
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


def test_with_manual_checkpoints_the_last_batch_says_so_and_must_be_stored() -> None:
    """A handler that ignores the end of the shard is called again; once it checkpoints, the shard ends."""

    async def scenario() -> None:
        world, ends = WorkerWorld(), []
        world.put("x")
        world.service.split_shard(world.clock.wall_ms(), "orders", SHARD, 2**127)

        async def handler(batch: Batch) -> None:
            if batch.ends_shard:
                ends.append(batch.attempt)
                if len(ends) == 3:
                    await batch.checkpoint()

        worker = world.start(handler, checkpoint="manual")
        await world.until(lambda: bool(worker.told(ShardEnded)))
        assert ends == [1, 2, 3]
        assert (await world.lease()).checkpoint == SHARD_END
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_prepared_batch_comes_again_exactly_as_it_was() -> None:
    """Two phases: the owner dies between them; the next one gets the same records in one batch, with the state."""

    async def scenario() -> None:
        world, prepared, redone = WorkerWorld(), [], []
        world.put(*range(20))

        async def die_half_way(batch: Batch) -> None:
            if texts(batch)[0] == "10":
                await batch.prepare(b"object-17")
                prepared.append(batch)
                await asyncio.Event().wait()

        first = world.start(die_half_way, max_records=5, checkpoint_every="1h")
        await world.until(lambda: bool(prepared))
        assert await world.checkpoint() == "9"  # what lies before the range is stored with it
        first.task.cancel()

        async def look(batch: Batch) -> None:
            redone.append(batch)

        second = world.start(look, max_records=3)
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
        await second.stopped()
        assert (await world.lease()).pin is None

    run_in_virtual_time(scenario())


def test_a_prepared_range_larger_than_the_buffer_counts_does_not_block_reading() -> None:
    """Small records weigh more in the budget than their data; the range is collected all the same."""

    async def scenario() -> None:
        world = WorkerWorld()
        prepared: list[Batch] = []
        redone: list[Batch] = []
        world.put(*(str(number).zfill(50) for number in range(6_000)))

        async def die_half_way(batch: Batch) -> None:
            if not prepared:
                await batch.prepare()
                prepared.append(batch)
                await asyncio.Event().wait()

        first = world.start(die_half_way, max_records=5_000, max_wait="1m")
        await world.until(lambda: bool(prepared), within_s=120)
        first.task.cancel()

        async def look(batch: Batch) -> None:
            redone.append(batch)

        second = world.start(look, buffer_bytes=1024 * 1024)
        await world.until(lambda: bool(redone), within_s=120)
        assert redone[0].records == prepared[0].records
        assert len(redone[0]) == 5_000
        await second.stopped()

    run_in_virtual_time(scenario())


def test_a_prepared_checkpoint_is_completed_by_its_commit() -> None:
    """Preparing writes the end beside the checkpoint, committing moves it there; nothing else clears it."""

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
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_a_shard_moves_past_aggregates_that_were_dropped() -> None:
    """User records of another shard are not delivered, but the checkpoint passes them: nobody reads them again."""

    async def scenario() -> None:
        world, notes = WorkerWorld(shards=2), Notebook()
        stray = aggregate([PutEntry(b"stray", "key", 2**127)])
        world.put("first")
        stored = world.service.put_record(
            world.clock.wall_ms(), "orders", PutRequest(stray.partition_key, stray.data, 0)
        )
        worker = world.start(notes)
        await world.until(lambda: bool(worker.told(DeaggregationFailed)))
        await world.clock.sleep_ms(10_000)
        assert notes.handled == ["first"]
        assert (await world.lease()).checkpoint == Position(str(stored.number))
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_an_aggregate_may_be_handled_in_several_batches() -> None:
    """Cut anywhere, stored at a position inside of it, and continued there by the next owner without a repeat."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook("5")
        whole = aggregate([PutEntry(b"%d" % number, "key") for number in range(9)])
        world.service.put_record(
            world.clock.wall_ms(), "orders", PutRequest(whole.partition_key, whole.data, 0)
        )
        first = world.start(notes, max_records=2, retries=0)
        await world.until(lambda: ["5"] in notes.calls)
        await first.stopped()
        assert (await world.lease()).checkpoint.sub_sequence_number == 4
        notes.poison.clear()
        second = world.start(notes, max_records=3)
        await world.until(lambda: len(notes.handled) == 9)
        assert notes.handled == [str(number) for number in range(9)]
        await second.stopped()

    run_in_virtual_time(scenario())


def test_the_byte_budget_is_given_back() -> None:
    """A small buffer, a long stream: every batch frees what it took, so that reading never stops."""

    async def scenario() -> None:
        world, notes = WorkerWorld(), Notebook()
        world.put(*(str(number).zfill(1000) * 20 for number in range(300)))
        worker = world.start(notes, buffer_bytes=1024 * 1024, max_records=7)
        await world.until(lambda: len(notes.handled) == 300)
        await worker.stopped()

    run_in_virtual_time(scenario())


def test_the_token_rises_with_every_ownership() -> None:
    """A later owner's token names the same shard with a higher number, which is there as a number, too."""

    async def scenario() -> None:
        world, tokens, numbers = WorkerWorld(), list[str](), list[int]()

        async def note(batch: Batch) -> None:
            tokens.append(batch.fencing_token)
            numbers.append(batch.fencing_number)

        for owner in (1, 2):
            world.put(owner)
            worker = world.start(note)
            await world.until(lambda wanted=owner: len(tokens) == wanted)  # type: ignore[misc]
            await worker.stopped()
        assert tokens == [f"{SHARD}:{number}" for number in numbers]
        assert numbers[0] < numbers[1]

    run_in_virtual_time(scenario())


def test_a_bug_of_ours_is_logged_with_its_place_and_without_its_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator can report it; whatever the error says, which may be a payload, stays out of the log."""

    def broken(*_: object) -> None:
        raise KeyError("".join(reversed("terces")))

    monkeypatch.setattr("leasehold.worker.batch_handler.RetryingConsumer._skip_done", broken)

    async def scenario() -> None:
        world = WorkerWorld()
        world.put("x")
        worker = world.start(Notebook())
        await world.until(lambda: bool(worker.told(LeaseReleased)))
        await worker.stopped()

    run_in_virtual_time(scenario())
    assert "KeyError" in caplog.text
    assert "retrying_consumer.py" in caplog.text
    assert "secret" not in caplog.text


def test_trouble_with_the_lease_is_not_the_fault_of_the_records() -> None:
    """A row that cannot be written while a handler checkpoints by hand puts no sound record aside."""

    async def scenario() -> None:
        world, calls = WorkerWorld(), count()
        world.put("sound")

        async def checkpointing(batch: Batch) -> None:
            if next(calls) == 0:
                raise MalformedRowError(batch.shard, "leaseCounter: expected an integer")

        worker = world.start(checkpointing, retries=0, dead_letters="kept", cooldown_after_failure=1)
        await world.until(lambda: bool(worker.told(BatchHandled)))
        assert world.letters.letters == []
        await worker.stopped()

    run_in_virtual_time(scenario())
