"""What is stored of one shard, when, and with how many writes."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import FleetSettings, milliseconds
from leasehold.core.events import Checkpointed, Event
from leasehold.core.leases.row_writes import RowWrite
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.core.record import UserRecord
from leasehold.errors import CheckpointRejectedError, LeaseLostError, UnavailableError
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.operations import Operations
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from leasehold.tasks import cancel_and_wait
from leasehold.worker.batching.batch_builder import PendingBatch
from leasehold.worker.batching.batcher import BufferedBytes
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.checkpointing.progress import InFlightBatch
from leasehold.worker.settings import Checkpointing, CheckpointSettings

FLEET = FleetSettings(stalled_after=timedelta(minutes=2))
RENEW_MS = milliseconds(FLEET.renew_every)
KEY = LeaseKey("shardId-0")
START = Position("5")


class CountingRows(MemoryRows):
    """Counts writes, and fails those that come while `is_down` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.is_down = False

    async def write(self, write: RowWrite) -> Applied | Refused:
        if self.is_down:
            raise UnavailableError("down")
        self.writes += 1
        return await super().write(write)

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        if self.is_down:
            raise UnavailableError("down")
        return await super().write_transaction(writes)


def at(number: int) -> Position:
    return Position(str(number))


def pending(end: int, records: int = 1) -> PendingBatch:
    return PendingBatch((UserRecord(b"", "", str(end)),) * records, at(0), at(end))


@dataclass
class Shard:
    """A shard whose lease is held, with its checkpoints."""

    clock: VirtualClock
    rows: CountingRows
    table: LeaseTable
    held: HeldLease
    checkpoints: Checkpoints
    events: list[Event]

    def begin(self, end: int, records: int = 1) -> InFlightBatch:
        """Deliver a batch that ends at a record."""
        return self.checkpoints.begin(pending(end, records))

    async def stored(self) -> Position:
        lease = await self.table.get(KEY)
        assert lease is not None
        return lease.checkpoint


def with_shard(
    scenario: Callable[[Shard], Coroutine[Any, Any, None]],
    *,
    start: Position = START,
    pin: Position | None = None,
    **settings: Any,
) -> None:
    """Run a scenario with a shard whose lease is at `start`."""

    async def run() -> None:
        clock, rows = VirtualClock(), CountingRows()
        table = LeaseTable(rows)
        free = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=start)
        await table.create(free)
        taken = await table.take(free, WorkerId("w"), LeaseSessionId("session"))
        assert isinstance(taken, Lease)
        if pin is not None:
            pinned = await table.prepare_checkpoint(taken, pin)
            assert isinstance(pinned, Lease)
            taken = pinned
        held = HeldLease(
            taken,
            table=table,
            operations=Operations(clock, random.Random(1), lambda _: None),
            settings=FLEET,
            taken_at_ms=clock.now_ms(),
            on_response=lambda _: None,
        )
        events: list[Event] = []
        checkpoints = Checkpoints(
            held,
            buffered=BufferedBytes(ByteBudget(1_000)),
            settings=CheckpointSettings(**settings),
            clock=clock,
            observe=events.append,
        )
        rows.writes = 0
        await scenario(Shard(clock, rows, table, held, checkpoints, events))

    run_in_virtual_time(run())


def test_all_is_done_unless_a_batch_is_unfinished() -> None:
    """Also before the first batch."""

    async def scenario(shard: Shard) -> None:
        checkpoints = shard.checkpoints
        assert checkpoints.all_done.is_set()
        batch = shard.begin(10)
        assert not checkpoints.all_done.is_set()
        await checkpoints.finish(batch)
        assert checkpoints.all_done.is_set()

    with_shard(scenario)


def test_every_way_to_make_progress_is_reported() -> None:
    """A program that waits for done records is woken up."""

    async def scenario(shard: Shard) -> None:
        checkpoints, calls = shard.checkpoints, list[Position]()
        checkpoints.on_progress(lambda: calls.append(checkpoints.progress.done))
        first, _ = shard.begin(10), shard.begin(20)
        checkpoints.advance(first, at(7))
        await checkpoints.finish(first)
        await checkpoints.store(at(20))
        assert calls == [at(7), at(10), at(20)]

    with_shard(scenario)


def test_a_part_of_a_batch_is_stored_when_a_checkpoint_is_due() -> None:
    """The rest of the batch may take long."""

    async def scenario(shard: Shard) -> None:
        storing = asyncio.create_task(shard.checkpoints.store_periodically())
        shard.checkpoints.advance(shard.begin(10), at(7))
        await shard.clock.sleep_ms(1_900)
        assert await shard.stored() == START
        await shard.clock.sleep_ms(200)
        assert await shard.stored() == at(7)
        await cancel_and_wait(storing)

    with_shard(scenario, checkpoint_every=timedelta(seconds=2))


def test_a_lease_that_must_be_released_is_checkpointed_at_once() -> None:
    """The next owner waits for it."""

    async def scenario(shard: Shard) -> None:
        storing = asyncio.create_task(shard.checkpoints.store_periodically())
        shard.checkpoints.advance(shard.begin(10), at(7))
        await shard.clock.sleep_ms(10)
        shard.held.drain()
        await shard.clock.sleep_ms(10)
        assert await shard.stored() == at(7)
        await cancel_and_wait(storing)

    with_shard(scenario, checkpoint_every=timedelta(hours=1))


def test_a_batch_that_begins_or_finishes_is_progress() -> None:
    """The shard counts as stalled two minutes after the last of both."""

    async def scenario(shard: Shard) -> None:
        await shard.clock.sleep_ms(50_000)
        batch = shard.begin(10)
        await shard.clock.sleep_ms(119_000)
        assert not shard.held.is_idle_too_long
        await shard.checkpoints.finish(batch)
        await shard.clock.sleep_ms(60_000)
        assert not shard.held.is_idle_too_long

    with_shard(scenario, checkpoint=Checkpointing.MANUAL)


def test_a_batch_without_records_moves_the_position() -> None:
    """Otherwise the next owner would read the same nothing again."""

    async def scenario(shard: Shard) -> None:
        await shard.checkpoints.pass_over(pending(10, records=0))
        assert await shard.stored() == at(10)
        assert shard.checkpoints.all_done.is_set()

    with_shard(scenario, checkpoint_every=timedelta(0))


def test_a_heartbeat_stores_what_is_done() -> None:
    """It says whether it wrote: otherwise a plain heartbeat is sent. Manual checkpoints are left to the handler."""

    async def automatic(shard: Shard) -> None:
        assert not await shard.checkpoints.store_with_heartbeat()
        batch = shard.begin(10)
        shard.checkpoints.advance(batch, at(7))
        assert await shard.checkpoints.store_with_heartbeat()
        assert await shard.stored() == at(7)
        assert not await shard.checkpoints.store_with_heartbeat()
        assert shard.rows.writes == 1
        shard.checkpoints.advance(batch, at(9))
        await shard.held.renew()
        assert (await shard.stored(), shard.rows.writes) == (at(9), 2)

    async def manual(shard: Shard) -> None:
        shard.checkpoints.advance(shard.begin(10), at(7))
        assert not await shard.checkpoints.store_with_heartbeat()
        await shard.checkpoints.store_before_release()
        assert shard.rows.writes == 0

    with_shard(automatic)
    with_shard(manual, checkpoint=Checkpointing.MANUAL)


def test_a_finished_batch_frees_its_bytes_and_a_closed_session_the_rest() -> None:
    """Otherwise the readers of other shards would wait for ever."""

    async def scenario(shard: Shard) -> None:
        buffered = shard.checkpoints.buffered
        await buffered._budget.acquire(100)
        buffered.add(100)
        await shard.checkpoints.pass_over(replace(pending(10), buffered_bytes=60))
        assert buffered._budget.used_bytes == 40
        shard.checkpoints.close()
        assert buffered._budget.used_bytes == 0

    with_shard(scenario)


def test_a_heartbeat_does_not_wait_for_a_checkpoint_in_flight() -> None:
    """The write in flight is a heartbeat itself."""

    async def scenario(shard: Shard) -> None:
        shard.checkpoints.advance(shard.begin(10), at(7))
        shard.rows.is_down = True
        writing = asyncio.create_task(shard.checkpoints.store_before_release())
        await shard.clock.sleep_ms(10)
        assert not await shard.checkpoints.store_with_heartbeat()
        assert not writing.done()
        shard.rows.is_down = False
        await writing
        assert await shard.stored() == at(7)

    with_shard(scenario)


def test_nothing_is_stored_for_user_code_after_the_session_was_closed() -> None:
    """What was done before is still stored with the release."""

    async def scenario(shard: Shard) -> None:
        checkpoints, batch = shard.checkpoints, shard.begin(10)
        checkpoints.advance(batch, at(7))
        checkpoints.close()
        with pytest.raises(LeaseLostError, match="no longer served"):
            await checkpoints.store(at(8))
        with pytest.raises(LeaseLostError, match="no longer served"):
            await checkpoints.prepare(at(7), at(10), None)
        with pytest.raises(LeaseLostError, match="no longer served"):
            await checkpoints.end_shard(())
        await checkpoints.finish(batch)
        assert shard.rows.writes == 0
        await checkpoints.store_before_release()
        assert await shard.stored() == at(10)

    with_shard(scenario, checkpoint_every=timedelta(0))


def test_the_stored_position_can_be_stored_again_without_a_write() -> None:
    """An earlier one cannot, nor one beyond the delivered records."""

    async def scenario(shard: Shard) -> None:
        shard.begin(10)
        await shard.checkpoints.store(at(10))
        assert shard.rows.writes == 1
        await shard.checkpoints.store(at(10))
        assert shard.rows.writes == 1
        for refused in (at(9), at(11)):
            with pytest.raises(CheckpointRejectedError):
                await shard.checkpoints.store(refused)
        assert shard.rows.writes == 1

    with_shard(scenario, checkpoint=Checkpointing.MANUAL)


def test_a_prepared_range_begins_at_the_checkpoint_if_all_before_it_is_done() -> None:
    """No write is needed if it does already. Nothing is stored that is not done."""

    async def done(shard: Shard) -> None:
        await shard.checkpoints.finish(shard.begin(10))
        shard.begin(20)
        await shard.checkpoints.prepare(at(10), at(20), None)
        assert (await shard.stored(), shard.rows.writes) == (at(10), 2)
        await shard.checkpoints.prepare(at(10), at(20), None)
        assert shard.rows.writes == 3

    async def unfinished(shard: Shard) -> None:
        shard.begin(10)
        shard.begin(20)
        await shard.checkpoints.prepare(at(10), at(20), None)
        assert (await shard.stored(), shard.rows.writes) == (START, 1)

    for scenario in (done, unfinished):
        with_shard(scenario, checkpoint_every=timedelta(hours=1))


def test_a_range_that_ends_before_the_first_record_is_not_prepared() -> None:
    """Its end may be a number of another shard, from which nobody could read this one."""

    async def scenario(shard: Shard) -> None:
        shard.begin(10)
        with pytest.raises(CheckpointRejectedError, match="is before 10, the first record"):
            await shard.checkpoints.prepare(TRIM_HORIZON, at(9), None)
        assert shard.rows.writes == 0
        await shard.checkpoints.prepare(TRIM_HORIZON, at(10), None)
        assert shard.rows.writes == 1

    with_shard(scenario, start=TRIM_HORIZON)


def test_a_prepared_range_is_stored_as_a_whole() -> None:
    """A checkpoint within it would remove the pin. So it is with a pin that an earlier owner left."""

    async def prepared_here(shard: Shard) -> None:
        batch = shard.begin(10)
        await shard.checkpoints.prepare(START, at(10), None)
        await _store_in_parts(shard, batch)

    async def left_by_another(shard: Shard) -> None:
        await _store_in_parts(shard, shard.begin(10))

    with_shard(prepared_here)
    with_shard(left_by_another, pin=at(10))


async def _store_in_parts(shard: Shard, batch: InFlightBatch) -> None:
    shard.checkpoints.advance(batch, at(7))
    await shard.checkpoints.store_before_release()
    assert await shard.stored() == START
    await shard.checkpoints.finish(batch)
    await shard.checkpoints.store_before_release()
    assert await shard.stored() == at(10)


def test_an_earlier_range_stays_prepared_if_another_cannot_be_prepared() -> None:
    """Its effect may exist, so no checkpoint within it may remove its pin."""

    async def scenario(shard: Shard) -> None:
        batch = shard.begin(10)
        await shard.checkpoints.prepare(START, at(10), None)
        shard.rows.is_down = True
        with pytest.raises((UnavailableError, LeaseLostError)):
            await shard.checkpoints.prepare(START, at(7), None)
        shard.checkpoints.advance(batch, at(7))
        assert shard.checkpoints.progress.position_to_store() is None
        shard.checkpoints.advance(batch, at(10))
        assert shard.checkpoints.progress.position_to_store() == at(10)

    with_shard(scenario)


def test_the_end_of_a_shard_is_the_last_position() -> None:
    """The done position is stored before it, since the end may have to wait for another parent."""

    async def scenario(shard: Shard) -> None:
        await shard.checkpoints.finish(shard.begin(10))
        await shard.checkpoints.end_shard(())
        assert await shard.stored() == SHARD_END
        assert shard.checkpoints.progress.stored == SHARD_END
        assert [event.position for event in shard.events if isinstance(event, Checkpointed)] == [at(10)]

    with_shard(scenario, checkpoint_every=timedelta(hours=1))


def test_an_end_that_could_not_be_written_is_not_stored() -> None:
    """The stored position stays where it is in the table, and the end can be written later."""

    async def scenario(shard: Shard) -> None:
        await shard.checkpoints.finish(shard.begin(10))
        await shard.checkpoints.store_before_release()
        shard.rows.is_down = True
        ending = asyncio.create_task(shard.checkpoints.end_shard(()))
        await shard.clock.sleep_ms(1_000)
        await cancel_and_wait(ending)
        assert shard.checkpoints.progress.stored == at(10) == await shard.stored()
        shard.rows.is_down = False
        await shard.checkpoints.end_shard(())
        assert await shard.stored() == SHARD_END

    with_shard(scenario)


@pytest.mark.parametrize(
    ("every_ms", "due_ms"),
    [
        (0, 0),
        (RENEW_MS - 1, RENEW_MS - 1),
        (RENEW_MS, RENEW_MS + RENEW_MS // 2),  # a heartbeat writes it before
        (3 * RENEW_MS, 3 * RENEW_MS + RENEW_MS // 2),
    ],
)
def test_a_checkpoint_is_due_after_the_interval(every_ms: int, due_ms: int) -> None:
    """Counted from the last checkpoint. If heartbeats are as frequent, they get the time to carry it."""

    async def scenario(shard: Shard) -> None:
        checkpoints = shard.checkpoints
        assert checkpoints._wait_ms() == due_ms
        for _ in range(due_ms // RENEW_MS + 1):
            await shard.clock.sleep_ms(RENEW_MS)
            await shard.held.renew()
        assert checkpoints._wait_ms() == 0
        checkpoints.advance(shard.begin(10), at(7))
        await checkpoints.store_before_release()
        assert checkpoints._wait_ms() == due_ms

    with_shard(scenario, checkpoint_every=timedelta(milliseconds=every_ms))


@pytest.mark.parametrize("every_ms", [0, 1, 2, 100])
def test_a_checkpoint_waits_until_it_is_due(every_ms: int) -> None:
    """Not a millisecond less, and not more."""

    async def scenario(shard: Shard) -> None:
        began_ms = shard.clock.now_ms()
        await shard.checkpoints._wait_until_due()
        assert shard.clock.now_ms() - began_ms == every_ms

    with_shard(scenario, checkpoint_every=timedelta(milliseconds=every_ms))


def test_a_checkpoint_is_due_after_so_many_records() -> None:
    """Whole batches count."""

    async def scenario(shard: Shard) -> None:
        await shard.checkpoints.finish(shard.begin(10, records=3))
        assert await shard.stored() == START
        await shard.checkpoints.finish(shard.begin(20, records=1))
        assert await shard.stored() == at(20)
        await shard.checkpoints.finish(shard.begin(30, records=3))
        assert await shard.stored() == at(20)

    with_shard(scenario, checkpoint_every=timedelta(hours=1), checkpoint_records=4)


def test_the_first_position_of_a_shard_is_stored_at_once() -> None:
    """A new owner of a lease at LATEST would skip the records that arrived in between."""

    async def scenario(shard: Shard) -> None:
        await shard.checkpoints.finish(shard.begin(10))
        assert await shard.stored() == at(10)

    with_shard(scenario, start=TRIM_HORIZON, checkpoint_every=timedelta(hours=1))


def test_a_checkpoint_is_reported_with_the_time_of_its_write() -> None:
    """The time includes the retries."""

    async def scenario(shard: Shard) -> None:
        shard.checkpoints.advance(shard.begin(10), at(7))
        await shard.clock.sleep_ms(3_000)
        shard.rows.is_down = True
        writing = asyncio.create_task(shard.checkpoints.store_before_release())
        await shard.clock.sleep_ms(1_000)
        shard.rows.is_down = False
        await writing
        (event,) = [event for event in shard.events if isinstance(event, Checkpointed)]
        assert event.position == at(7)
        assert 1_000 <= event.time_ms < 5_000

    with_shard(scenario)
