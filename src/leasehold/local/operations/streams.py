"""Operations on streams: create, describe, list, delete, and change settings."""

from __future__ import annotations

from typing import Final

from leasehold.kinesis_model.api_errors import invalid_argument_error
from leasehold.kinesis_model.listing import require_fresh_token
from leasehold.kinesis_model.service import add_tags
from leasehold.kinesis_model.stream import RECORD_KIB_DEFAULT, StreamMode, StreamState, StreamStatus
from leasehold.kinesis_model.tokens import decode_token, encode_token
from leasehold.local.operations.call import Call, Members, Operation
from leasehold.local.operations.shards import shard_to_members

_STREAMS_PAGE_DEFAULT: Final = 100
_SHARDS_PAGE_DEFAULT: Final = 100
_TAGS_PAGE_DEFAULT: Final = 50
_ON_DEMAND_STREAMS_MAX: Final = 50
_ALL_METRICS: Final = (
    "IncomingBytes",
    "IncomingRecords",
    "IteratorAgeMilliseconds",
    "OutgoingBytes",
    "OutgoingRecords",
    "ReadProvisionedThroughputExceeded",
    "WriteProvisionedThroughputExceeded",
)


def create_stream(call: Call) -> None:
    mode = StreamMode(call.get("StreamModeDetails", {}).get("StreamMode", StreamMode.PROVISIONED))
    call.service.create_stream(
        call.now_ms,
        call["StreamName"],
        shard_count=call.get("ShardCount"),
        mode=mode,
        tags=call.get("Tags"),
        record_kib_max=call.get("MaxRecordSizeInKiB", RECORD_KIB_DEFAULT),
    )


def delete_stream(call: Call) -> None:
    with_consumers = call.get("EnforceConsumerDeletion", False)
    call.service.delete_stream(call.now_ms, call.stream_name, with_consumers=with_consumers)


def describe_stream(call: Call) -> Members:
    stream = call.stream()
    stream.trim()
    after = call.get("ExclusiveStartShardId", "")
    limit = call.get("Limit", _SHARDS_PAGE_DEFAULT)
    rest = [] if stream.status is StreamStatus.CREATING else list(stream.shards.values())
    rest = [shard for shard in rest if shard.id > after]
    description = _summary(call, stream) | {
        "Shards": [shard_to_members(shard.to_shard()) for shard in rest[:limit]],
        "HasMoreShards": len(rest) > limit,
    }
    return {"StreamDescription": description}


def describe_stream_summary(call: Call) -> Members:
    stream = call.stream()
    summary = _summary(call, stream) | {
        "OpenShardCount": len(stream.open_shards),
        "ConsumerCount": len(stream.consumers),
        "MaxRecordSizeInKiB": stream.config.record_kib_max,
    }
    return {"StreamDescriptionSummary": summary}


def describe_limits(call: Call) -> Members:
    call.service.stream_names(call.now_ms)
    on_demand = sum(stream.config.mode is StreamMode.ON_DEMAND for stream in call.service.streams.values())
    return {
        "ShardLimit": call.service.settings.shards_max,
        "OpenShardCount": call.service.open_shard_count(),
        "OnDemandStreamCount": on_demand,
        "OnDemandStreamCountLimit": _ON_DEMAND_STREAMS_MAX,
    }


def list_streams(call: Call) -> Members:
    after = call.get("ExclusiveStartStreamName")
    if "NextToken" in call.members:
        if after is not None:
            raise invalid_argument_error(
                "NextToken and ExclusiveStartStreamName cannot be provided together."
            )
        after = _stream_name_from_token(call)
    limit = call.get("Limit", _STREAMS_PAGE_DEFAULT)
    names = call.service.stream_names(call.now_ms, after)
    page = names[:limit]
    response: Members = {
        "StreamNames": page,
        "HasMoreStreams": len(names) > limit,
        "StreamSummaries": [_short_summary(call, call.service.streams[name]) for name in page],
    }
    if len(names) > limit:
        response["NextToken"] = encode_token("streams", call.now_ms, page[-1])
    return response


def increase_retention(call: Call) -> None:
    call.service.increase_retention(call.now_ms, call.stream_name, call["RetentionPeriodHours"])


def decrease_retention(call: Call) -> None:
    call.service.decrease_retention(call.now_ms, call.stream_name, call["RetentionPeriodHours"])


def update_stream_mode(call: Call) -> None:
    call.service.update_mode(
        call.now_ms, call.stream_name, StreamMode(call["StreamModeDetails"]["StreamMode"])
    )


def update_max_record_size(call: Call) -> None:
    call.service.set_record_size(call.now_ms, call.stream_name, call["MaxRecordSizeInKiB"])


def start_encryption(call: Call) -> None:
    if call["EncryptionType"] != "KMS":
        raise invalid_argument_error("EncryptionType must be KMS to start encryption.")
    call.service.encrypt(call.now_ms, call.stream_name, call["KeyId"])


def stop_encryption(call: Call) -> None:
    call.service.encrypt(call.now_ms, call.stream_name, None)


def add_tags_to_stream(call: Call) -> None:
    add_tags(call.stream(), call["Tags"])


def remove_tags_from_stream(call: Call) -> None:
    stream = call.stream()
    for key in call["TagKeys"]:
        stream.config.tags.pop(key, None)


def list_tags_for_stream(call: Call) -> Members:
    after, limit = call.get("ExclusiveStartTagKey", ""), call.get("Limit", _TAGS_PAGE_DEFAULT)
    rest = [(key, value) for key, value in sorted(call.stream().config.tags.items()) if key > after]
    return {
        "Tags": [{"Key": key, "Value": value} for key, value in rest[:limit]],
        "HasMoreTags": len(rest) > limit,
    }


def enable_monitoring(call: Call) -> Members:
    stream = call.stream()
    before = sorted(stream.config.shard_level_metrics)
    stream.config.shard_level_metrics |= _named_metrics(call)
    return _monitoring(stream, before)


def disable_monitoring(call: Call) -> Members:
    stream = call.stream()
    before = sorted(stream.config.shard_level_metrics)
    stream.config.shard_level_metrics -= _named_metrics(call)
    return _monitoring(stream, before)


def _named_metrics(call: Call) -> set[str]:
    named = set(call["ShardLevelMetrics"])
    return set(_ALL_METRICS) if "ALL" in named else named


def _monitoring(stream: StreamState, before: list[str]) -> Members:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardLevelMetrics": before,
        "DesiredShardLevelMetrics": sorted(stream.config.shard_level_metrics),
    }


def _summary(call: Call, stream: StreamState) -> Members:
    """Return the members that both descriptions of a stream have in common."""
    members = _short_summary(call, stream) | {
        "RetentionPeriodHours": stream.config.retention_hours,
        "EnhancedMonitoring": [{"ShardLevelMetrics": sorted(stream.config.shard_level_metrics)}],
        "EncryptionType": stream.config.encryption_type,
    }
    return members | {"KeyId": stream.config.kms_key} if stream.config.kms_key else members


def _short_summary(call: Call, stream: StreamState) -> Members:
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "StreamStatus": stream.status,
        "StreamModeDetails": {"StreamMode": stream.config.mode},
        "StreamCreationTimestamp": call.encoding.encode_time(stream.created_ms),
    }


def _stream_name_from_token(call: Call) -> str:
    fields = decode_token("streams", call["NextToken"])
    if fields is None:
        raise invalid_argument_error("Invalid NextToken: it does not come from ListStreams of this server.")
    issued_ms, name = fields
    require_fresh_token(int(issued_ms or 0), call.now_ms, call.service.settings.list_token_lifetime_ms)
    return str(name)


OPERATIONS: Final[dict[str, Operation]] = {
    "CreateStream": create_stream,
    "DeleteStream": delete_stream,
    "DescribeStream": describe_stream,
    "DescribeStreamSummary": describe_stream_summary,
    "DescribeLimits": describe_limits,
    "ListStreams": list_streams,
    "IncreaseStreamRetentionPeriod": increase_retention,
    "DecreaseStreamRetentionPeriod": decrease_retention,
    "UpdateStreamMode": update_stream_mode,
    "UpdateMaxRecordSize": update_max_record_size,
    "StartStreamEncryption": start_encryption,
    "StopStreamEncryption": stop_encryption,
    "AddTagsToStream": add_tags_to_stream,
    "RemoveTagsFromStream": remove_tags_from_stream,
    "ListTagsForStream": list_tags_for_stream,
    "EnableEnhancedMonitoring": enable_monitoring,
    "DisableEnhancedMonitoring": disable_monitoring,
}
