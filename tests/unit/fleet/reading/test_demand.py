"""A reader that knows how much its consumer needs fetches only that."""

from leasehold.core.exactly_once.pinned_batch import (
    GenerationId,
    PinMetadata,
    pin_metadata,
    pin_metadata_to_bytes,
)
from leasehold.core.model import Lease, LeaseKey, Pin, ShardId
from leasehold.core.position import Position
from leasehold.fleet.reading.chunking import RECORD_OVERHEAD_BYTES, Demand
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import ReadWorld

RECORD_BYTES = 1_000


def limits_asked_for(
    demand: Demand, *, record_weight: int | None, slices: int, in_one_call: bool = False
) -> list[int]:
    """The limits of the calls until so many chunks arrived, for a shard with a long backlog."""

    async def read() -> list[int]:
        world = ReadWorld()
        world.put(4_000, size=RECORD_BYTES)
        async with world.read(record_weight=record_weight, demand=demand, in_one_call=in_one_call) as found:
            for _ in range(slices):
                world.budget.release((await anext(found)).size_bytes)
            return world.stream.limits

    return run_in_virtual_time(read())


def test_a_known_record_size_avoids_the_first_small_call() -> None:
    """If the size of a record is known from an earlier read, the first call reads as much as a second allows."""
    weight = RECORD_BYTES + RECORD_OVERHEAD_BYTES
    assert limits_asked_for(Demand(), record_weight=weight, slices=1) == [2_000_000 // weight]


def test_no_more_is_requested_than_needed() -> None:
    """The lower of the limits for records and bytes counts."""
    weight = RECORD_BYTES + RECORD_OVERHEAD_BYTES
    assert limits_asked_for(Demand(records=30), record_weight=weight, slices=1) == [30]
    assert limits_asked_for(Demand(30, 20 * RECORD_BYTES), record_weight=weight, slices=1) == [20]


def test_a_demand_above_the_quota_of_a_second_can_be_one_call() -> None:
    """If the consumer does not read on at once. Kinesis returns up to 10 MB, which is the quota of five seconds."""
    weight = RECORD_BYTES + RECORD_OVERHEAD_BYTES

    def limits(size_bytes: int, *, in_one_call: bool) -> list[int]:
        demand = Demand(size_bytes=size_bytes)
        return limits_asked_for(demand, record_weight=weight, slices=1, in_one_call=in_one_call)

    assert limits(3_000_000, in_one_call=True) == [3_000]
    assert limits(90_000_000, in_one_call=True) == [10_000_000 // weight]
    assert limits(3_000_000, in_one_call=False) == [2_000_000 // weight]


def test_a_reader_waits_for_the_quota_that_the_last_one_has_used() -> None:
    """And says when it is there again."""

    async def read() -> tuple[int, int]:
        world = ReadWorld()
        world.put(100, size=RECORD_BYTES)
        async with world.read(
            record_weight=RECORD_BYTES, demand=Demand(size_bytes=50_000), wait_ms=700
        ) as found:
            chunk = await anext(found)
        began_ms = world.stream.times("get_records")[0]
        assert chunk.quota_ms is not None
        assert len(chunk.records) == 63
        return began_ms, chunk.quota_ms - began_ms

    waited_ms, quota_ms = run_in_virtual_time(read())
    assert waited_ms == 700
    assert 31 <= quota_ms <= 34


def test_the_next_call_requests_only_the_rest() -> None:
    """After a first small call, the next call requests the remaining records."""
    assert limits_asked_for(Demand(records=30), record_weight=None, slices=2) == [10, 20]


def test_a_reader_that_continues_past_the_demand_makes_large_calls() -> None:
    """A slice may have to continue to an end that another attempt pinned. Then calls have their usual size."""
    asked = limits_asked_for(Demand(records=5), record_weight=None, slices=2)
    assert asked[0] == 10
    assert asked[1] > 1_000


def test_the_metadata_of_a_pin_contains_the_size_of_a_record() -> None:
    """Metadata without the size, from an older version, is still read."""
    for note in (PinMetadata(GenerationId("e", 1), record_weight=1_234), PinMetadata(GenerationId("e", 1))):
        pin = Pin(Position("7"), pin_metadata_to_bytes(note))
        lease = Lease(key=LeaseKey("shard"), shard_id=ShardId("shard"), checkpoint=Position("1"), pin=pin)
        assert pin_metadata(lease) == note
