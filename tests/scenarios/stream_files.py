"""Shards and leases as scenario files write them.

A shard is a number, as in the pictures: 6 is `shardId-000000000006`. Its `keys` are the first and last hash
key, where "MAX" is 2^128-1, and its `epochs` the first and last moment of its life, null while it is open. An
epoch is also the sequence number of the shard's beginning or end. A lease in an answer is written `6:LATEST`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leasehold.core.model import (
    HASH_KEY_MAX,
    HashRange,
    InitialPosition,
    Lease,
    LeaseKey,
    Shard,
    ShardId,
    StreamIdentifier,
)
from leasehold.core.position import Position
from leasehold.core.shards.lease_creation import ShardFilter, ShardFilterKind
from tests.scenarios.scenario_files import only


@dataclass(frozen=True)
class Stream:
    """A stream's whole history; `listed` is what the service would answer."""

    shards: tuple[Shard, ...]

    def without(self, numbers: Iterable[int]) -> "Stream":
        hidden = {shard_id(number) for number in numbers}
        assert hidden <= {shard.id for shard in self.shards}, f"no such shard: {hidden}"
        return Stream(tuple(shard for shard in self.shards if shard.id not in hidden))

    def listed(self, only_open: ShardFilter, trim_horizon: int) -> tuple[Shard, ...]:
        """The service's meaning of the three filters, with epochs for time."""
        if only_open.kind is ShardFilterKind.AT_LATEST:
            return tuple(shard for shard in self.shards if shard.is_open)
        at = trim_horizon if only_open.kind is ShardFilterKind.AT_TRIM_HORIZON else only_open.timestamp_ms
        assert at is not None
        return tuple(shard for shard in self.shards if _lives_at(shard, at))


def stream(given: Any) -> Stream:
    """`{"picture": [...], "shards": {"0": {...}, ...}}`"""
    only(given, required=["picture", "shards"])
    return Stream(tuple(shard(number, each) for number, each in given["shards"].items()))


def shard(number: str, given: Any) -> Shard:
    only(given, required=["keys", "epochs"], optional=["parents"])
    first, last = given["epochs"]
    return Shard(
        shard_id(number),
        keys(given["keys"]),
        str(first),
        None if last is None else str(last),
        tuple(shard_id(parent) for parent in given.get("parents", [])),
    )


def shard_id(number: int | str) -> ShardId:
    return ShardId(f"shardId-{int(number):012}")


def shard_ids(numbers: Iterable[int | str]) -> tuple[ShardId, ...]:
    return tuple(shard_id(number) for number in numbers)


def keys(given: Any) -> HashRange:
    first, last = (HASH_KEY_MAX if key == "MAX" else key for key in given)
    return HashRange(first, last)


def position(text: str) -> InitialPosition:
    """`LATEST`, `TRIM_HORIZON`, or `AT_TIMESTAMP 206`"""
    word, _, at = text.partition(" ")
    return InitialPosition(Position(word), int(at) if at else None)


def lease(number: int | str, at: str, identifier: str | None = None) -> Lease:
    """An existing lease of which only its place counts."""
    return Lease(
        key=_key(number, identifier),
        shard_id=shard_id(number),
        checkpoint=Position(at),
        stream=_id(identifier),
    )


def new_leases(
    answer: Iterable[str], shards: Mapping[ShardId, Any], identifier: str | None = None
) -> tuple[Lease, ...]:
    """`["6:LATEST"]` as the rows that have to be written for these shards: everything in them is expected."""
    return tuple(_new_lease(each, shards, identifier) for each in answer)


def _new_lease(answer: str, shards: Mapping[ShardId, Any], identifier: str | None) -> Lease:
    number, at = answer.split(":")
    of = shards[shard_id(number)]
    return Lease(
        key=_key(number, identifier),
        shard_id=of.id,
        checkpoint=Position(at, 0),
        counter=0,
        owner=None,
        owner_switches=0,
        parents=frozenset(of.parents),
        hash_range=of.hash_range,
        stream=_id(identifier),
    )


def _key(number: int | str, identifier: str | None) -> LeaseKey:
    return LeaseKey(f"{identifier}:{shard_id(number)}" if identifier else shard_id(number))


def _id(identifier: str | None) -> StreamIdentifier | None:
    return StreamIdentifier(identifier) if identifier else None


def _lives_at(shard: Shard, epoch: int) -> bool:
    ended = shard.ending_sequence_number
    return int(shard.starting_sequence_number) <= epoch and (ended is None or int(ended) >= epoch)
