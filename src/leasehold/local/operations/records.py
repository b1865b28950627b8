"""Operations on records: PutRecord, PutRecords, GetShardIterator, GetRecords."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from leasehold.core.model import ChildShard
from leasehold.kinesis_model.api_errors import invalid_argument_error
from leasehold.kinesis_model.reading import RECORDS_PER_PAGE_MAX, IteratorType, StartingPosition
from leasehold.kinesis_model.record_log import RecordColumns
from leasehold.kinesis_model.stream import StreamState
from leasehold.kinesis_model.writing import PutFailure, PutRequest, PutResult
from leasehold.local.encodings import Encoding
from leasehold.local.operations.call import Call, Members, Operation
from leasehold.local.operations.shards import hash_range_to_members
from leasehold.local.request_validation import violation_error


def put_record(call: Call) -> Members:
    stored = call.service.put_record(call.now_ms, call.stream_name, entry_from_members(call.members))
    return {
        "ShardId": stored.shard_id,
        "SequenceNumber": str(stored.number),
        "EncryptionType": call.stream().config.encryption_type,
    }


def put_records(call: Call) -> Members:
    entries = [entry_from_members(record) for record in call["Records"]]
    outcomes = call.service.put_records(call.now_ms, call.stream_name, entries)
    return {
        "FailedRecordCount": sum(isinstance(outcome, PutFailure) for outcome in outcomes),
        "Records": [_outcome_to_members(outcome) for outcome in outcomes],
        "EncryptionType": call.stream().config.encryption_type,
    }


def get_shard_iterator(call: Call) -> Members:
    start = StartingPosition(
        IteratorType(call["ShardIteratorType"]), call.get("StartingSequenceNumber"), call.get("Timestamp")
    )
    token = call.service.shard_iterator(call.now_ms, call.stream_name, call["ShardId"], start)
    return {"ShardIterator": token}


def get_records(call: Call) -> Members:
    iterator = call.service.iterator(call.now_ms, call["ShardIterator"])
    if "StreamARN" in call.members and call.stream_name != iterator.stream_name:
        raise invalid_argument_error(f"The ShardIterator does not belong to the stream {call['StreamARN']}.")
    page = call.service.get_records(call.now_ms, iterator, call.get("Limit", RECORDS_PER_PAGE_MAX))
    stream = call.service.stream(call.now_ms, iterator.stream_name)
    response: Members = {
        "Records": records_to_members(page.records, encryption_members(stream), call.encoding),
        "MillisBehindLatest": page.millis_behind_latest,
    }
    following = call.service.next_iterator(call.now_ms, iterator, page)
    if following is None:
        return response | {"ChildShards": children_to_members(page.children)}
    return response | {"NextShardIterator": following}


def written_shards(response: Members) -> set[str]:
    """Return the shards that stored a record, from the response to a put."""
    return {outcome["ShardId"] for outcome in response.get("Records", [response]) if "ShardId" in outcome}


def entry_from_members(record: dict[str, Any]) -> PutRequest:
    key, hash_key = record.get("PartitionKey"), record.get("ExplicitHashKey")
    if key is None:
        # Optional in the API model, for streams that distribute records by themselves. This server has none.
        raise violation_error("PartitionKey", None, "Member must not be null")
    return PutRequest(key, record["Data"], None if hash_key is None else int(hash_key))


def records_to_members(records: RecordColumns, encryption: Members, encoding: Encoding) -> list[Members]:
    """Convert records to the response. `encryption` is added to each: empty, or the encryption type."""
    encode_time, encode_blob = encoding.encode_time, encoding.encode_blob
    columns = zip(records.numbers, records.arrivals_ms, records.partition_keys, records.data, strict=True)
    return [
        {
            "SequenceNumber": str(number),
            "ApproximateArrivalTimestamp": encode_time(arrival_ms),
            "Data": encode_blob(data),
            "PartitionKey": partition_key,
            **encryption,
        }
        for number, arrival_ms, partition_key, data in columns
    ]


def encryption_members(stream: StreamState) -> Members:
    """Return the members that an encrypted stream adds to each record."""
    return {"EncryptionType": stream.config.encryption_type} if stream.config.kms_key else {}


def children_to_members(children: Sequence[ChildShard]) -> list[Members]:
    return [
        {
            "ShardId": child.id,
            "ParentShards": list(child.parents),
            "HashKeyRange": hash_range_to_members(child.hash_range),
        }
        for child in children
    ]


def _outcome_to_members(outcome: PutResult | PutFailure) -> Members:
    if isinstance(outcome, PutFailure):
        return {"ErrorCode": outcome.error_type, "ErrorMessage": outcome.message}
    return {"SequenceNumber": str(outcome.number), "ShardId": outcome.shard_id}


OPERATIONS: Final[dict[str, Operation]] = {
    "PutRecord": put_record,
    "PutRecords": put_records,
    "GetShardIterator": get_shard_iterator,
    "GetRecords": get_records,
}
