"""A Kinesis stream through boto3, read by polling. Decides nothing: where to begin and when to ask comes from the
caller, who also retries. Knows how AWS pages lists, what it calls its errors, and how to decode records fast.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import orjson
from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.blocking import THREADS_DEFAULT, BlockingCalls
from leasehold.adapters.aws.direct_calls import GET_RECORDS, DirectCalls, direct_calls
from leasehold.adapters.aws.error_translation import error_code, translate_error
from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.core.model import HashRange, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import ConfigError, UnavailableError
from leasehold.ports import Page, Stream

# Larger answers are decoded on a thread: ten megabytes take tens of milliseconds, for which the event loop has no time.
DECODED_AT_ONCE_BYTES: Final = 64 * 1024

_PAGE: Final = "LeaseholdPage"
_STREAM_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:(?P<account>[0-9]+):stream/(?P<name>[^:/]+)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Answer = TypeVar("Answer")


class KinesisStream(Stream):
    """One stream, by name or ARN, through a boto3 client that the caller made.

    From then on `get_records` of that client answers with pages of ours and not with `Records`, so give it a client
    of its own (`clients.kinesis_client`). Several streams may share one. With `lean`, GetRecords does not pass through
    boto3 where nothing speaks for it (see `direct_calls`); handlers that are registered on the client then do not see it.
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
        self._naming = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._calls = BlockingCalls("kinesis", threads)
        client.meta.events.register(
            "before-parse.kinesis.GetRecords", _decode_page, unique_id="leasehold-decode-page"
        )
        # A stream that is named by its ARN may have another endpoint, which boto3 works out for each call.
        self._lean = direct_calls(client) if direct and "StreamName" in self._naming else None

    async def identifier(self) -> StreamIdentifier:
        """As it was given or, if it was not, from what Kinesis says of the stream."""
        if self._identifier is None:
            answer = await self._ask(self._client.describe_stream_summary, **self._naming)
            self._identifier = self._identifier_from(answer.get("StreamDescriptionSummary", {}))
        return self._identifier

    def _identifier_from(self, summary: Mapping[str, Any]) -> StreamIdentifier:
        arn, created = summary.get("StreamARN", ""), summary.get("StreamCreationTimestamp")
        found = _STREAM_ARN.fullmatch(arn)
        if found is None or not isinstance(created, datetime):
            raise UnavailableError(
                f"stream {self._name}, describe_stream_summary: the answer lacks an ARN or the time of creation"
            )
        # Whole seconds, rounded down, as in everything that the KCL's users make of this time.
        return stream_identifier(found["account"], found["name"], (created - _EPOCH) // timedelta(seconds=1))

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Every page of the list.

        boto3's own paginator repeats the stream's name beside the token, which AWS refuses beyond 1,000 shards.
        """
        answer = await self._ask(self._client.list_shards, **self._naming, **_filter_to_members(shard_filter))
        found = list(answer.get("Shards", ()))
        while answer.get("NextToken"):
            answer = await self._ask(self._client.list_shards, NextToken=answer["NextToken"])
            found += answer.get("Shards", ())
        return self._shards(found)

    async def iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A token for reading on from `start`."""
        request: dict[str, Any] = {"ShardIteratorType": start.kind.name}
        if start.sequence_number is not None:
            request["StartingSequenceNumber"] = start.sequence_number
        if start.timestamp_ms is not None:
            request["Timestamp"] = _datetime(start.timestamp_ms)
        answer = await self._ask(self._client.get_shard_iterator, ShardId=shard, **self._naming, **request)
        text: str | None = answer.get("ShardIterator")
        if text is None:
            raise UnavailableError(f"stream {self._name}, get_shard_iterator: the answer holds no iterator")
        return text

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records."""
        if self._lean is not None:
            return await self._translating("get_records", self._get_leanly(self._lean, iterator, limit))
        # Only the ARN may go with an iterator; another account's stream cannot be read without it.
        arn = {name: value for name, value in self._naming.items() if name == "StreamARN"}
        answer = await self._ask(self._client.get_records, ShardIterator=iterator, Limit=limit, **arn)
        page: Page = answer[_PAGE]
        return page

    async def close(self) -> None:
        """End threads and connections of our own; the client belongs to the caller."""
        self._calls.close()
        if self._lean is not None:
            self._lean.close()

    async def _get_leanly(self, direct: DirectCalls, iterator: str, limit: int) -> Page:
        body = await direct.send(GET_RECORDS, orjson.dumps({"ShardIterator": iterator, "Limit": limit}))
        if len(body) <= DECODED_AT_ONCE_BYTES:
            return page_from_body(body)
        page: Page = await self._calls.run(page_from_body, body=body)
        return page

    async def _ask(self, call: Callable[..., Any], **request: Any) -> Any:
        return await self._translating(call.__name__, self._calls.run(call, **request))

    async def _translating(self, call: str, asking: Awaitable[Answer]) -> Answer:
        doing = f"stream {self._name}, {call}"
        try:
            return await asking
        except ClientError as error:
            if error_code(error) == "ResourceInUseException":
                raise UnavailableError(
                    f"{doing}: the stream is being created or deleted; wait until it is ACTIVE"
                ) from error
            raise translate_error(error, doing) from error
        except BotoCoreError as error:
            raise translate_error(error, doing) from error

    def _shards(self, found: Sequence[Mapping[str, Any]]) -> Sequence[Shard]:
        try:
            return [_shard_from_members(each) for each in found]
        except (KeyError, ValueError, ConfigError) as error:
            raise UnavailableError(
                f"stream {self._name}, list_shards: a shard lacks an id, a hash key range or a sequence number"
            ) from error


def _decode_page(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_more: object
) -> None:
    """Takes the place of botocore's parser for a good answer; errors stay botocore's, with their retries."""
    if response_dict["status_code"] >= 300:
        return
    customized_response_dict[_PAGE] = page_from_body(response_dict["body"])
    response_dict["body"] = b"{}"


def _filter_to_members(shard_filter: ShardFilter | None) -> dict[str, Any]:
    if shard_filter is None:
        return {}
    members: dict[str, Any] = {"Type": shard_filter.kind.name}
    if shard_filter.timestamp_ms is not None:
        members["Timestamp"] = _datetime(shard_filter.timestamp_ms)
    return {"ShardFilter": members}


def _shard_from_members(members: Mapping[str, Any]) -> Shard:
    keys, numbers = members["HashKeyRange"], members["SequenceNumberRange"]
    parents = (members.get("ParentShardId"), members.get("AdjacentParentShardId"))
    return Shard(
        id=ShardId(members["ShardId"]),
        hash_range=HashRange(int(keys["StartingHashKey"]), int(keys["EndingHashKey"])),
        starting_sequence_number=numbers["StartingSequenceNumber"],
        ending_sequence_number=numbers.get("EndingSequenceNumber"),
        parents=tuple(ShardId(parent) for parent in parents if parent),
    )


def _datetime(timestamp_ms: int) -> datetime:
    # Not `fromtimestamp`: a float loses milliseconds.
    return _EPOCH + timedelta(milliseconds=timestamp_ms)
