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


def save_and_restore(model: ModelUnderTest) -> ModelUnderTest:
    """Save the stream of a model as JSON, with records in two parts, and restore it."""
    values = json.loads(json.dumps(stream_to_values(model.stream)))
    copy = ModelUnderTest()
    copy.now_ms = model.now_ms
    copy.service = KinesisModel(settings=model.service.settings)
    copy.service.epochs.last_ms = model.service.epochs.last_ms
    stream = stream_from_values(values, copy.service.epochs, copy.service.account)
    copy.service.streams["s"] = stream
    for shard in model.stream.shards.values():
        columns = records_to_columns(shard)
        count = len(columns.data)
        for part in (slice(0, count // 2), slice(count // 2, count)):
            half = SavedRecords(columns.arrivals_ms[part], columns.partition_keys[part], columns.data[part])
            restore_records(stream.shards[shard.id], half, part.start, count)
    return copy


def visible_state(model: ModelUnderTest) -> list[object]:
    """Return visible_state that a reader can see."""
    pages = [model.get(model.iterator(shard)) for shard in model.list_shards()]
    return [stream_to_values(model.stream), [(list(page.records), following) for page, following in pages]]


def test_a_restored_stream_equals_the_saved_one() -> None:
    """Shards, parents and children, trimmed shards, records, numbers, consumers, tags."""
    model = ModelUnderTest(shards=2)
    model.put("été".encode(), key="ключ")
    model.now_ms += 23 * HOUR_MS
    for number in range(5):
        model.put(bytes([number]), hash_key=number)
    model.split(0, at=1000)
    model.put(b"in a child", hash_key=0)
    model.merge(2, 3)
    model.service.register_consumer(model.now_ms, "s", "c")
    model.stream.config.tags["team"] = "billing"
    model.stream.config.kms_key = "key"
    model.now_ms += 2 * HOUR_MS
    assert visible_state(save_and_restore(model)) == visible_state(model)


def test_numbers_continue_to_increase_after_a_restore() -> None:
    """The next record and the next child have higher numbers than visible_state before."""
    model = ModelUnderTest()
    before = model.put().number
    copy = save_and_restore(model)
    after = copy.put().number
    copy.split()
    assert before < after < int(copy.stream.shard(shard_id_of(1)).to_shard().starting_sequence_number)


def test_a_shard_without_records_keeps_its_counter() -> None:
    """The counter continues although no record is left to count from."""
    model = ModelUnderTest()
    before = model.put().number
    model.stream.trim_all_records()
    copy = save_and_restore(model)
    assert copy.read() == []
    assert copy.put(b"new").number > before
    assert copy.read() == [b"new"]


def test_a_pending_reshard_is_restored() -> None:
    """It takes effect when it is due."""
    changes: list[tuple[Callable[[ModelUnderTest], object], list[int]]] = [
        (lambda model: model.split(0, at=1000), [1, 2, 3]),
        (lambda model: model.merge(0, 1), [2]),
        (lambda model: model.service.update_shard_count(model.now_ms, "s", 4), [2, 3, 4, 5]),
    ]
    for change, expected in changes:
        model = ModelUnderTest(shards=2, status_delay_ms=500)
        model.now_ms += 500
        change(model)
        copy = save_and_restore(model)
        assert copy.list_shards("AT_LATEST") == [0, 1]
        copy.now_ms += 500
        assert copy.list_shards("AT_LATEST") == expected


def test_a_pending_creation_is_restored() -> None:
    """The stream becomes ACTIVE after the restore."""
    model = ModelUnderTest(shards=3, status_delay_ms=500)
    copy = save_and_restore(model)
    copy.now_ms += 500
    assert copy.list_shards("AT_LATEST") == [0, 1, 2]
