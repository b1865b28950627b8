"""Streams as plain values (numbers, texts, bytes, lists, dicts) and back, for whoever keeps them in a file.

Records travel apart from the rest, in columns, because there are many. Their numbers need not travel at all:
counters are without gaps within a shard, and a number follows from counter and arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from leasehold.core.model import HashRange, ShardId
from leasehold.kinesis_model.account import Account
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import (
    CreateShards,
    Epochs,
    Merge,
    PendingChange,
    Reshard,
    Scale,
    Split,
    StreamMode,
    StreamState,
    StreamStatus,
)
from leasehold.kinesis_model.writing import record_size

Values = dict[str, Any]


class SavedRecords(NamedTuple):
    """Records of one shard, oldest first; the last one has the shard's latest counter."""

    arrivals_ms: Sequence[int]
    partition_keys: Sequence[str]
    data: Sequence[bytes]


def stream_to_values(stream: StreamState) -> Values:
    """Everything about a stream except its records and who is subscribed to it."""
    return {
        "name": stream.name,
        "created_ms": stream.created_ms,
        "clock_ms": stream.clock_ms,
        "latest_write_ms": stream.latest_write_ms,
        "trimmed_until_ms": stream.trimmed_until_ms,
        "mode": str(stream.mode),
        "retention_hours": stream.retention_hours,
        "record_kib_max": stream.record_kib_max,
        "kms_key": stream.kms_key,
        "tags": dict(stream.tags),
        "shard_level_metrics": sorted(stream.shard_level_metrics),
        "scaled_at_ms": list(stream.scaled_at_ms),
        "next_index": stream.next_index,
        "pending": stream.pending and _pending_to_values(stream.pending),
        "consumers": [_consumer_to_values(consumer) for consumer in stream.consumers.values()],
        "shards": [_shard_to_values(shard) for shard in stream.shards.values()],
    }


def stream_from_values(values: Values, epochs: Epochs, account: Account) -> StreamState:
    """The stream, its shards still without records."""
    name = values["name"]
    stream = StreamState(
        name=name,
        arn=account.stream_arn(name),
        account_id=account.id,
        created_ms=values["created_ms"],
        epochs=epochs,
        mode=StreamMode(values["mode"]),
        retention_hours=values["retention_hours"],
        record_kib_max=values["record_kib_max"],
        kms_key=values["kms_key"],
        tags=dict(values["tags"]),
        shard_level_metrics=set(values["shard_level_metrics"]),
        consumers={item["name"]: _consumer_from_values(item, name, account) for item in values["consumers"]},
        scaled_at_ms=list(values["scaled_at_ms"]),
        shards={shard.id: shard for shard in map(_shard_from_values, values["shards"])},
        next_index=values["next_index"],
        pending=values["pending"] and _pending_from_values(values["pending"]),
    )
    stream.clock_ms = values["clock_ms"]
    stream.latest_write_ms = values["latest_write_ms"]
    stream.trimmed_until_ms = values["trimmed_until_ms"]
    return stream


def records_to_columns(shard: ShardState) -> SavedRecords:
    """A copy of the shard's records that stays as it is while the shard goes on."""
    kept = shard.log.everything()
    return SavedRecords(kept.arrivals_ms, kept.partition_keys, kept.data)


def restore_records(shard: ShardState, columns: SavedRecords, first: int, count: int) -> None:
    """Put records back. They are the `first`-th and following of `count` in all."""
    counter = shard.counter - count + first
    for arrival_ms, key, data in zip(*columns, strict=True):
        counter += 1
        number = shard.numbers.at(counter, arrival_ms)
        shard.log.append(number, arrival_ms, key, data, record_size(key, data))


def _shard_to_values(shard: ShardState) -> Values:
    return {
        "index": shard.index,
        # As text: more than 64 bits are not every format's strength.
        "hash_keys": [str(shard.hash_range.start), str(shard.hash_range.end)],
        "epoch_ms": shard.epoch_ms,
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
        index=values["index"],
        hash_range=HashRange(int(start), int(end)),
        epoch_ms=values["epoch_ms"],
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
    reshard_change: list[Any] | None = None
    match pending.reshard_change:
        case CreateShards(count):
            reshard_change = ["open", count]
        case Split(shard_id, hash_key):
            reshard_change = ["split", shard_id, str(hash_key)]
        case Merge(lower, upper):
            reshard_change = ["merge", lower, upper]
        case Scale(target):
            reshard_change = ["scale", target]
    return {"status": str(pending.status), "due_ms": pending.due_ms, "reshape": reshard_change}


def _pending_from_values(values: Values) -> PendingChange:
    reshard_change: Reshard | None = None
    match values["reshape"]:
        case ["open", count]:
            reshard_change = CreateShards(count)
        case ["split", shard_id, hash_key]:
            reshard_change = Split(ShardId(shard_id), int(hash_key))
        case ["merge", lower, upper]:
            reshard_change = Merge(ShardId(lower), ShardId(upper))
        case ["scale", target]:
            reshard_change = Scale(target)
    return PendingChange(StreamStatus(values["status"]), values["due_ms"], reshard_change)
