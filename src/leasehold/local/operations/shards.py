"""Operations on shards: list, split, merge, scale."""

from __future__ import annotations

from typing import Final

from leasehold.core.model import HashRange, Shard
from leasehold.kinesis_model.api_errors import invalid_argument_error
from leasehold.kinesis_model.listing import PAGE_DEFAULT, FilterType, ListQuery, ShardFilter
from leasehold.local.operations.call import Call, Members, Operation


def list_shards(call: Call) -> Members:
    page = call.service.list_shards(call.now_ms, _query(call), call.get("MaxResults", PAGE_DEFAULT))
    response: Members = {"Shards": [shard_to_members(shard) for shard in page.shards]}
    if page.next_token:
        response["NextToken"] = page.next_token
    return response


def split_shard(call: Call) -> None:
    hash_key = int(call["NewStartingHashKey"])
    call.service.split_shard(call.now_ms, call.stream_name, call["ShardToSplit"], hash_key)


def merge_shards(call: Call) -> None:
    lower, upper = call["ShardToMerge"], call["AdjacentShardToMerge"]
    call.service.merge_shards(call.now_ms, call.stream_name, lower, upper)


def update_shard_count(call: Call) -> Members:
    name, target = call.stream_name, call["TargetShardCount"]
    before = call.service.update_shard_count(call.now_ms, name, target)
    return {
        "StreamName": name,
        "StreamARN": call.service.account.stream_arn(name),
        "CurrentShardCount": before,
        "TargetShardCount": target,
    }


def shard_to_members(shard: Shard) -> Members:
    """Convert a shard to the response. Members that do not apply are left out."""
    numbers = {"StartingSequenceNumber": shard.starting_sequence_number}
    if shard.ending_sequence_number is not None:
        numbers["EndingSequenceNumber"] = shard.ending_sequence_number
    members: Members = {
        "ShardId": shard.id,
        "HashKeyRange": hash_range_to_members(shard.hash_range),
        "SequenceNumberRange": numbers,
    }
    parents = zip(("ParentShardId", "AdjacentParentShardId"), shard.parents, strict=False)
    return members | dict(parents)


def hash_range_to_members(hash_range: HashRange) -> Members:
    return {"StartingHashKey": str(hash_range.start), "EndingHashKey": str(hash_range.end)}


def _query(call: Call) -> ListQuery:
    """Return what to list. A token contains all of the first request and allows no other member."""
    if "NextToken" not in call.members:
        return ListQuery(call.stream_name, _shard_filter(call), call.get("ExclusiveStartShardId"))
    for other in (
        "StreamName",
        "StreamARN",
        "ShardFilter",
        "ExclusiveStartShardId",
        "StreamCreationTimestamp",
    ):
        if other in call.members:
            raise invalid_argument_error(f"NextToken and {other} cannot be provided together.")
    return call.service.list_query_from_token(call.now_ms, call["NextToken"])


def _shard_filter(call: Call) -> ShardFilter:
    given = call.get("ShardFilter")
    if given is None:
        return ShardFilter()
    return ShardFilter(FilterType(given["Type"]), given.get("ShardId"), given.get("Timestamp"))


OPERATIONS: Final[dict[str, Operation]] = {
    "ListShards": list_shards,
    "SplitShard": split_shard,
    "MergeShards": merge_shards,
    "UpdateShardCount": update_shard_count,
}
