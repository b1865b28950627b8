"""Slices of a query with consumerMode=efo: subscriptions where they are possible at once, and the same pinned rows."""

import pytest

from leasehold.config.settings import Retrieval
from leasehold.core.events import GapFound
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.exactly_once.slice_limits import SliceLimits
from leasehold.core.position import Position
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.errors import UnavailableError
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import HOUR_MS, SHARD, ReadWorld, numbers_of
from tests.unit.spark.test_pinned_slices import SliceWorld, plan_for


@pytest.fixture(autouse=True)
def _fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadWorld, "retrieval", Retrieval.FAN_OUT)


def test_a_slice_is_read_by_a_subscription_up_to_its_limit() -> None:
    """The limits decide where it ends, not the events. The connection is closed after it."""

    async def main() -> None:
        world = SliceWorld()
        world.put(5)
        done = await world.slice_of(plan_for(await world.taken(), limits=SliceLimits(records=3)))
        assert done is not None
        assert numbers_of(done.records) == [0, 1, 2]
        assert (len(world.fan_out.times("subscribe")), world.fan_out.open_subscriptions) == (1, 0)
        assert world.stream.times("get_records") == []

    run_in_virtual_time(main())


def test_a_slice_that_follows_at_once_is_polled() -> None:
    """Kinesis refuses a second subscription for five seconds. A short batch does not wait for it."""

    async def main() -> None:
        world = SliceWorld()
        world.put(5)
        lease = await world.taken()
        await world.slice_of(plan_for(lease, limits=SliceLimits(records=3)))
        again = await world.slice_of(plan_for(lease, limits=SliceLimits(records=4)))
        assert again is not None
        assert numbers_of(again.records) == [0, 1, 2]  # as it was pinned
        assert world.clock.now_ms() < 1_000
        assert len(world.fan_out.times("subscribe")) == 1
        assert world.stream.times("get_records")

    run_in_virtual_time(main())


def test_a_subscription_that_breaks_is_continued_by_polling() -> None:
    """In the same task, with nothing lost or repeated."""

    async def main() -> None:
        world = SliceWorld()
        world.put(2_500, size=1_000)  # several events
        await world.clock.sleep_ms(1_000)
        events = iter([None, UnavailableError("cut")])
        world.fan_out.failure_for = lambda called: next(events, None) if called == "event" else None
        done = await world.slice_of(plan_for(await world.taken()))
        assert done is not None
        assert numbers_of(done.records) == list(range(2_500))
        assert world.stream.times("get_records")

    run_in_virtual_time(main())


def test_a_repeated_slice_is_polled() -> None:
    """Its end is pinned, so the task only fetches these records again."""

    async def main() -> None:
        world = SliceWorld()
        world.put(5)
        lease = await world.taken()
        first = await world.slice_of(plan_for(lease, limits=SliceLimits(records=3)))
        assert first is not None
        world.put(5)
        await world.clock.sleep_ms(10_000)
        again = await world.slice_of(plan_for(await world.lease(), replay_to=first.end))
        assert again is not None
        assert again.records == first.records
        assert len(world.fan_out.times("subscribe")) == 1

    run_in_virtual_time(main())


def test_a_shard_that_was_idle_for_days_is_no_loss() -> None:
    """The driver has polled it all the time: its iterator shows that nothing lies between the trimmed record and it."""

    async def main() -> None:
        world = SliceWorld()
        (number,) = world.put(1)
        start = IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, number)
        await world.clock.sleep_ms(26 * HOUR_MS)
        iterator = await world.stream.get_iterator(SHARD, start)
        world.put(2)
        lease = await world.taken(Position(number))
        done = await world.slice_of(plan_for(lease, start=ReadStart(Position(number)), iterator=iterator))
        assert done is not None
        assert numbers_of(done.records) == [1, 2]
        assert world.fan_out.starts == [start]
        assert not world.events_of(GapFound)

    run_in_virtual_time(main())
