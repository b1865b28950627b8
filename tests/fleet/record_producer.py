"""Puts numbered records on a stream, half of them in aggregates, and reshards it meanwhile."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate

PUT_MAX = 500
OPEN_SHARDS_MIN = 8
OPEN_SHARDS_MAX = 24


@dataclass
class RecordProducer:
    """Counts the records that it has put. The data of a record is its number as text."""

    kinesis: Any
    stream: str
    rng: random.Random
    per_aggregate: int = 20
    put_max: int = PUT_MAX
    shards_min: int = OPEN_SHARDS_MIN
    shards_max: int = OPEN_SHARDS_MAX
    produced: int = 0
    kinesis_records: int = 0
    splits: int = 0
    merges: int = 0
    refused: list[str] = field(default_factory=list)

    def put(self, plain: int, aggregated: int) -> None:
        """Put plain and aggregated records."""
        entries = [*self._plain(plain), *self._aggregated(aggregated)]
        self.rng.shuffle(entries)
        for start in range(0, len(entries), self.put_max):
            self._put_all(entries[start : start + self.put_max])

    def reshard(self) -> None:
        """Split a shard or merge two adjacent ones, so that the number of shards stays in bounds."""
        shards = [
            each for each in self._list_shards() if "EndingSequenceNumber" not in each["SequenceNumberRange"]
        ]
        shards.sort(key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))
        split = len(shards) <= self.shards_min or (len(shards) < self.shards_max and self.rng.random() < 0.5)
        self._split(self.rng.choice(shards)) if split else self._merge(shards)
        self.kinesis.get_waiter("stream_exists").wait(StreamName=self.stream, WaiterConfig={"Delay": 1})

    def _split(self, shard: dict[str, Any]) -> None:
        start, end = (int(shard["HashKeyRange"][name]) for name in ("StartingHashKey", "EndingHashKey"))
        middle = str((start + end) // 2 + 1)
        self.kinesis.split_shard(
            StreamName=self.stream, ShardToSplit=shard["ShardId"], NewStartingHashKey=middle
        )
        self.splits += 1

    def _merge(self, shards: list[dict[str, Any]]) -> None:
        at = self.rng.randrange(len(shards) - 1)
        left, right = shards[at]["ShardId"], shards[at + 1]["ShardId"]
        self.kinesis.merge_shards(StreamName=self.stream, ShardToMerge=left, AdjacentShardToMerge=right)
        self.merges += 1

    def parents(self) -> dict[str, tuple[str, ...]]:
        """Return the parents of all shards, including ended ones."""
        names = ("ParentShardId", "AdjacentParentShardId")
        return {
            shard["ShardId"]: tuple(shard[name] for name in names if shard.get(name))
            for shard in self._list_shards()
        }

    def _list_shards(self) -> list[dict[str, Any]]:
        response = self.kinesis.list_shards(StreamName=self.stream)
        shards: list[dict[str, Any]] = response["Shards"]
        while token := response.get("NextToken"):
            response = self.kinesis.list_shards(NextToken=token)
            shards += response["Shards"]
        return shards

    def _plain(self, count: int) -> Iterator[PutEntry]:
        for number in self._numbers(count):
            yield PutEntry(str(number).encode(), f"key-{number}")

    def _aggregated(self, count: int) -> Iterator[PutEntry]:
        """Aggregate records of one partition key each, so that a reshard never separates the parts of an aggregate."""
        numbers = list(self._numbers(count))
        for start in range(0, len(numbers), self.per_aggregate):
            part = numbers[start : start + self.per_aggregate]
            key = f"key-{part[0]}"
            yield aggregate([PutEntry(str(number).encode(), key) for number in part])

    def _numbers(self, count: int) -> Iterator[int]:
        first = self.produced
        self.produced += count
        return iter(range(first, first + count))

    def _put_all(self, entries: list[PutEntry]) -> None:
        """Put until every record is acknowledged, because a stream may refuse some during a reshard."""
        while entries:
            response = self.kinesis.put_records(
                StreamName=self.stream, Records=[_to_request(each) for each in entries]
            )
            results = response["Records"]
            self.kinesis_records += sum("SequenceNumber" in result for result in results)
            self.refused += [result["ErrorCode"] for result in results if "ErrorCode" in result]
            entries = [entry for entry, result in zip(entries, results, strict=True) if "ErrorCode" in result]


def _to_request(entry: PutEntry) -> dict[str, Any]:
    request: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.partition_key}
    if entry.explicit_hash_key is not None:
        request["ExplicitHashKey"] = str(entry.explicit_hash_key)
    return request
