"""Streams as plain values and back."""

import json
from collections.abc import Callable

from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.snapshot import (
    SavedRecords,
    records_to_columns,
    restore_records,
    stream_from_values,
    stream_to_values,
)
from tests.unit.kinesis_model.model_under_test import HOUR_MS, ModelUnderTest, shard_id_of


def restored(world: ModelUnderTest) -> ModelUnderTest:
    """The same world after its stream went through JSON, with records in two parts."""
    values = json.loads(json.dumps(stream_to_values(world.stream)))
    copy = ModelUnderTest()
    copy.now_ms = world.now_ms
    copy.service = KinesisModel(settings=world.service.settings)
    copy.service.epochs.last_ms = world.service.epochs.last_ms
    stream = stream_from_values(values, copy.service.epochs, copy.service.account)
    copy.service.streams["s"] = stream
    for shard in world.stream.shards.values():
        columns = records_to_columns(shard)
        count = len(columns.data)
        for part in (slice(0, count // 2), slice(count // 2, count)):
            half = SavedRecords(columns.arrivals_ms[part], columns.partition_keys[part], columns.data[part])
            restore_records(stream.shards[shard.id], half, part.start, count)
    return copy


def everything(world: ModelUnderTest) -> list[object]:
    """All that a reader can see."""
    pages = [world.get(world.iterator(shard)) for shard in world.listed()]
    return [stream_to_values(world.stream), [(list(page.records), following) for page, following in pages]]


def test_a_stream_comes_back_as_it_was() -> None:
    """Shards, genealogy, trimmed shards, records, numbers, consumers, tags."""
    world = ModelUnderTest(shards=2)
    world.put("été".encode(), key="ключ")
    world.now_ms += 23 * HOUR_MS
    for number in range(5):
        world.put(bytes([number]), hash_key=number)
    world.split(0, at=1000)
    world.put(b"in a child", hash_key=0)
    world.merge(2, 3)
    world.service.register_consumer(world.now_ms, "s", "c")
    world.stream.tags["team"] = "billing"
    world.stream.kms_key = "key"
    world.now_ms += 2 * HOUR_MS
    assert everything(restored(world)) == everything(world)


def test_numbers_go_on_rising() -> None:
    """The next record and the next child number above everything from before."""
    world = ModelUnderTest()
    before = world.put().number
    copy = restored(world)
    after = copy.put().number
    copy.split()
    assert before < after < int(copy.stream.shard(shard_id_of(1)).to_shard().starting_sequence_number)


def test_a_shard_whose_records_were_all_trimmed_keeps_its_place() -> None:
    """Its counter goes on although no record is left to count from."""
    world = ModelUnderTest()
    before = world.put().number
    world.stream.trim_all_records()
    copy = restored(world)
    assert copy.read() == []
    assert copy.put(b"new").number > before
    assert copy.read() == [b"new"]


def test_a_change_under_way_goes_on() -> None:
    """A reshard that was pending takes effect when its time has come."""
    changes: list[tuple[Callable[[ModelUnderTest], object], list[int]]] = [
        (lambda world: world.split(0, at=1000), [1, 2, 3]),
        (lambda world: world.merge(0, 1), [2]),
        (lambda world: world.service.update_shard_count(world.now_ms, "s", 4), [2, 3, 4, 5]),
    ]
    for change, expected in changes:
        world = ModelUnderTest(shards=2, status_delay_ms=500)
        world.now_ms += 500
        change(world)
        copy = restored(world)
        assert copy.listed("AT_LATEST") == [0, 1]
        copy.now_ms += 500
        assert copy.listed("AT_LATEST") == expected


def test_a_stream_in_creation_is_created() -> None:
    """Also across a restart."""
    world = ModelUnderTest(shards=3, status_delay_ms=500)
    copy = restored(world)
    copy.now_ms += 500
    assert copy.listed("AT_LATEST") == [0, 1, 2]
