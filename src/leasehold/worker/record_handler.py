"""Handlers that are functions of one record: records of different partition keys are handled concurrently.

`core.records.keyed_window` decides which records may run. This module runs them: one task for each running record. The
guarantees are those of batches: the checkpoint never passes an unfinished record, and a record that fails is retried,
then disposed of as poison. A poison record is disposed of when all records before it are done: the pin that precedes a
dead letter says that everything between the checkpoint and the end of the pin is a dead letter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.core.model import ChildShard
from leasehold.core.record import UserRecord
from leasehold.core.records.keyed_window import KeyedWindow
from leasehold.tasks import cancel_and_wait, first_of
from leasehold.worker.batch import Batch
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.checkpointing.progress import InFlightBatch
from leasehold.worker.delivered_record import DeliveredRecord
from leasehold.worker.delivery.disposals import disposal_from_state
from leasehold.worker.delivery.failures import report_failure, require_valid_lease
from leasehold.worker.delivery.poison_disposal import PoisonDisposal
from leasehold.worker.delivery.poison_search import Retry, RetryRange, decide_after_failure
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.delivery.shard_consumer import HandlerKind, ShardConsumer
from leasehold.worker.user_code.handler_runners import Function, Raised, Returned

# So many batches of one shard are in memory at most. With one, each batch would wait for the slowest record of the
# batch before it.
BATCHES_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class RecordHandler(HandlerKind):
    """Delivers single records to one function, plain or async."""

    function: Function

    def consumer_for(self, shard: ServedShard) -> ShardConsumer:
        """Create the consumer that calls the function for one shard."""
        return RecordConsumer(shard, self.function)


@dataclass(slots=True, eq=False)
class _OpenBatch:
    """A batch of which records are unfinished. Its records have the numbers from `first` on."""

    pending: PendingBatch
    in_flight: InFlightBatch
    first: int
    began_ms: int
    unfinished: int

    @property
    def stop(self) -> int:
        return self.first + len(self.pending.records)

    def record(self, number: int) -> UserRecord:
        return self.pending.records[number - self.first]

    def part(self, number: int, attempt: int) -> RetryRange:
        at = number - self.first
        return RetryRange(at, at + 1, attempt)


class RecordConsumer(ShardConsumer):
    """Delivers the records of one shard during one lease session."""

    def __init__(self, shard: ServedShard, function: Function) -> None:
        self._shard = shard
        self._function = function
        self._checkpoints = shard.checkpoints
        self._context = shard.context
        self._poison = PoisonDisposal(shard)
        self._window = KeyedWindow(shard.context.settings.records.concurrency)
        # In shard order. A batch leaves when it is finished and all batches before it have left.
        self._open: deque[_OpenBatch] = deque()
        self._attempts: dict[int, int] = {}  # of unfinished records
        self._tasks: dict[asyncio.Task[None], None] = {}  # ordered, so that a simulated run can be repeated
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()  # replaced by a new one at each change
        shard.checkpoints.on_progress(self._leave)

    async def start(self) -> None:
        """A function needs no start."""

    def background(self) -> Coroutine[Any, Any, object] | None:
        """Raise the first error that must end the lease session. When it is cancelled, no record runs any more."""
        return self._watch()

    async def handle(self, pending: PendingBatch) -> None:
        """Accept a batch. Returns when there is room for the next one, or when the lease must be released."""
        if not pending.records:
            await self._checkpoints.pass_over(pending)
            return
        in_flight = self._checkpoints.begin(pending)
        if pending.is_pinned and (disposal := self._poison.interrupted) is not None:
            # The first batch of the session, so no other record runs.
            if await self._poison.store_letters(pending.records, disposal):
                await self._checkpoints.finish(in_flight)
            return
        pending = replace(pending, records=tuple(pending.records))  # each is looked at several times
        first = self._open[-1].stop if self._open else self._window.first_unfinished
        self._open.append(
            _OpenBatch(pending, in_flight, first, self._context.clock.now_ms(), len(pending.records))
        )
        self._window.add(record.partition_key for record in pending.records)
        self._start_ready()
        while len(self._open) >= BATCHES_MAX and not self._shard.held.draining.is_set():
            await self._wait_for_change()

    async def end_shard(self, children: Sequence[ChildShard]) -> None:
        """Store the end of the shard when all of its records are done."""
        while not self._window.is_all_finished and not self._shard.held.draining.is_set():
            await self._wait_for_change()
        if not self._window.is_all_finished:
            await self.shut_down()
        if self._checkpoints.progress.is_all_done:
            await self._checkpoints.end_shard(children)

    async def shut_down(self) -> None:
        """Finish the records up to the last one that was started, and start no other."""
        self._window.drain()
        self._start_ready()
        while not self._window.is_drained:
            await self._wait_for_change()

    def lease_lost(self) -> None:
        """Running calls end by themselves, and their results are ignored."""

    # -- running records ---------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        if self._shard.held.draining.is_set():
            self._window.drain()
        for number in self._window.start_ready():
            task = asyncio.get_running_loop().create_task(self._deliver(number))
            self._tasks[task] = None
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _watch(self) -> None:
        try:
            await self._failed
        finally:
            await cancel_and_wait(*self._tasks)

    async def _wait_for_change(self) -> None:
        """Wait until a record is finished or given up, or the lease must be released."""
        changed, draining = self._changed, self._shard.held.draining
        if draining.is_set():
            await changed.wait()
        else:
            await first_of(changed.wait(), draining.wait())

    async def _deliver(self, number: int) -> None:
        """Try to handle one record once. Afterwards it is done, waits for its next attempt, or is given up."""
        batch = self._batch_of(number)
        attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
        held = self._shard.held
        async with self._context.handler_slots:
            # Only now, since the record may have waited long for its slot.
            require_valid_lease(held)
            held.note_progress()
            outcome = await self._shard.runner.call(self._function, self._make_record(batch, number, attempt))
        held.note_progress()
        if isinstance(outcome, Returned):
            await self._finish(batch, number)
        else:
            await self._after_failure(batch, number, attempt, outcome)

    async def _after_failure(self, batch: _OpenBatch, number: int, attempt: int, outcome: Raised) -> None:
        part = batch.part(number, attempt)
        failed = self._shard.make_batch(batch.pending, batch.in_flight, part)
        error = report_failure(self._shard, failed, outcome)
        self._window.suspend(number)
        self._start_ready()  # another key may run meanwhile
        part = replace(part, is_prepared=self._is_prepared(batch.record(number)))
        match decide_after_failure(part, self._context.settings.errors, self._context.rng.random()):
            case Retry(_, wait_ms):
                await self._shard.pause(wait_ms)
            case _:
                if await self._dispose(number, failed, error):
                    await self._finish(batch, number)
                    return
        if self._shard.held.draining.is_set():
            self._window.give_up()
        else:
            self._window.resume(number)
            self._start_ready()
        self._signal()

    async def _dispose(self, number: int, failed: Batch, error: Exception) -> bool:
        """Dispose of a poison record when all records before it are done. Returns False if the lease must be released.

        Another record may be given up for the release of the lease; then this one is not disposed of, either.
        """
        while self._window.first_unfinished < number:
            if self._window.has_given_up:
                return False
            await self._wait_for_change()
        self._window.run_again(number)  # the lease is not released while the letter is being stored
        try:
            return await self._poison.dispose(failed, error)
        finally:
            self._window.suspend(number)

    def _is_prepared(self, record: UserRecord) -> bool:
        """Whether an earlier owner has prepared a checkpoint that covers the record: its effect may exist."""
        pin = self._checkpoints.progress.prepared
        return pin is not None and disposal_from_state(pin.state) is None and record.position <= pin.end

    # -- finished records --------------------------------------------------------------------------------------

    async def _finish(self, batch: _OpenBatch, number: int) -> None:
        """Mark a record as done, and move the position to before the first unfinished record."""
        self._window.finish(number)
        del self._attempts[number]
        batch.unfinished -= 1
        first = self._window.first_unfinished
        for each in list(self._open):  # a copy, because progress lets finished batches leave
            if each.first < first < each.stop:
                self._checkpoints.advance(each.in_flight, each.record(first - 1).position)
        # First the next records, then a checkpoint, which may take a while.
        self._start_ready()
        self._signal()
        if not batch.unfinished:
            await self._checkpoints.finish(batch.in_flight)

    def _leave(self) -> None:
        """Drop finished batches, and report them. A report of a batch covers all records before its end."""
        while self._open and self._open[0].in_flight.is_finished:
            batch = self._open.popleft()
            pending = batch.pending
            self._shard.report_handled(pending.records, pending.end, pending.millis_behind, batch.began_ms)
            self._signal()

    def _signal(self) -> None:
        """Wake everything that waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _batch_of(self, number: int) -> _OpenBatch:
        return next(batch for batch in self._open if batch.first <= number < batch.stop)

    def _make_record(self, batch: _OpenBatch, number: int, attempt: int) -> DeliveredRecord:
        shard = self._shard
        return DeliveredRecord(
            shard.stream,
            shard.held.shard,
            batch.record(number),
            shard.held.fencing_token,
            batch.pending.millis_behind,
            attempt,
            _note_progress=lambda: shard.engine.call_soon(shard.held.note_progress),
        )
