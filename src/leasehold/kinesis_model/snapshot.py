"""Streams as plain values (numbers, texts, bytes, lists, dicts) and back, so that they can be saved in a file.

Records are saved separately, in columns, because there are many. Their sequence numbers are not saved: counters have no
gaps within a shard, and a sequence number is computed from counter and arrival time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leasehold.core.model import HashRange, ShardId
from leasehold.kinesis_model.account import Account
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.sequence_numbers import SequenceNumberRange
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import (
    CreateShards,
    Epochs,
    Merge,
    PendingChange,
    Reshard,
    Scale,
    Split,
    StreamConfig,
    StreamMode,
    StreamState,
    StreamStatus,
)
from leasehold.kinesis_model.stream_clock import StreamClock
from leasehold.kinesis_model.writing import record_size

Values = dict[str, Any]


class SavedRecords(NamedTuple):
    """Records of one shard, oldest first. The last of all has the shard's current counter."""

    arrivals_ms: Sequence[int]
    partition_keys: Sequence[str]
    data: Sequence[bytes]


def stream_to_values(stream: StreamState) -> Values:
    """Return everything about a stream except its records and current subscriptions."""
    return {
        "name": stream.name,
        "created_ms": stream.created_ms,
        "clock_ms": stream.clock.now_ms,
        "latest_write_ms": stream.clock.latest_write_ms,
        "trimmed_until_ms": stream.clock.trimmed_until_ms,
        "mode": str(stream.config.mode),
        "retention_hours": stream.config.retention_hours,
        "record_kib_max": stream.config.record_kib_max,
        "kms_key": stream.config.kms_key,
        "tags": dict(stream.config.tags),
        "shard_level_metrics": sorted(stream.config.shard_level_metrics),
        "scaled_at_ms": list(stream.scaled_at_ms),
        "next_shard_index": stream.next_shard_index,
        "pending": stream.pending and _pending_to_values(stream.pending),
        "consumers": [_consumer_to_values(consumer) for consumer in stream.consumers.values()],
        "shards": [_shard_to_values(shard) for shard in stream.shards.values()],
    }


def stream_from_values(values: Values, epochs: Epochs, account: Account) -> StreamState:
    """Return the stream. Its shards have no records yet."""
    name = values["name"]
    return StreamState(
        name=name,
        account=account,
        created_ms=values["created_ms"],
        epochs=epochs,
        clock=StreamClock(values["clock_ms"], values["latest_write_ms"], values["trimmed_until_ms"]),
        config=_config_from_values(values),
        consumers={item["name"]: _consumer_from_values(item, name, account) for item in values["consumers"]},
        scaled_at_ms=list(values["scaled_at_ms"]),
        shards={shard.id: shard for shard in map(_shard_from_values, values["shards"])},
        next_shard_index=values["next_shard_index"],
        pending=values["pending"] and _pending_from_values(values["pending"]),
    )


def records_to_columns(shard: ShardState) -> SavedRecords:
    """Return a copy of the shard's records. Later writes do not change it."""
    kept = shard.log.all_records()
    return SavedRecords(kept.arrivals_ms, kept.partition_keys, kept.data)


def restore_records(shard: ShardState, columns: SavedRecords, first: int, count: int) -> None:
    """Add saved records to a shard. They are number `first` and following of `count` records in all."""
    counter = shard.counter - count + first
    for arrival_ms, key, data in zip(*columns, strict=True):
        counter += 1
        number = shard.numbers.at(counter, arrival_ms)
        shard.log.append(number, arrival_ms, key, data, record_size(key, data))


def _config_from_values(values: Values) -> StreamConfig:
    return StreamConfig(
        mode=StreamMode(values["mode"]),
        retention_hours=values["retention_hours"],
        record_kib_max=values["record_kib_max"],
        kms_key=values["kms_key"],
        tags=dict(values["tags"]),
        shard_level_metrics=set(values["shard_level_metrics"]),
    )


def _shard_to_values(shard: ShardState) -> Values:
    return {
        "index": shard.index,
        # As text, because not every format can represent integers of more than 64 bits.
        "hash_keys": [str(shard.hash_range.start), str(shard.hash_range.end)],
        "epoch_ms": shard.numbers.epoch_ms,
        "opened_ms": shard.opened_ms,
        "closed_ms": shard.closed_ms,
        "parents": list(shard.parents),
        "children": list(shard.children),
        "counter": shard.counter,
        "last_number": str(shard.last_number),
    }


def _shard_from_values(values: Values) -> ShardState:
    start, end = values["hash_keys"]
    shard = ShardState(
        numbers=SequenceNumberRange(values["epoch_ms"], values["index"]),
        hash_range=HashRange(int(start), int(end)),
        opened_ms=values["opened_ms"],
        closed_ms=values["closed_ms"],
        parents=tuple(map(ShardId, values["parents"])),
        children=list(map(ShardId, values["children"])),
        counter=values["counter"],
    )
    shard.last_number = int(values["last_number"])
    return shard


def _consumer_to_values(consumer: Consumer) -> Values:
    return {
        "name": consumer.name,
        "created_ms": consumer.created_ms,
        "active_from_ms": consumer.active_from_ms,
    }


def _consumer_from_values(values: Values, stream_name: str, account: Account) -> Consumer:
    arn = account.consumer_arn(stream_name, values["name"], values["created_ms"])
    return Consumer(values["name"], arn, values["created_ms"], values["active_from_ms"])


def _pending_to_values(pending: PendingChange) -> Values:
    reshard: list[Any] | None = None
    match pending.reshard:
        case CreateShards(count):
            reshard = ["create", count]
        case Split(shard_id, hash_key):
            reshard = ["split", shard_id, str(hash_key)]
        case Merge(lower, upper):
            reshard = ["merge", lower, upper]
        case Scale(target):
            reshard = ["scale", target]
    return {"status": str(pending.status), "due_ms": pending.due_ms, "reshard": reshard}


def _pending_from_values(values: Values) -> PendingChange:
    reshard: Reshard | None = None
    match values["reshard"]:
        case ["create", count]:
            reshard = CreateShards(count)
        case ["split", shard_id, hash_key]:
            reshard = Split(ShardId(shard_id), int(hash_key))
        case ["merge", lower, upper]:
            reshard = Merge(ShardId(lower), ShardId(upper))
        case ["scale", target]:
            reshard = Scale(target)
    return PendingChange(StreamStatus(values["status"]), values["due_ms"], reshard)
