"""The AWS adapter that lists streams: its requests, its pages, and how rarely it reads tags."""

import asyncio
from typing import Any

import pytest

from leasehold.adapters.aws import kinesis_directory
from leasehold.adapters.aws.kinesis_directory import KinesisDirectory
from leasehold.errors import ServiceError, ThrottledError
from leasehold.ports import StreamFilter
from tests.unit.adapters.canned_kinesis import CannedKinesis

CREATED_S = 1_700_000_000


def streams(*names: str, more: bool = False, status: str = "ACTIVE") -> tuple[int, Any]:
    summaries = [
        {
            "StreamName": name,
            "StreamARN": f"arn:aws:kinesis:us-east-1:123456789012:stream/{name}",
            "StreamStatus": status,
            "StreamCreationTimestamp": CREATED_S + 0.75,
        }
        for name in names
    ]
    return 200, {"StreamNames": list(names), "HasMoreStreams": more, "StreamSummaries": summaries}


def tags(*, more: bool = False, **values: str) -> tuple[int, Any]:
    listed = [{"Key": key, "Value": value} for key, value in values.items()]
    return 200, {"Tags": listed, "HasMoreTags": more}


def list_streams(kinesis: CannedKinesis, *filters: StreamFilter) -> list[list[tuple[str, str]]]:
    async def main() -> list[list[tuple[str, str]]]:
        directory = KinesisDirectory(kinesis.client)
        try:
            found = [await directory.list_streams(each) for each in filters]
            return [[(name, str(identifier)) for name, identifier in each.items()] for each in found]
        finally:
            await directory.close()

    return asyncio.run(main())


def test_all_pages_are_read_and_streams_that_cannot_be_read_are_left_out() -> None:
    """The identifier is that of the KCL, with whole seconds."""
    kinesis = CannedKinesis(
        streams("orders-a", more=True), streams("orders-b", status="DELETING"), streams("returns")
    )
    assert list_streams(kinesis, StreamFilter("orders"), StreamFilter()) == [
        [("orders-a", f"123456789012:orders-a:{CREATED_S}")],
        [("returns", f"123456789012:returns:{CREATED_S}")],
    ]
    assert kinesis.requests[:2] == [
        ("ListStreams", {}),
        ("ListStreams", {"ExclusiveStartStreamName": "orders-a"}),
    ]


def test_tags_of_new_streams_are_read_in_each_listing() -> None:
    """All pages of the tags count, and a stream whose name does not match costs no call."""
    kinesis = CannedKinesis(
        streams("orders-a", "orders-b", "returns"),
        tags(team="other", more=True),
        tags(use="yes"),
        tags(team="billing"),
        streams("orders-a", "orders-c"),
        tags(use="yes"),
        tags(use=""),
    )
    used = StreamFilter("orders", "use")
    found = list_streams(kinesis, used, used)
    assert [[name for name, _ in each] for each in found] == [["orders-a"], ["orders-a", "orders-c"]]
    asked = [fields for operation, fields in kinesis.requests if operation == "ListTagsForStream"]
    assert asked == [
        {"StreamName": "orders-a"},
        {"StreamName": "orders-a", "ExclusiveStartTagKey": "team"},
        {"StreamName": "orders-b"},
        {"StreamName": "orders-c"},
        {"StreamName": "orders-a"},
    ]


def test_tags_that_are_known_are_read_again_a_few_at_a_time() -> None:
    """With 15 streams, the second listing reads the tags of 10."""
    names = [f"orders-{number:02d}" for number in range(15)]
    kinesis = CannedKinesis(
        streams(*names), *(tags(use="yes") for _ in names), streams(*names), *(tags() for _ in range(10))
    )
    used = StreamFilter(tag="use=yes")
    first, second = list_streams(kinesis, used, used)
    assert len(first) == 15
    assert [name for name, _ in second] == names[10:]


def test_a_throttled_listing_is_an_error_that_is_retried() -> None:
    """Nothing may be concluded from a part of the list."""
    kinesis = CannedKinesis((400, {"__type": "LimitExceededException", "message": "slow down"}))
    with pytest.raises(ThrottledError, match="list of streams, list_streams"):
        list_streams(kinesis, StreamFilter())


@pytest.mark.parametrize(
    "missing", ["StreamSummaries", "StreamARN", "StreamStatus", "StreamCreationTimestamp"]
)
def test_a_server_without_summaries_is_refused(missing: str) -> None:
    """An empty list would mean that no stream exists, and every stream would be given back."""
    status, body = streams("orders")
    for fields in (body, *body["StreamSummaries"]):
        fields.pop(missing, None)
    with pytest.raises(ServiceError, match="the response lacks the ARN, status or creation time"):
        list_streams(CannedKinesis((status, body)), StreamFilter())


def test_throttled_reads_of_tags_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first listing of an account with many streams would never succeed."""
    monkeypatch.setattr(kinesis_directory, "_THROTTLED_PAUSES_S", (0, 0))
    throttled = (400, {"__type": "LimitExceededException", "message": "slow down"})
    kinesis = CannedKinesis(streams("a", "b"), tags(use=""), throttled, throttled, tags(use=""))
    (found,) = list_streams(kinesis, StreamFilter(tag="use"))
    assert [name for name, _ in found] == ["a", "b"]
    kinesis = CannedKinesis(streams("a"), throttled, throttled, throttled)
    with pytest.raises(ThrottledError):
        list_streams(kinesis, StreamFilter(tag="use"))


def test_a_stream_that_is_deleted_while_it_is_listed_has_no_tags() -> None:
    """The others are found."""
    gone = (400, {"__type": "ResourceNotFoundException", "message": "gone"})
    kinesis = CannedKinesis(streams("a", "b"), gone, tags(use=""))
    (found,) = list_streams(kinesis, StreamFilter(tag="use"))
    assert [name for name, _ in found] == ["b"]
