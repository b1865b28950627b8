"""A Kinesis stream through boto3, read by polling.

The caller decides where to start and when to read, and retries. This module knows AWS's paging and errors, and
decodes records fast.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import orjson
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from leasehold.adapters.aws import cbor
from leasehold.adapters.aws.blocking import THREADS_DEFAULT, BlockingCalls
from leasehold.adapters.aws.call_counts import KinesisCalls
from leasehold.adapters.aws.direct_calls import (
    GET_RECORDS,
    GET_RECORDS_IN_CBOR,
    GET_SHARD_ITERATOR,
    DirectCalls,
    client_error,
    open_direct_calls,
)
from leasehold.adapters.aws.error_translation import error_code, translate_error
from leasehold.adapters.aws.kinesis_protocol import ProtocolChoice, is_cbor
from leasehold.adapters.aws.native_pages import page_from_cbor
from leasehold.adapters.native_decoder import native_decoder
from leasehold.config.connection import KinesisProtocol
from leasehold.core.model import HashRange, Shard, ShardId, StreamIdentifier, stream_identifier
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import ConfigError, LeaseholdError, UnavailableError
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
    (`clients.kinesis_client`). Several streams may share one. With `direct`, GetRecords and GetShardIterator bypass
    boto3 where possible (see `direct_calls`); event handlers that are registered on the client then do not see them.
    """

    def __init__(
        self,
        client: Any,
        stream: str,
        *,
        identifier: StreamIdentifier | None = None,
        threads: int = THREADS_DEFAULT,
        direct: bool = True,
        protocol: KinesisProtocol = KinesisProtocol.AUTO,
        calls: KinesisCalls | None = None,
    ) -> None:
        self._client = client
        self._identifier = identifier
        self._name = stream
        self._stream_arguments = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._calls = BlockingCalls("kinesis", threads)
        self._counted = calls or KinesisCalls()
        client.meta.events.register(
            "before-parse.kinesis.GetRecords", _decode_page, unique_id="leasehold-decode-page"
        )
        # A stream that is named by its ARN may have another endpoint, which boto3 determines for each call.
        self._direct = (
            open_direct_calls(client) if direct and "StreamName" in self._stream_arguments else None
        )
        self._protocol = ProtocolChoice(protocol, is_cbor_readable=native_decoder() is not None)

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
        request |= {"ShardId": shard, **self._stream_arguments}
        # Only boto3 knows how a time is written.
        if self._direct is not None and start.timestamp_ms is None:
            sent = self._direct.send(GET_SHARD_ITERATOR, orjson.dumps(request))
            text = _iterator_from_body(await self._translate_errors("get_shard_iterator", sent))
        else:
            response = await self._call(self._client.get_shard_iterator, **request)
            text = response.get("ShardIterator")
        if not isinstance(text, str):
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
        request: dict[str, str | int] = {"ShardIterator": iterator, "Limit": limit}
        is_refused, is_doubtful = False, self._protocol.take_doubt()
        if not is_doubtful and self._protocol.is_cbor_next(time.monotonic()):
            page = await self._get_in_cbor(direct, cbor.encode(request))
            if page is not None:
                return page
            is_refused = True
        body = await direct.send(GET_RECORDS, orjson.dumps(request))
        page = await self._decode(page_from_body, body)
        # Meanwhile a page in CBOR may have come for another shard.
        if is_refused or (is_doubtful and not self._protocol.has_sent_cbor):
            self._protocol.return_to_json(time.monotonic())
        return page

    async def _get_in_cbor(self, direct: DirectCalls, request: bytes) -> Page | None:
        """The page; None if it has to be requested in JSON. That request is another call, so this one is counted."""
        try:
            response = await direct.exchange(GET_RECORDS_IN_CBOR, request)
        except HTTPClientError as error:
            self._protocol.note_silence(error.__cause__)
            if self._protocol.is_refused_by_silence(error.__cause__):
                self._count_refused(error)
                return None
            raise
        if response.status != 200:
            refused = client_error(
                GET_RECORDS.name, response.status, response.body, is_cbor=is_cbor(response)
            )
            if self._protocol.is_refusal(response, error_code(refused)):
                self._count_refused(refused)
                return None
            raise refused
        try:
            page = await self._decode(page_from_cbor if is_cbor(response) else page_from_body, response.body)
        except UnavailableError as error:  # the page is malformed
            if self._protocol.may_repeat_in_json:
                self._counted.add("get_records", error)
                return None
            raise
        self._protocol.note_page(response, time.monotonic())
        return page

    def _count_refused(self, error: ClientError | BotoCoreError) -> None:
        self._counted.add("get_records", self._translate(error, f"stream {self._name}, get_records"))

    async def _decode(self, decode: Callable[[bytes], Page], body: bytes) -> Page:
        if len(body) <= INLINE_DECODING_BYTES_MAX:
            return decode(body)
        page: Page = await self._calls.run(decode, body=body)
        return page

    async def _call(self, call: Callable[..., Any], **request: Any) -> Any:
        return await self._translate_errors(call.__name__, self._calls.run(call, **request))

    async def _translate_errors(self, call: str, result: Awaitable[T]) -> T:
        try:
            answer = await result
        except (ClientError, BotoCoreError) as error:
            translated = self._translate(error, f"stream {self._name}, {call}")
            self._counted.add(call, translated)
            raise translated from error
        except LeaseholdError as error:  # the answer cannot be decoded
            self._counted.add(call, error)
            raise
        self._counted.add(call)
        return answer

    def _translate(self, error: ClientError | BotoCoreError, operation: str) -> LeaseholdError:
        if isinstance(error, ClientError) and error_code(error) == "ResourceInUseException":
            return UnavailableError(
                f"{operation}: the stream is being created or deleted; wait until it is ACTIVE"
            )
        return translate_error(error, operation)

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


def page_from_body(body: bytes) -> Page:
    """The page in the body of a response in JSON."""
    from leasehold.adapters.aws import kinesis_decoding  # noqa: PLC0415 - it says why

    return kinesis_decoding.page_from_body(body)


def _iterator_from_body(body: bytes) -> Any:
    """The iterator in the body of a response in JSON; None if there is none."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return fields.get("ShardIterator") if isinstance(fields, dict) else None


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
