"""Fetching, pinning and delivering slices, on virtual time."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.core.events import GapFound, ReadThrottled
from leasehold.core.exactly_once.pinned_batch import (
    GenerationId,
    PinMetadata,
    pin_metadata,
    pin_metadata_to_bytes,
)
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.exactly_once.slice_limits import SliceLimits
from leasehold.core.model import HASH_KEY_MAX, HashRange, Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import DEFAULT_DEAGGREGATION
from leasehold.errors import DataLossError, UnavailableError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query.pinned_slices import (
    PinnedSlice,
    ReaderPorts,
    SlicePlan,
    _Fetched,
    fetch_and_pin,
)
from tests.unit.fleet.reading.reading_world import HOUR_MS, SHARD, ReadWorld, numbers_of
from tests.unit.spark.query_world import GatedRows

STAMP = GenerationId("00c0ffee", 4)
ME = WorkerId("me")


@dataclass
class SliceWorld(ReadWorld):
    """A stream with one shard, and its lease."""

    trouble: Callable[[str, str], StoreFault | None] = lambda _operation, _key: None
    fail_on_data_loss: bool = True
    rows: MemoryRows = field(default_factory=MemoryRows)

    @property
    def table(self) -> LeaseTable:
        return LeaseTable(FaultyRows(self.rows, self.trouble))

    async def taken(self, at: Position = TRIM_HORIZON) -> Lease:
        """The lease, owned by this member."""
        free = Lease(key=LeaseKey(SHARD), shard_id=SHARD, checkpoint=at)
        await LeaseTable(self.rows).create(free)
        taken = await LeaseTable(self.rows).take(free, ME, LeaseSessionId("first"))
        assert isinstance(taken, Lease)
        return taken

    async def slice_of(self, plan: SlicePlan, table: LeaseTable | None = None) -> PinnedSlice | None:
        ports = ReaderPorts(
            stream=self.stream,
            table=table or self.table,
            clock=self.clock,
            rng=random.Random(1),
            observe=self.events.append,
            budget=self.budget,
            read=self.settings,
            deaggregation=DEFAULT_DEAGGREGATION,
            fail_on_data_loss=self.fail_on_data_loss,
            consumer=self.consumer,
        )
        return await fetch_and_pin(plan, ports)

    async def lease(self) -> Lease:
        found = await LeaseTable(self.rows).get(LeaseKey(SHARD))
        assert found is not None
        return found


def plan_for(lease: Lease, **changes: object) -> SlicePlan:
    plan = SlicePlan(lease, STAMP, ReadStart(lease.checkpoint), SliceLimits(), "orders")
    return replace(plan, **changes)  # type: ignore[arg-type]


def test_a_slice_ends_at_its_limit_and_its_metadata_says_that_there_is_more() -> None:
    """Records beyond the limit were read and are not delivered."""

    async def main() -> None:
        world = SliceWorld()
        world.put(5)
        lease = await world.taken()
        done = await world.slice_of(plan_for(lease, limits=SliceLimits(records=3)))
        assert done is not None
        assert numbers_of(done.records) == [0, 1, 2]
        now = await world.lease()
        assert now.pin is not None
        assert now.pin.end == done.end == done.records[-1].position
        note = pin_metadata(now)
        assert note is not None
        assert (note.generation_id, note.records, note.has_more, note.children) == (STAMP, 3, True, None)

    run_in_virtual_time(main())


def test_large_slices_one_after_the_other_are_read_at_the_pace_of_kinesis() -> None:
    """Each is one response, and the next one waits until Kinesis would not throttle it."""

    async def main() -> None:
        world = SliceWorld(service_settings=ServiceSettings(enforce_limits=True))
        for _ in range(40):
            world.put(1, size=300_000)
            await world.clock.sleep_ms(1_000)
        lease, began_ms, sizes = await world.taken(), world.clock.now_ms(), []
        for number in range(4):
            start = lease.pin.end if lease.pin else lease.checkpoint
            done = await world.slice_of(
                plan_for(
                    lease,
                    start=ReadStart(start),
                    generation_id=GenerationId("00c0ffee", number),
                    limits=SliceLimits(size_bytes=3_600_000),
                )
            )
            assert done is not None
            sizes.append(len(done.records))
            lease = await world.lease()
        assert sizes == [11, 11, 11, 7]
        assert not world.events_of(ReadThrottled)
        # A first call of ten records shows their size. Then each slice is one call.
        assert len(world.stream.times("get_records")) == 5
        assert 5_500 <= world.clock.now_ms() - began_ms <= 6_000

    run_in_virtual_time(main())


@pytest.mark.parametrize("limits", [SliceLimits(records=1_000), SliceLimits(None, 9_000_000, 60_000)])
def test_a_slice_that_may_end_early_is_read_in_calls_of_one_second(limits: SliceLimits) -> None:
    """What was read beyond its end is read again, and would use up the quota of the shard."""

    async def main() -> None:
        world = SliceWorld()
        world.put(40, size=300_000)
        lease = await world.taken()
        metadata = PinMetadata(GenerationId("00c0ffee", 3), record_weight=300_200)
        pinned = await world.table.pin(lease, TRIM_HORIZON, pin_metadata_to_bytes(metadata), ("00c0ffee", 3))
        assert isinstance(pinned, Lease)
        assert await world.slice_of(plan_for(pinned, limits=limits)) is not None
        assert set(world.stream.limits) == {2_000_000 // 300_200}

    run_in_virtual_time(main())


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_repeated_slice_with_chunks_whose_records_were_dropped(*, fail_on_data_loss: bool) -> None:
    """They are not the tip of the shard, though the page that they belong to ends there."""

    async def main() -> None:
        world = SliceWorld(fail_on_data_loss=fail_on_data_loss)
        for _ in range(3):
            world.put_aggregate(1, stray_key=HASH_KEY_MAX)
        world.put(2, size=600_000)
        lease = replace(await world.taken(), hash_range=HashRange(0, 99))
        first = await world.slice_of(plan_for(lease))
        assert first is not None
        now = replace(await world.lease(), hash_range=lease.hash_range)
        again = await world.slice_of(plan_for(now, start=ReadStart(TRIM_HORIZON), replay_to=first.end))
        assert again is not None
        assert list(again.records) == list(first.records)
        assert len(first.records) == 2
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


def test_a_wrong_time_in_the_metadata_delays_a_slice_by_five_seconds_at_most() -> None:
    """The clock of another machine may be ahead."""

    async def main() -> None:
        world = SliceWorld()
        world.put(2)
        lease = await world.taken()
        metadata = PinMetadata(GenerationId("00c0ffee", 3), quota_at_ms=world.clock.wall_ms() + HOUR_MS)
        pinned = await world.table.pin(lease, TRIM_HORIZON, pin_metadata_to_bytes(metadata), ("00c0ffee", 3))
        assert isinstance(pinned, Lease)
        began_ms = world.clock.now_ms()
        done = await world.slice_of(plan_for(pinned))
        assert done is not None
        assert len(done.records) == 2
        assert world.stream.times("get_records")[0] - began_ms == 5_000

    run_in_virtual_time(main())


def test_the_end_of_a_shard_is_in_the_metadata_and_never_pinned() -> None:
    """A redelivery needs the position of a record to read to. The planner needs the children."""

    async def main() -> None:
        world = SliceWorld()
        world.split()
        assert await world.slice_of(plan_for(await world.taken())) is None
        now = await world.lease()
        assert now.pin is not None
        assert now.pin.end == TRIM_HORIZON
        note = pin_metadata(now)
        assert note is not None
        assert note.children is not None
        assert len(note.children) == 2

    run_in_virtual_time(main())


def test_an_empty_slice_is_pinned_at_its_beginning() -> None:
    """Otherwise another attempt could find records."""

    async def main() -> None:
        world = SliceWorld()
        lease = await world.taken()
        assert await world.slice_of(plan_for(lease)) is None
        world.put(3)
        assert await world.slice_of(plan_for(lease)) is None
        now = await world.lease()
        assert now.pin is not None
        assert now.pin.end == TRIM_HORIZON

    run_in_virtual_time(main())


@pytest.mark.parametrize("first", [2, 4])
def test_a_second_attempt_delivers_exactly_up_to_the_first_pin(first: int) -> None:
    """Without the pin it would have ended elsewhere."""

    async def main() -> None:
        world = SliceWorld()
        world.put(6)
        lease = await world.taken()
        one = await world.slice_of(plan_for(lease, limits=SliceLimits(records=first)))
        two = await world.slice_of(plan_for(lease, limits=SliceLimits(records=3)))
        assert one is not None
        assert two is not None
        assert one.records == two.records
        assert len(one.records) == first

    run_in_virtual_time(main())


@pytest.mark.parametrize("is_promoted", [True, False])
def test_a_slice_is_pinned_although_the_row_has_changed_since_the_plan(is_promoted: bool) -> None:
    """The driver has promoted the batch before, or another member has requested the lease. The slice is still ours."""

    async def main() -> None:
        world = SliceWorld()
        numbers, table = world.put(4), LeaseTable(world.rows)
        before = GenerationId(STAMP.query_id, STAMP.number - 1)
        planned = await table.pin(
            await world.taken(),
            Position(numbers[1]),
            pin_metadata_to_bytes(PinMetadata(before, records=2)),
            (before.query_id, before.number),
        )
        assert isinstance(planned, Lease)
        plan = plan_for(planned, start=ReadStart(Position(numbers[1])))
        changed = await (
            table.promote(planned) if is_promoted else table.request_handoff(planned, WorkerId("other"))
        )
        assert isinstance(changed, Lease)
        done = await world.slice_of(plan)
        assert done is not None
        assert numbers_of(done.records) == [2, 3]
        now = await world.lease()
        assert (now.checkpoint, now.pin and now.pin.end) == (Position(numbers[1]), Position(numbers[3]))

    run_in_virtual_time(main())


def test_a_pin_whose_response_was_lost_is_recognized() -> None:
    """The row shows that the write happened."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        lease = await world.taken()
        lost = iter([StoreFault.RESPONSE_LOST, StoreFault.RESPONSE_LOST])
        world.trouble = lambda operation, _key: next(lost, None) if operation == "write" else None
        done = await world.slice_of(plan_for(lease))
        assert done is not None
        assert len(done.records) == 3

    run_in_virtual_time(main())


def test_nothing_is_delivered_without_a_pin() -> None:
    """The task fails if the table cannot be written. The next attempt finds the slice unchanged."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        lease = await world.taken()
        world.trouble = lambda operation, _key: StoreFault.REQUEST_LOST if operation == "write" else None
        with pytest.raises(UnavailableError):
            await world.slice_of(plan_for(lease))
        assert (await world.lease()).pin is None

    run_in_virtual_time(main())


def test_nothing_is_delivered_after_the_lease_was_lost() -> None:
    """A lease that was lost and taken again has another session."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        lease = await world.taken()
        for owner in (WorkerId("thief"), ME):
            await LeaseTable(world.rows).take(await world.lease(), owner, LeaseSessionId(f"of {owner}"))
            assert await world.slice_of(plan_for(lease)) is None
        assert (await world.lease()).pin is None

    run_in_virtual_time(main())


def test_an_unfinished_slice_of_another_owner_is_redelivered_with_new_metadata() -> None:
    """It ends at the pin, although there are more records and the limits are lower."""

    async def main() -> None:
        world = SliceWorld()
        numbers = world.put(6)
        lease = await world.taken()
        pinned = await LeaseTable(world.rows).pin(lease, Position(numbers[3]), b"a stranger's")
        assert isinstance(pinned, Lease)
        plan = plan_for(pinned, limits=SliceLimits(records=2), redeliver_to=Position(numbers[3]))
        for _ in range(2):
            done = await world.slice_of(plan)
            assert done is not None
            assert numbers_of(done.records) == [0, 1, 2, 3]
        note = pin_metadata(await world.lease())
        assert note is not None
        assert note.generation_id == STAMP

    run_in_virtual_time(main())


def test_the_metadata_of_a_later_batch_is_not_overwritten() -> None:
    """A late redelivery finds that the slice belongs to another generation."""

    async def main() -> None:
        world = SliceWorld()
        numbers = world.put(3)
        table = LeaseTable(world.rows)
        pinned = await table.pin(await world.taken(), Position(numbers[1]), b"a stranger's")
        assert isinstance(pinned, Lease)
        plan = plan_for(pinned, redeliver_to=Position(numbers[1]))
        assert await world.slice_of(replace(plan, generation_id=STAMP.next)) is not None
        assert await world.slice_of(plan) is None
        note = pin_metadata(await world.lease())
        assert note is not None
        assert note.generation_id == STAMP.next

    run_in_virtual_time(main())


def test_a_replay_writes_nothing_and_ends_at_the_pin() -> None:
    """It delivers nothing if the pin has another end, or after another member has redelivered the slice."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        first = await world.slice_of(plan_for(await world.taken()))
        world.put(3)
        before = await world.lease()
        assert first is not None
        again = plan_for(before, start=ReadStart(TRIM_HORIZON), replay_to=first.end)
        done = await world.slice_of(again)
        assert done is not None
        assert done.records == first.records
        assert await world.lease() == before
        assert await world.slice_of(replace(again, replay_to=first.records[0].position)) is None
        await LeaseTable(world.rows).repin(
            before, pin_metadata_to_bytes(PinMetadata(GenerationId("0badcafe", 1)))
        )
        assert await world.slice_of(again) is None

    run_in_virtual_time(main())


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_slice_of_dropped_records_is_repeated_without_a_loss(by_worker: bool) -> None:
    """The records of an aggregate belong to another shard. A worker writes no metadata that says how many are left."""

    async def main() -> None:
        world = SliceWorld()
        world.put_aggregate(1, stray_key=HASH_KEY_MAX)
        lease = replace(await world.taken(), hash_range=HashRange(0, 99))
        first = await world.slice_of(plan_for(lease))
        assert first is not None
        assert list(first.records) == []
        pinned = replace(await world.lease(), hash_range=lease.hash_range)
        if by_worker:
            assert pinned.pin is not None
            pinned = replace(pinned, pin=replace(pinned.pin, state=None))
        done = await world.slice_of(plan_for(pinned, start=ReadStart(TRIM_HORIZON), replay_to=first.end))
        assert done is not None
        assert (list(done.records), done.end) == ([], first.end)
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


def test_trimmed_records_are_an_error_unless_the_options_allow_them() -> None:
    """The error names the shard, the next position and the option."""

    async def main() -> None:
        world = SliceWorld()
        numbers = world.put(3)
        lease = await world.taken(Position(numbers[0]))
        await world.clock.sleep_ms(25 * HOUR_MS)
        kept = world.put(2)
        with pytest.raises(DataLossError, match=f"{SHARD}.*{numbers[0]}.*{kept[0]}.*failOnDataLoss=false"):
            await world.slice_of(plan_for(lease))
        world.fail_on_data_loss = False
        done = await world.slice_of(plan_for(lease))
        assert done is not None
        assert numbers_of(done.records) == [3, 4]

    run_in_virtual_time(main())


def test_a_pinned_slice_that_was_trimmed_is_an_error() -> None:
    """It cannot be delivered again."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        first = await world.slice_of(plan_for(await world.taken()))
        assert first is not None
        await world.clock.sleep_ms(25 * HOUR_MS)
        again = plan_for(await world.lease(), start=ReadStart(TRIM_HORIZON), replay_to=first.end)
        with pytest.raises(DataLossError, match="were trimmed"):
            await world.slice_of(again)
        world.fail_on_data_loss = False
        done = await world.slice_of(again)
        assert done is None or not done.records

    run_in_virtual_time(main())


@pytest.mark.parametrize("starts_at_record", [False, True])
@pytest.mark.parametrize("newer", [0, 2])
def test_a_repeated_slice_without_its_trimmed_records_is_reported(newer: int, starts_at_record: bool) -> None:
    """An iterator at TRIM_HORIZON skips trimmed records; so does the tip. The number in the pin shows the loss."""

    async def main() -> None:
        world = SliceWorld()
        numbers = world.put(3)
        lease = await world.taken(Position(numbers[0]) if starts_at_record else TRIM_HORIZON)
        first = await world.slice_of(plan_for(lease))
        assert first is not None
        await world.clock.sleep_ms(25 * HOUR_MS)
        world.put(newer)
        again = plan_for(await world.lease(), start=ReadStart(lease.checkpoint), replay_to=first.end)
        with pytest.raises(DataLossError, match="were trimmed before"):
            await world.slice_of(again)
        world.events.clear()
        world.fail_on_data_loss = False
        done = await world.slice_of(again)
        assert done is not None
        assert done.records == ()
        assert [event.gap.after for event in world.events_of(GapFound)] == [lease.checkpoint]

    run_in_virtual_time(main())


def test_an_attempt_that_reads_before_a_trim_delivers_what_was_pinned_after_it() -> None:
    """Two attempts run at once. The one that read after the trim pins first, so the other drops the trimmed rows."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        plan = plan_for(await world.taken())
        await world.clock.sleep_ms(23 * HOUR_MS)
        world.put(2)
        gate, waits = asyncio.Event(), asyncio.Event()
        late = asyncio.create_task(world.slice_of(plan, LeaseTable(GatedRows(world.rows, gate, waits))))
        await waits.wait()
        await world.clock.sleep_ms(2 * HOUR_MS)
        first = await world.slice_of(plan)
        gate.set()
        delivered = [each and numbers_of(each.records) for each in (first, await late)]
        assert delivered == [[3, 4], [3, 4]]

    run_in_virtual_time(main())


def test_a_late_attempt_pins_nothing_after_the_empty_slice_was_promoted() -> None:
    """Then the row is as it was planned, except for the generation that it remembers."""

    async def main() -> None:
        world = SliceWorld()
        plan = plan_for(await world.taken())
        assert await world.slice_of(plan) is None
        assert isinstance(await LeaseTable(world.rows).promote(await world.lease()), Lease)
        world.put(3)
        assert await world.slice_of(plan) is None
        assert (await world.lease()).pin is None
        following = replace(plan_for(await world.lease()), generation_id=STAMP.next)
        done = await world.slice_of(following)
        assert done is not None
        assert numbers_of(done.records) == [0, 1, 2]

    run_in_virtual_time(main())


def test_records_that_arrive_after_the_tip_was_read_are_not_taken_for_trimmed_ones() -> None:
    """Another attempt has read and pinned them. Pages that were read ahead before do not contain them."""

    async def main() -> None:
        world = SliceWorld()
        world.put(1)
        plan = plan_for(await world.taken())
        gate, waits = asyncio.Event(), asyncio.Event()
        late = asyncio.create_task(world.slice_of(plan, LeaseTable(GatedRows(world.rows, gate, waits))))
        await waits.wait()
        await world.clock.sleep_ms(10_000)
        world.put(2)
        first = await world.slice_of(plan)
        gate.set()
        delivered = [each and numbers_of(each.records) for each in (first, await late)]
        assert delivered == [[0, 1, 2], [0, 1, 2]]
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())


def test_a_redelivered_slice_without_its_trimmed_records_is_an_error() -> None:
    """An earlier owner pinned the slice and did not deliver it."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        first = await world.slice_of(plan_for(await world.taken()))
        assert first is not None
        await world.clock.sleep_ms(25 * HOUR_MS)
        world.put(1)
        plan = plan_for(await world.lease(), start=ReadStart(TRIM_HORIZON), redeliver_to=first.end)
        with pytest.raises(DataLossError, match="were trimmed before the batch was repeated"):
            await world.slice_of(replace(plan, generation_id=STAMP.next))

    run_in_virtual_time(main())


def test_a_pinned_slice_of_an_ended_shard_that_was_trimmed_is_an_error() -> None:
    """The end of the shard comes before the pinned end. That is no reason to deliver less."""

    async def main() -> None:
        world = SliceWorld()
        world.put(3)
        first = await world.slice_of(plan_for(await world.taken()))
        assert first is not None
        world.split()
        await world.clock.sleep_ms(25 * HOUR_MS - 1)
        again = plan_for(await world.lease(), start=ReadStart(TRIM_HORIZON), replay_to=first.end)
        with pytest.raises(DataLossError, match="were trimmed"):
            await world.slice_of(again)

    run_in_virtual_time(main())


def test_a_late_attempt_does_not_replace_the_pin_of_an_empty_slice() -> None:
    """Two empty slices in a row have the same end. The second is pinned all the same."""

    async def main() -> None:
        world = SliceWorld()
        number = world.put(1)[0]
        start = ReadStart(Position(number))
        await world.slice_of(plan_for(await world.taken()))
        for generation in (5, 6):
            plan = replace(
                plan_for(await world.lease(), start=start), generation_id=GenerationId("00c0ffee", generation)
            )
            assert await world.slice_of(plan) is None
        world.put(3)
        assert await world.slice_of(plan) is None
        pin = (await world.lease()).pin
        assert pin is not None
        assert pin.end == Position(number)

    run_in_virtual_time(main())


def test_the_records_up_to_an_end_are_all_that_were_read() -> None:
    """More may have been read since the last answer, for the same end."""
    unused: Any = None
    fetched = _Fetched(unused, unused, unused, unused)
    for count, number in enumerate(("5", "7", "9"), start=1):
        fetched.read.add([Record(b"", "key", number).as_user_record()])
        assert len(fetched.up_to(Position("8"))) == min(count, 2)
        assert len(fetched.up_to(Position("6"))) == 1
        assert len(fetched.up_to(Position("8"))) == min(count, 2)
