"""A reader that knows how much its consumer will take fetches that, and not what would be thrown away."""

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


def limits_asked_for(demand: Demand, *, record_weight: int | None, slices: int) -> list[int]:
    """How many records the calls asked for until so many slices had come, of a shard with a long backlog."""

    async def read() -> list[int]:
        world = ReadWorld()
        world.put(4_000, size=RECORD_BYTES)
        async with world.read(record_weight=record_weight, demand=demand) as found:
            for _ in range(slices):
                world.budget.release((await anext(found)).size_bytes)
            return world.stream.limits

    return run_in_virtual_time(read())


def test_a_known_weight_saves_the_first_small_call() -> None:
    """Whoever read the shard before knows what a call brings: a second's worth comes at once."""
    weight = RECORD_BYTES + RECORD_OVERHEAD_BYTES
    assert limits_asked_for(Demand(), record_weight=weight, slices=1) == [2_000_000 // weight]


def test_no_more_is_asked_for_than_is_wanted() -> None:
    """Neither more records nor more bytes; the nearer limit counts."""
    weight = RECORD_BYTES + RECORD_OVERHEAD_BYTES
    assert limits_asked_for(Demand(records=30), record_weight=weight, slices=1) == [30]
    assert limits_asked_for(Demand(30, 20 * RECORD_BYTES), record_weight=weight, slices=1) == [20]


def test_what_came_is_no_longer_wanted() -> None:
    """After a first small call, the next one asks for the rest."""
    assert limits_asked_for(Demand(records=30), record_weight=None, slices=2) == [10, 20]


def test_whoever_reads_on_is_not_held_back() -> None:
    """A slice may have to go on to an end that someone else pinned: calls are as large as ever then."""
    asked = limits_asked_for(Demand(records=5), record_weight=None, slices=2)
    assert asked[0] == 10
    assert asked[1] > 1_000


def test_a_pin_tells_the_next_reader_what_a_record_weighs() -> None:
    """The weight travels in the note; notes from before there was one are still understood."""
    for note in (PinMetadata(GenerationId("e", 1), record_weight=1_234), PinMetadata(GenerationId("e", 1))):
        pin = Pin(Position("7"), pin_metadata_to_bytes(note))
        lease = Lease(key=LeaseKey("shard"), shard_id=ShardId("shard"), checkpoint=Position("1"), pin=pin)
        assert pin_metadata(lease) == note
