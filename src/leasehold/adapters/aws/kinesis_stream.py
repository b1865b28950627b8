"""A Kinesis stream through boto3, read by polling.

The caller decides where to start and when to read, and retries. This module knows AWS's paging and errors, and
decodes records fast.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import orjson
from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.blocking import THREADS_DEFAULT, BlockingCalls
from leasehold.adapters.aws.direct_calls import GET_RECORDS, DirectCalls, open_direct_calls
from leasehold.adapters.aws.error_translation import error_code, translate_error
from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.core.model import HashRange, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import ConfigError, UnavailableError
from leasehold.ports import Page, Stream

# Larger responses are decoded on a thread: ten megabytes take tens of milliseconds, which would block the event loop.
INLINE_DECODING_BYTES_MAX: Final = 64 * 1024

_PAGE: Final = "LeaseholdPage"
_STREAM_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:(?P<account>[0-9]+):stream/(?P<name>[^:/]+)")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

T = TypeVar("T")


class KinesisStream(Stream):
    """One stream, by name or ARN, through a boto3 client of the caller.

    Changes the client: its `get_records` then returns our pages instead of `Records`. So use a client of its own
    (`clients.kinesis_client`). Several streams may share one. With `direct`, GetRecords bypasses boto3 where possible
    (see `direct_calls`); event handlers that are registered on the client then do not see it.
    """

    def __init__(
        self,
        client: Any,
        stream: str,
        *,
        identifier: StreamIdentifier | None = None,
        threads: int = THREADS_DEFAULT,
        direct: bool = True,
    ) -> None:
        self._client = client
        self._identifier = identifier
        self._name = stream
        self._stream_arguments = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._calls = BlockingCalls("kinesis", threads)
        client.meta.events.register(
            "before-parse.kinesis.GetRecords", _decode_page, unique_id="leasehold-decode-page"
        )
        # A stream that is named by its ARN may have another endpoint, which boto3 determines for each call.
        self._direct = (
            open_direct_calls(client) if direct and "StreamName" in self._stream_arguments else None
        )

    async def get_identifier(self) -> StreamIdentifier:
        """The given identifier, or else account, name and creation time from Kinesis."""
        if self._identifier is None:
            response = await self._call(self._client.describe_stream_summary, **self._stream_arguments)
            self._identifier = self._identifier_from(response.get("StreamDescriptionSummary", {}))
        return self._identifier

    async def get_retention_ms(self) -> int:
        """How long the stream keeps a record."""
        response = await self._call(self._client.describe_stream_summary, **self._stream_arguments)
        hours: int = response["StreamDescriptionSummary"]["RetentionPeriodHours"]
        return hours * 3_600_000

    def _identifier_from(self, summary: Mapping[str, Any]) -> StreamIdentifier:
        arn, created = summary.get("StreamARN", ""), summary.get("StreamCreationTimestamp")
        found = _STREAM_ARN.fullmatch(arn)
        if found is None or not isinstance(created, datetime):
            raise UnavailableError(
                f"stream {self._name}, describe_stream_summary: the response lacks an ARN or the creation time"
            )
        # Whole seconds, rounded down, as KCL users commonly write this time.
        return stream_identifier(found["account"], found["name"], (created - EPOCH) // timedelta(seconds=1))

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """All pages of the list.

        boto3's own paginator repeats the stream name beside the token, which AWS refuses. That matters beyond 1,000
        shards.
        """
        response = await self._call(
            self._client.list_shards, **self._stream_arguments, **_filter_arguments(shard_filter)
        )
        found = list(response.get("Shards", ()))
        while response.get("NextToken"):
            response = await self._call(self._client.list_shards, NextToken=response["NextToken"])
            found += response.get("Shards", ())
        return self._parse_shards(found)

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A shard iterator that starts at `start`."""
        request: dict[str, Any] = {"ShardIteratorType": start.kind.name}
        if start.sequence_number is not None:
            request["StartingSequenceNumber"] = start.sequence_number
        if start.timestamp_ms is not None:
            request["Timestamp"] = _datetime(start.timestamp_ms)
        response = await self._call(
            self._client.get_shard_iterator, ShardId=shard, **self._stream_arguments, **request
        )
        text: str | None = response.get("ShardIterator")
        if text is None:
            raise UnavailableError(f"stream {self._name}, get_shard_iterator: the response holds no iterator")
        return text

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records."""
        if self._direct is not None:
            return await self._translate_errors(
                "get_records", self._get_directly(self._direct, iterator, limit)
            )
        # GetRecords accepts only an ARN beside the iterator, and needs it for a stream of another account.
        arn = {name: value for name, value in self._stream_arguments.items() if name == "StreamARN"}
        response = await self._call(self._client.get_records, ShardIterator=iterator, Limit=limit, **arn)
        page: Page = response[_PAGE]
        return page

    async def close(self) -> None:
        """Close our own threads and connections; the client belongs to the caller."""
        self._calls.close()
        if self._direct is not None:
            self._direct.close()

    async def _get_directly(self, direct: DirectCalls, iterator: str, limit: int) -> Page:
        body = await direct.send(GET_RECORDS, orjson.dumps({"ShardIterator": iterator, "Limit": limit}))
        if len(body) <= INLINE_DECODING_BYTES_MAX:
            return page_from_body(body)
        page: Page = await self._calls.run(page_from_body, body=body)
        return page

    async def _call(self, call: Callable[..., Any], **request: Any) -> Any:
        return await self._translate_errors(call.__name__, self._calls.run(call, **request))

    async def _translate_errors(self, call: str, result: Awaitable[T]) -> T:
        operation = f"stream {self._name}, {call}"
        try:
            return await result
        except ClientError as error:
            if error_code(error) == "ResourceInUseException":
                raise UnavailableError(
                    f"{operation}: the stream is being created or deleted; wait until it is ACTIVE"
                ) from error
            raise translate_error(error, operation) from error
        except BotoCoreError as error:
            raise translate_error(error, operation) from error

    def _parse_shards(self, found: Sequence[Mapping[str, Any]]) -> Sequence[Shard]:
        try:
            return [_shard_from_fields(each) for each in found]
        except (KeyError, ValueError, ConfigError) as error:
            raise UnavailableError(
                f"stream {self._name}, list_shards: a shard lacks an id, a hash key range or a sequence number"
            ) from error


def _decode_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_more: object
) -> None:
    """Replaces botocore's parser for successful responses. botocore still handles errors and their retries."""
    if response_dict["status_code"] >= 300:
        return
    customized_response_dict[_PAGE] = page_from_body(response_dict["body"])
    response_dict["body"] = b"{}"


def _filter_arguments(shard_filter: ShardFilter | None) -> dict[str, Any]:
    if shard_filter is None:
        return {}
    fields: dict[str, Any] = {"Type": shard_filter.kind.name}
    if shard_filter.timestamp_ms is not None:
        fields["Timestamp"] = _datetime(shard_filter.timestamp_ms)
    return {"ShardFilter": fields}


def _shard_from_fields(fields: Mapping[str, Any]) -> Shard:
    keys, numbers = fields["HashKeyRange"], fields["SequenceNumberRange"]
    parents = (fields.get("ParentShardId"), fields.get("AdjacentParentShardId"))
    return Shard(
        id=ShardId(fields["ShardId"]),
        hash_range=HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
        starting_sequence_number=numbers["StartingSequenceNumber"],
        ending_sequence_number=numbers.get("EndingSequenceNumber"),
        parents=tuple(ShardId(parent) for parent in parents if parent),
    )


def _datetime(timestamp_ms: int) -> datetime:
    # Not `fromtimestamp`: a float loses milliseconds.
    return EPOCH + timedelta(milliseconds=timestamp_ms)
