"""The AWS adapter of a stream: its requests, and how it handles responses and errors."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from botocore.exceptions import NoCredentialsError

from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.core.model import Shard, ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter, ShardFilterKind
from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    InvalidArgumentError,
    IteratorExpiredError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from tests.unit.adapters.canned_kinesis import CannedKinesis

T = TypeVar("T")
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
SHARD = ShardId("shardId-000000000000")


def shard(index: int) -> dict[str, Any]:
    return {
        "ShardId": f"shardId-{index:012d}",
        "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "99"},
        "SequenceNumberRange": {"StartingSequenceNumber": str(index)},
    }


def page(*data: str) -> dict[str, Any]:
    records = [
        {"SequenceNumber": str(number), "Data": each, "PartitionKey": "secret-key"}
        for number, each in enumerate(data)
    ]
    return {"Records": records, "NextShardIterator": "next", "MillisBehindLatest": 0}


def failure(code: str) -> dict[str, str]:
    return {"__type": code, "message": "because"}


def with_stream(
    kinesis: CannedKinesis, use: Callable[[KinesisStream], Awaitable[T]], name: str = "orders"
) -> T:
    async def main() -> T:
        stream = KinesisStream(kinesis.client, name, direct=False)
        try:
            return await use(stream)
        finally:
            await stream.close()

    return asyncio.run(main())


def get(stream: KinesisStream) -> Awaitable[Any]:
    return stream.get_records("token", limit=7)


def test_later_pages_are_requested_with_the_token_only() -> None:
    """AWS refuses a token beside the stream name or a filter, which boto3's own paginator sends."""
    kinesis = CannedKinesis(
        (200, {"Shards": [shard(0)], "NextToken": "a"}),
        (200, {"Shards": [shard(1)], "NextToken": "b"}),
        (200, {"Shards": [shard(2)]}),
    )
    only = ShardFilter(ShardFilterKind.AT_TIMESTAMP, 1_700_000_000_123)
    shards = with_stream(kinesis, lambda stream: stream.list_shards(only))
    assert [each.id[-1] for each in shards] == ["0", "1", "2"]
    assert kinesis.requests == [
        (
            "ListShards",
            {
                "StreamName": "orders",
                "ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1_700_000_000.123},
            },
        ),
        ("ListShards", {"NextToken": "a"}),
        ("ListShards", {"NextToken": "b"}),
    ]


def test_requests_name_the_stream_as_configured() -> None:
    """An ARN is in all requests; a name is never sent beside an iterator."""

    async def use(stream: KinesisStream) -> None:
        await stream.get_iterator(
            SHARD, IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number="007")
        )
        await stream.get_records("token", limit=7)

    by_arn = CannedKinesis((200, {"ShardIterator": "i"}), (200, page()))
    with_stream(by_arn, use, ARN)
    start = {"ShardId": SHARD, "ShardIteratorType": "AT_SEQUENCE_NUMBER", "StartingSequenceNumber": "007"}
    assert by_arn.requests == [
        ("GetShardIterator", {"StreamARN": ARN, **start}),
        ("GetRecords", {"StreamARN": ARN, "ShardIterator": "token", "Limit": 7}),
    ]
    by_name = CannedKinesis((200, {"ShardIterator": "i"}), (200, page()))
    with_stream(by_name, use)
    assert by_name.requests == [
        ("GetShardIterator", {"StreamName": "orders", **start}),
        ("GetRecords", {"ShardIterator": "token", "Limit": 7}),
    ]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (400, "ProvisionedThroughputExceededException", ThrottledError),
        (400, "LimitExceededException", ThrottledError),
        (400, "ExpiredIteratorException", IteratorExpiredError),
        (400, "ResourceNotFoundException", NotFoundError),
        (400, "ResourceInUseException", UnavailableError),
        (400, "InvalidArgumentException", InvalidArgumentError),
        (400, "AccessDeniedException", AccessDeniedError),
        (500, "InternalFailure", UnavailableError),
        (503, "", UnavailableError),
    ],
)
def test_errors_are_translated(status: int, code: str, expected: type[ServiceError]) -> None:
    """The error class decides what the reader does. The message has the stream, the call and the reason."""
    kinesis = CannedKinesis((status, failure(code)))
    with pytest.raises(ServiceError, match="stream orders, get_records") as caught:
        with_stream(kinesis, get)
    assert type(caught.value) is expected


def test_the_client_does_not_retry_a_malformed_response() -> None:
    """The reader retries and reports it; the client would retry silently."""
    kinesis = CannedKinesis((200, b'{"Records": ['), (200, page()), retries={"total_max_attempts": 5})
    with pytest.raises(UnavailableError, match="malformed"):
        with_stream(kinesis, get)
    assert len(kinesis.requests) == 1


def test_an_error_response_with_a_page_is_an_error() -> None:
    """The fast path decodes successful responses only."""
    with pytest.raises(UnavailableError):
        with_stream(CannedKinesis((500, page("aGVsbG8="))), get)


def test_two_streams_may_share_a_client() -> None:
    """The client decodes each response once."""
    kinesis = CannedKinesis((200, page("aGVsbG8=")), (200, page("aGVsbG8=")))
    for name in ("orders", "returns"):
        assert with_stream(kinesis, get, name).records[0].data == b"hello"


def test_no_payload_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Not even with botocore's debug log, which shows the bodies of all other responses."""
    with caplog.at_level(logging.DEBUG):
        with_stream(CannedKinesis((200, page("c2VjcmV0LWRhdGE="))), get)
    assert "Response body" in caplog.text
    assert "c2VjcmV0" not in caplog.text
    assert "secret" not in caplog.text


def test_a_malformed_shard_list_is_an_error() -> None:
    """A shard without hash keys cannot get a lease, so the whole list is rejected."""
    for broken in ({"ShardId": "s"}, shard(0) | {"HashKeyRange": {"StartingHashKey": "5"}}):
        kinesis = CannedKinesis((200, {"Shards": [shard(1), broken]}))
        with pytest.raises(UnavailableError, match="lacks"):
            with_stream(kinesis, lambda stream: stream.list_shards())


def test_a_null_parent_counts_as_absent() -> None:
    """kinesis-local writes null for an absent parent."""
    kinesis = CannedKinesis((200, {"Shards": [shard(3) | {"ParentShardId": None}], "NextToken": None}))
    (found,) = with_stream(kinesis, lambda stream: stream.list_shards())
    assert isinstance(found, Shard)
    assert (found.parents, found.is_open) == ((), True)


def test_a_response_without_an_iterator_is_an_error() -> None:
    """It is not a KeyError."""
    with pytest.raises(UnavailableError, match="no iterator"):
        with_stream(
            CannedKinesis((200, {})),
            lambda stream: stream.get_iterator(SHARD, IteratorStart(IteratorKind.LATEST)),
        )


def test_missing_credentials_are_a_config_error() -> None:
    """A retry does not help, so the reader raises the error."""
    kinesis = CannedKinesis()

    def fail(**_: Any) -> None:
        raise NoCredentialsError

    kinesis.client.meta.events.register_first("before-call.kinesis.GetRecords", fail)
    with pytest.raises(ConfigError, match="credentials"):
        with_stream(kinesis, get)


def test_canned_responses_are_valid() -> None:
    """A test of the test double: without our hook, botocore parses the same response."""
    response = CannedKinesis((200, page("aGVsbG8="))).client.get_records(ShardIterator="token")
    assert [record["Data"] for record in response["Records"]] == [b"hello"]
