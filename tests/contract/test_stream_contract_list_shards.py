"""Stream contract: ListShards, its pages and its six filters, on a stream that was split twice."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.streams import BAD_VALUE, MakeStream, Stream, eventually, expect_refusal


def test_pages_are_continued_by_token(make_stream: MakeStream) -> None:
    """MaxResults limits a page; the token without the name returns the next one; together they are the whole list."""
    stream = make_stream(shards=5)
    first = stream.client.list_shards(StreamName=stream.name, MaxResults=2)
    second = stream.client.list_shards(NextToken=first["NextToken"], MaxResults=2)
    third = stream.client.list_shards(NextToken=second["NextToken"], MaxResults=2)
    assert [len(page["Shards"]) for page in (first, second, third)] == [2, 2, 1]
    assert "NextToken" not in third
    found = [shard["ShardId"] for page in (first, second, third) for shard in page["Shards"]]
    assert found == stream.shard_ids()


def test_a_token_with_other_parameters_is_refused(make_stream: MakeStream) -> None:
    """A token already contains the stream and the start."""
    stream = make_stream(shards=2)
    token = stream.client.list_shards(StreamName=stream.name, MaxResults=1)["NextToken"]
    with expect_refusal("InvalidArgumentException"):
        stream.client.list_shards(NextToken=token, StreamName=stream.name)
    with expect_refusal("InvalidArgumentException"):
        stream.client.list_shards(NextToken=token, ExclusiveStartShardId="shardId-000000000000")


def test_an_unknown_token_is_refused(stream: Stream) -> None:
    """A token that the service did not issue is an invalid argument."""
    with expect_refusal(*BAD_VALUE):
        stream.client.list_shards(NextToken="garbage")


def test_a_list_can_start_after_a_shard(make_stream: MakeStream) -> None:
    """ExclusiveStartShardId excludes that shard and everything before it."""
    stream = make_stream(shards=3)
    assert stream.shard_ids(ExclusiveStartShardId="shardId-000000000000") == stream.shard_ids()[1:]


def test_a_list_needs_a_stream_or_a_token(stream: Stream) -> None:
    """A request without both is refused."""
    with expect_refusal("InvalidArgumentException"):
        stream.client.list_shards()


def test_a_page_size_out_of_range_is_refused(stream: Stream) -> None:
    """MaxResults is 1 to 10,000."""
    with stream.kinesis.refuses("a page size of 0", *BAD_VALUE):
        stream.client.list_shards(StreamName=stream.name, MaxResults=0)
    with stream.kinesis.refuses("a page size of 10001", *BAD_VALUE):
        stream.client.list_shards(StreamName=stream.name, MaxResults=10_001)


@dataclass(frozen=True, slots=True)
class History:
    """A root, split into two; the lower child split into two; with a time between each of the steps."""

    stream: Stream
    before: datetime
    root_only: datetime
    after_first_split: datetime
    after_second_split: datetime

    ROOT = "shardId-000000000000"
    LOW = "shardId-000000000001"
    HIGH = "shardId-000000000002"
    LOW_CHILDREN = ("shardId-000000000003", "shardId-000000000004")
    ALL = (ROOT, LOW, HIGH, *LOW_CHILDREN)
    OPEN = (HIGH, *LOW_CHILDREN)

    def filtered(self, kind: str, **value: object) -> tuple[str, ...]:
        return tuple(sorted(self.stream.shard_ids(ShardFilter={"Type": kind, **value})))


@pytest.fixture
def history(make_stream: MakeStream) -> History:
    before = datetime.now(UTC) - timedelta(hours=1)
    stream = make_stream()
    root_only = wait_for_a_new_second()
    stream.split(History.ROOT)
    after_first_split = wait_for_a_new_second()
    stream.split(History.LOW)
    after_second_split = wait_for_a_new_second()
    return History(stream, before, root_only, after_first_split, after_second_split)


def wait_for_a_new_second() -> datetime:
    """The start of a second without other changes: kinesis-local compares whole seconds."""
    second = int(time.time()) + 1
    eventually(lambda: time.time() >= second + 1, "a whole second has passed")
    return datetime.fromtimestamp(second, UTC)


def test_every_filter_lists_the_documented_shards(history: History) -> None:
    """The six filters, each at the times at which their results differ.

    One test, because the history takes some seconds to create.
    """
    assert history.filtered("AT_LATEST") == History.OPEN
    assert history.filtered("FROM_TRIM_HORIZON") == History.ALL
    as_documented = history.stream.kinesis.expects("AT_TRIM_HORIZON", "the root") == "the root"
    assert history.filtered("AT_TRIM_HORIZON") == ((History.ROOT,) if as_documented else History.ALL)
    assert history.filtered("AFTER_SHARD_ID", ShardId=History.LOW) == (History.HIGH, *History.LOW_CHILDREN)

    assert history.filtered("AT_TIMESTAMP", Timestamp=history.root_only) == (History.ROOT,)
    assert history.filtered("AT_TIMESTAMP", Timestamp=history.after_first_split) == (
        History.LOW,
        History.HIGH,
    )
    assert history.filtered("AT_TIMESTAMP", Timestamp=history.after_second_split) == History.OPEN

    assert history.filtered("FROM_TIMESTAMP", Timestamp=history.root_only) == History.ALL
    assert history.filtered("FROM_TIMESTAMP", Timestamp=history.after_first_split) == (
        History.LOW,
        *History.OPEN,
    )
    assert history.filtered("FROM_TIMESTAMP", Timestamp=history.after_second_split) == History.OPEN
    assert history.filtered("FROM_TIMESTAMP", Timestamp=history.before) == History.ALL


def test_a_filter_holds_on_every_page(stream: Stream, shard_id: str) -> None:
    """The token contains the filter: the second page is filtered like the first."""
    low, high = stream.split(shard_id)
    left, right = stream.split(high)
    stream.merge(left, right)
    found = sorted(stream.shard_ids(MaxResults=1, ShardFilter={"Type": "AT_LATEST"}))
    still_open = [low, *stream.children_of(left)]
    expected = stream.kinesis.expects("a filter on the second page", still_open)
    assert found == (
        still_open if expected is still_open else [low, *stream.shard_ids(ExclusiveStartShardId=low)]
    )


def test_a_filter_by_time_or_shard_needs_its_value(stream: Stream) -> None:
    """A filter without its time or shard is refused."""
    for kind in ("AT_TIMESTAMP", "FROM_TIMESTAMP", "AFTER_SHARD_ID"):
        with expect_refusal(*BAD_VALUE):
            stream.client.list_shards(StreamName=stream.name, ShardFilter={"Type": kind})


def test_an_unknown_filter_is_refused(stream: Stream) -> None:
    """Only the six documented filters exist."""
    with stream.kinesis.refuses("an unknown enum value", *BAD_VALUE):
        stream.client.list_shards(StreamName=stream.name, ShardFilter={"Type": "SOMETIMES"})
